"""Flags of what is masked, for the generator and for pre-training that draws masks itself."""

from __future__ import annotations

from absl import flags

from albert_tf.scripts import FlagGroup

HEADING = "Masking"
# Fields of MaskingSettings.
NAMES = ("ngram", "favor_shorter_ngram", "do_whole_word_mask", "do_permutation")


def define_masking(values: flags.FlagValues, condition: str = "") -> None:
    """Adds the flags.

    Args:
      values: Receives the flags.
      condition: When they apply; ends each flag's help.
    """
    group = FlagGroup(values, HEADING)
    group.integer(
        "ngram",
        3,
        "Maximum length of a masked n-gram, in words. 3 is the paper's." + condition,
        lower_bound=1,
    )
    group.boolean(
        "favor_shorter_ngram",
        True,
        "Draw an n-gram of n words with probability proportional to 1/n, as in the paper; if "
        "false, longer n-grams are more likely." + condition,
    )
    group.boolean(
        "do_whole_word_mask",
        True,
        "Mask all pieces of a word together; if false, n-grams are counted in pieces." + condition,
    )
    group.boolean(
        "do_permutation",
        False,
        "Also permute as many tokens as are masked, and predict them too. Off by default, as in "
        "the release." + condition,
    )
