"""The settings of the scripts that read text, and what they share with pre-training."""

from __future__ import annotations

import dataclasses
import functools

from albert_tf.console.settings import POSITIVE, Settings, setting

MASKING = "Masking"

_masking = functools.partial(setting, group=MASKING)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NgramSettings(Settings):
    """Which tokens are masked together; for the generator, and for dynamic masks."""

    ngram: int = _masking(
        3, "Maximum length of a masked n-gram, in words. 3 is the paper's.", interval=POSITIVE
    )
    favor_shorter_ngram: bool = _masking(
        True,
        "Draw an n-gram of n words with probability proportional to 1/n, as in the paper; if "
        "false, longer n-grams are more likely.",
    )
    do_whole_word_mask: bool = _masking(
        True, "Mask all pieces of a word together; if false, n-grams are counted in pieces."
    )
    do_permutation: bool = _masking(
        False,
        "Also permute as many tokens as are masked, and predict them too. Off by default, as in "
        "the release.",
    )
