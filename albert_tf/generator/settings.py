"""The settings of the scripts that read text, and those they share with pre-training."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from albert_tf.console.settings import NATURAL, POSITIVE, REQUIRED, Settings, setting
from albert_tf.generator.documents import TextSettings
from albert_tf.records.masking import MAX_SEQ_LENGTH, MaskingSettings, count_full_row
from albert_tf.records.spec import NUM_SPECIALS, RowFormat
from albert_tf.text.tokenization import Tokenizer

# A pair has at least two tokens: one for each segment.
SHORTEST_TARGET = 2
MASKING = "Masking"
_VOCABULARY, _EXAMPLES = "Vocabulary", "Examples"
_OUTPUT, _PROCESSES = "Output", "Processes and memory"

_vocabulary = functools.partial(setting, group=_VOCABULARY)
_examples = functools.partial(setting, group=_EXAMPLES)
_masking = functools.partial(setting, group=MASKING)
_mask_share = functools.partial(setting, group=MASKING, interval="[0, 1]")
_output = functools.partial(setting, group=_OUTPUT)
_processes = functools.partial(setting, group=_PROCESSES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PieceTrainingSettings(TextSettings):
    """How the pieces of a vocabulary are chosen."""

    character_coverage: float = _vocabulary(
        0.99995,
        "Share of the text's characters that get a piece of their own; rarer ones become <unk>. "
        "0.99995 is the release's.",
        interval="[0.98, 1]",
    )
    input_sentence_size: int = _vocabulary(
        10_000_000,
        "Maximum number of sentences to train on; of a larger text, a random sample is used. "
        "Memory use grows with it. 10,000,000 is the release's.",
        interval="[101, 2147483647]",  # SentencePiece's own limits, as for the share above.
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePieceSettings(PieceTrainingSettings):
    """The settings of train_sentencepiece.py."""

    model_prefix: str = _vocabulary(
        REQUIRED, "Path prefix of the files to write: PREFIX.model and PREFIX.vocab."
    )
    vocab_size: int = _vocabulary(
        30000, "Number of pieces in the vocabulary. 30000 is the release's.", interval=POSITIVE
    )
    do_lower_case: bool = _vocabulary(
        True, "Lower-case the text: true if the model is to be uncased."
    )
    keep_accents: bool = _vocabulary(
        False,
        "Leave accents, vowel signs and tone marks in the text, as Hugging Face's keep_accents: "
        "for languages in which they tell words apart. This and do_lower_case are stored beside "
        "the vocabulary, in tokenizer_config.json; later commands find them there. The release "
        "removes accents.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskSettings(Settings):
    """Settings of masks, drawn by the generator or while training."""

    masked_lm_prob: float = _mask_share(0.15, "Share of the tokens to mask. 0.15 is the paper's.")
    mask_replace_prob: float = _mask_share(
        0.8, "Share of the masked tokens that become [MASK]. 0.8 is the paper's."
    )
    random_replace_prob: float = _mask_share(
        0.1,
        "Share of the masked tokens that become a random piece; others stay. 0.1 is the paper's.",
    )
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

    def masks(
        self, pieces: Tokenizer | RowFormat, most: int, length: int, **changes: float
    ) -> MaskingSettings:
        """Returns the settings of masks, with `changes`, and at most `most` masked tokens in a row.

        A `most` of 0 allows as many as a full row of `length` tokens needs.
        """
        own: dict[str, Any] = {each.name: getattr(self, each.name) for each in MaskSettings.flags()}
        own |= changes
        most = most or count_full_row(own["masked_lm_prob"], length)
        return MaskingSettings(
            pieces.vocab_size, pieces.mask_id, max_predictions_per_seq=most, **own
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorSettings(MaskSettings, TextSettings):
    """The settings of create_pretraining_data.py: the release's 17 and a few more."""

    headings = ("Text", _VOCABULARY, _EXAMPLES, MASKING, _OUTPUT, _PROCESSES)

    spm_model_file: str | None = _vocabulary(None, "SentencePiece model that splits the text.")
    vocab_file: str | None = _vocabulary(
        None, "WordPiece vocabulary; only used if spm_model_file is not set."
    )
    do_lower_case: bool = _vocabulary(
        True,
        "Lower-case the text: true for uncased models. If not given, as stored beside the "
        "vocabulary, or else true.",
    )
    keep_accents: bool = _vocabulary(
        False,
        "Leave accents in the text. If not given, as stored beside the vocabulary, or else false.",
    )
    max_unknown_share: float = _vocabulary(
        0.1,
        "Maximum share of [UNK] among the text's tokens. A larger one is an error: the vocabulary "
        "is probably for another language. With the right one the share is about 0.001.",
        interval="[0, 1]",
    )

    max_seq_length: int = _examples(
        512,
        "Maximum length of an example in tokens, with [CLS] and [SEP]. 512 is the paper's.",
        interval=f"[{NUM_SPECIALS + SHORTEST_TARGET}, {MAX_SEQ_LENGTH}]",
    )
    short_seq_prob: float = _examples(
        0.1,
        "Share of the documents that are cut into examples of a random shorter length, so that "
        "the model also sees short ones. 0.1 is the paper's.",
        interval="[0, 1]",
    )
    dupe_factor: int = _examples(
        40,
        "Number of passes over the text, each with different pairs and masks. 40 is the "
        "release's; with --masking=dynamic the default is 1.",
        interval=POSITIVE,
    )
    random_seed: int = _examples(
        12345,
        "Seed of all random choices. The same text, flags and seed give the same records.",
        interval="(-inf, inf)",
    )
    random_next_sentence: bool = _examples(
        False,
        "Take the second segment of half of the pairs from a random document (BERT's next-sentence "
        "prediction). If false, swap the segments of half of them (ALBERT's sentence order).",
    )
    single_segment: str = _examples(
        "random",
        "How to make a pair of a chunk that is a single sentence. random, as in the release: its "
        "second segment comes from a random document, with the label of swapped pairs; split: the "
        "sentence is cut between two words, and the pair is treated like any other.",
        choices=["random", "split"],
    )
    overflow: str = _examples(
        "cut",
        "What becomes of the tokens that an example has no room for. cut, as in the release: they "
        "are lost, of rows of 64 tokens up to a third of the text; carry: they begin the next "
        "example. carry needs --single_segment=split.",
        choices=["cut", "carry"],
    )
    max_examples_per_row: int = _examples(
        1,
        "Maximum number of short examples packed into one record, which saves padding; set "
        "max_predictions_per_seq=0 as well. 1, as in the release, does not pack.",
        interval=POSITIVE,
    )

    masking: str = _masking(
        "static",
        "static, as in the release: records hold masks. dynamic: they hold none, and "
        "albert-pretrain --masking=dynamic draws new ones each time.",
        choices=["static", "dynamic"],
    )
    max_predictions_per_seq: int = _masking(
        20,
        "Maximum number of masked tokens per example, and of a record in all; 0 allows as many as "
        "masked_lm_prob asks for. 20 is the release's.",
        interval=NATURAL,
    )
    word_starts: str = _masking(
        "latin",
        "Which SentencePiece pieces without a leading space continue a word. latin, as in the "
        "release: pieces of the letters a to z; unicode: pieces of letters of any script that "
        "separates words by spaces.",
        choices=["latin", "unicode"],
    )
    word_separator: str | None = _masking(
        None,
        "Separator between the words of text that is already segmented, such as a space; it is "
        "removed from the text. Whole words are then those of the text, not those of the "
        "vocabulary.",
    )

    output_file: str = _output(REQUIRED, "TFRecord files to write, separated by commas.")
    num_output_shards: int | None = _output(
        None,
        "Number of files to write instead: output_file-00000-of-00008 and so on. A block of text, "
        "from which random documents come, never spans files: give many documents to each. A file "
        "without any record is an error.",
        interval=POSITIVE,
    )
    keep_order: bool = _output(
        False,
        "Leave a file's records in the order of the text. By default they are shuffled: our reader "
        "needs no such order, others shuffle only through a small buffer.",
    )
    plots: bool = _output(
        False, "Also write a page of plots of the report, as .png beside its .json."
    )

    num_processes: int | None = _processes(
        None,
        "Number of worker processes; only for --runner=local. By default one per core. The records "
        "do not depend on it.",
        interval=POSITIVE,
    )
    block_megabytes: float = _processes(
        4.0,
        "Size of a block of text, in millions of characters; random documents come from the same "
        "block. Up to three blocks per process are in memory.",
        interval="(0, 1e6]",
    )
    runner: str = _processes(
        "local",
        "local: run in processes on this machine. beam: run as an Apache Beam pipeline, for a "
        "cluster.",
        choices=["local", "beam"],
    )
    beam_options: str = _processes(
        "",
        "Beam's options, such as '--runner=DataflowRunner --project=...'; only for --runner=beam.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.single_segment == "split" and self.random_next_sentence:
            raise ValueError(
                "`single_segment=split` applies only to sentence order: leave out "
                "`random_next_sentence`"
            )
        if self.overflow == "carry" and self.single_segment != "split":
            raise ValueError(
                "`overflow=carry` keeps the text in its order, but random documents join it: add "
                "`single_segment=split`"
            )
        if self.max_examples_per_row > 1 and self.masking == "dynamic":
            raise ValueError(
                "`max_examples_per_row` packs masked examples, but with `masking=dynamic` they "
                "are not masked yet: leave one of them out"
            )

    @property
    def passes(self) -> int:
        """Passes over the text, each with new pairs and masks."""
        one = self.masking == "dynamic" and "dupe_factor" not in self.given
        return 1 if one else self.dupe_factor

    def row_format(self, tokenizer: Tokenizer) -> RowFormat:
        """Returns how the rows of a tokenizer's examples are laid out."""
        specials = tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
        return RowFormat(self.max_seq_length, tokenizer.vocab_size, *specials)

    def mask_settings(self, tokenizer: Tokenizer) -> MaskingSettings | None:
        """Returns how examples are masked; None leaves masking to training."""
        if self.masking == "dynamic":
            return None
        return self.masks(tokenizer, self.max_predictions_per_seq, self.max_seq_length)

    def of_the_records(self) -> dict[str, Any]:
        """Returns the settings that the records depend on, without the paths of files."""
        others = {"num_processes", "max_unknown_share", "plots", "runner", "beam_options"}
        others |= {"input_file", "spm_model_file", "vocab_file"}
        return {name: value for name, value in self.record().items() if name not in others}
