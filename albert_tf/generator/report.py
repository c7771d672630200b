"""Counts of what a run read and wrote, reported in words and as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from albert_tf.generator.examples import Instances, SegmentPair, TokenBlock
from albert_tf.records import frequencies
from albert_tf.records.masking import MaskingSettings
from albert_tf.records.spec import NUM_SPECIALS
from albert_tf.storage import files

SCHEMA_VERSION = 3
# Words of any language have fewer pieces on average, even if each letter is one.
_MOST_PIECES = 12
_HISTOGRAMS = ("length_histogram", "ngram_histogram", "piece_histogram")
# Unit of getrusage's ru_maxrss: bytes on macOS, KiB on Linux.
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


class WrongVocabularyError(ValueError):
    """Too much of the text is [UNK]."""


@dataclasses.dataclass
class Report:
    """Counts of a run or of a part of it; parts can be merged.

    Output tokens are the tokens of the rows, with [CLS] and [SEP] but without padding. With
    do_permutation, all tokens with a label count as masked.

    Attributes:
      documents: Documents with at least one token.
      sentences: Sentences with at least one token.
      input_tokens: Tokens of the text, counted once, however many passes are drawn.
      words: Words of the text, whose pieces are masked together.
      unknown_tokens: Input tokens that are [UNK].
      false_starts: Input tokens that continue a word, but count as words because their letters are
        not a to z.
      instances: Written examples.
      rows: Written records; packed ones hold several examples each.
      row_tokens: Positions in the rows, padding included.
      output_tokens: See above.
      masked_tokens: See above.
      label_1: Instances that are swapped, or have B from a random document.
      single_segments: Instances of a one-sentence chunk; B is a random document's by default.
      truncated: Instances that lost tokens of their segments or of a single-word chunk beside them.
      dropped_tokens: The tokens they lost; not those of documents without an instance.
      limited_masks: Instances to which masked_lm_prob would give more than
        max_predictions_per_seq masked tokens.
      length_histogram: Output tokens of an instance -> instances.
      ngram_histogram: Words -> n-grams, counted as maximal runs of masked words (pieces, without
        do_whole_word_mask) in a segment: n-grams drawn next to each other count as one.
      piece_histogram: Piece -> input tokens of the first shard's text. It is not written with the
        finished report.
      shards: Written file -> {"records": ..., "bytes": ...}.
      seconds: Wall time; over all parts of a resumed run.
      peak_memory_bytes: Peak resident memory of the largest process, workers included.
    """

    documents: int = 0
    sentences: int = 0
    input_tokens: int = 0
    words: int = 0
    unknown_tokens: int = 0
    false_starts: int = 0
    instances: int = 0
    rows: int = 0
    row_tokens: int = 0
    output_tokens: int = 0
    masked_tokens: int = 0
    label_1: int = 0
    single_segments: int = 0
    truncated: int = 0
    dropped_tokens: int = 0
    limited_masks: int = 0
    length_histogram: Counter[int] = dataclasses.field(default_factory=Counter)
    ngram_histogram: Counter[int] = dataclasses.field(default_factory=Counter)
    piece_histogram: Counter[int] = dataclasses.field(default_factory=Counter)
    shards: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    peak_memory_bytes: int = 0

    def count_input(self, block: TokenBlock, unk_id: int, false_starts: np.ndarray) -> None:
        """Adds a block of documents; `false_starts` <bool>[V] marks such pieces, see above."""
        self.documents += len(block.documents)
        # A document lists one bound more than it has sentences.
        self.sentences += sum(map(len, block.documents)) - len(block.documents)
        self.input_tokens += len(block.tokens)
        self.words += int(np.count_nonzero(block.word_starts))
        self.unknown_tokens += int(np.count_nonzero(block.tokens == unk_id))
        self.false_starts += int(np.count_nonzero(false_starts[block.tokens]))

    def count_pieces(self, block: TokenBlock) -> None:
        """Adds a block to the frequencies of pieces."""
        self.piece_histogram += _count_values(block.tokens)

    def count_output(
        self,
        batch: Instances,
        examples: Mapping[str, np.ndarray],
        masks: MaskingSettings | None,
    ) -> None:
        """Adds a batch of examples, not yet packed, and their masks if they have any."""
        # Each field is an array over all pairs, not one pair's integer.
        pairs: Any = SegmentPair(*batch.pairs.T)
        lengths = pairs.a_end - pairs.a_begin + pairs.b_end - pairs.b_begin + NUM_SPECIALS
        self.instances += len(lengths)
        self.output_tokens += int(lengths.sum())
        self.label_1 += int(pairs.label.sum())
        self.single_segments += int(pairs.single.sum())
        self.truncated += int(np.count_nonzero(pairs.dropped))
        self.dropped_tokens += int(pairs.dropped.sum())
        self.length_histogram += _count_values(lengths)
        if masks:
            # An instance is limited if it has fewer predictions than masked_lm_prob asks for.
            wanted = np.rint(lengths * masks.masked_lm_prob)
            limit = masks.max_predictions_per_seq
            self.limited_masks += int(np.count_nonzero(wanted > limit))
            self.masked_tokens += int(np.count_nonzero(examples["masked_lm_weights"]))
            self.ngram_histogram += _count_values(
                _measure_masked_runs(examples, masks.do_whole_word_mask)
            )

    def count_rows(self, num_rows: int, max_seq_length: int) -> None:
        """Adds records."""
        self.rows += num_rows
        self.row_tokens += num_rows * max_seq_length

    def count_shard(self, path: str, num_bytes: int) -> None:
        """Adds the file that the counted rows were written to."""
        self.shards[path] = {"records": self.rows, "bytes": num_bytes}

    def measure_memory(self) -> None:
        """Records this process's peak so far."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
        self.peak_memory_bytes = max(self.peak_memory_bytes, peak)

    @classmethod
    def total(cls, reports: Iterable[Report]) -> Report:
        """Returns what the parts of a run counted together."""
        total = cls()
        for report in reports:
            total.merge(report)
        return total

    def merge(self, other: Report) -> None:
        """Adds what another part of the run counted."""
        # Numbers and histograms add up; the highest peak counts.
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "shards":
                mine.update(theirs)
            elif field.name == "peak_memory_bytes":
                setattr(self, field.name, max(mine, theirs))
            else:
                setattr(self, field.name, mine + theirs)

    def check_unknown_share(self, max_unknown_share: float) -> None:
        """Refuses text that the vocabulary was not made for.

        With the release's English vocabulary about 0.1 % of an English encyclopedia's tokens are
        [UNK], 5 % of a German text's, and over 40 % of a Chinese, Russian or Arabic one's.

        Raises:
          WrongVocabularyError: If more than this share of the input tokens are [UNK].
        """
        if self.unknown_tokens > max_unknown_share * self.input_tokens:
            raise WrongVocabularyError(
                f"{_share(self.unknown_tokens, self.input_tokens):.1%} of the first "
                f"{self.input_tokens:,} tokens are [UNK], more than "
                f"`max_unknown_share={max_unknown_share:g}`: the vocabulary does not fit this "
                "text: use another one, or raise that share"
            )

    def check_words(self, word_separator: str | None) -> None:
        """Refuses text that is not segmented: its words would be too long to mask."""
        # Without real separators, whole sentences would count as words.
        length = _share(self.input_tokens, self.words)
        if word_separator and (0 < self.words <= self.sentences or length > _MOST_PIECES):
            raise ValueError(
                f"`word_separator` {word_separator!r} makes {self.words:,} words of the first "
                f"{self.sentences:,} sentences, of {length:.1f} pieces on average: segment the "
                "text, or give the separator that it has"
            )

    def shares(self) -> dict[str, float]:
        """Returns ratios of the counts; a share of nothing is 0.

        `frequency_loss` is the mean loss, in nats, of guessing each piece by its frequency.
        """
        # [CLS] and [SEP] are not text.
        in_pairs = self.output_tokens - NUM_SPECIALS * self.instances
        return {
            "unknown_share": _share(self.unknown_tokens, self.input_tokens),
            "false_starts_share": _share(self.false_starts, self.input_tokens),
            "padding_share": 1 - _share(self.output_tokens, self.row_tokens or 1),
            "masked_share": _share(self.masked_tokens, self.output_tokens),
            "label_1_share": _share(self.label_1, self.instances),
            "single_segments_share": _share(self.single_segments, self.instances),
            "truncated_share": _share(self.truncated, self.instances),
            "dropped_share": _share(self.dropped_tokens, self.dropped_tokens + in_pairs),
            "limited_masks_share": _share(self.limited_masks, self.instances),
            "frequency_loss": frequencies.loss(np.array([*self.piece_histogram.values()], int)),
            "output_tokens_per_second": _share(self.output_tokens, self.seconds),
        }

    def to_json(self) -> dict[str, Any]:
        """Returns a dictionary for json.dump: schema_version, the attributes, and `shares`.

        Histogram keys become strings, in ascending order.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in _HISTOGRAMS:
            values[name] = {str(key): values[name][key] for key in sorted(values[name])}
        return {"schema_version": SCHEMA_VERSION, **values, "shares": self.shares()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Report:
        """Returns the report that `to_json` described."""
        values = {field.name: value[field.name] for field in dataclasses.fields(cls)}
        for name in _HISTOGRAMS:
            values[name] = Counter({int(key): count for key, count in values[name].items()})
        values["shards"] = {
            path: {name: int(shard[name]) for name in ("records", "bytes")}
            for path, shard in values["shards"].items()
        }
        return cls(**values)

    def lines(self) -> list[str]:
        """Returns the report in words."""
        # First the text that was read, then the examples, then files, time and memory.
        shares = self.shares()
        num_bytes = sum(shard["bytes"] for shard in self.shards.values())
        lines = [
            f"read {self.documents:,} documents, {self.sentences:,} sentences, {self.words:,} "
            f"words, {self.input_tokens:,} tokens, {shares['unknown_share']:.3%} of them [UNK], "
            f"{shares['false_starts_share']:.3%} counted as words only because their letters are "
            "not Latin; guessing a token by its frequency alone costs "
            f"{shares['frequency_loss']:.3f} nats",
            f"wrote {self.instances:,} instances, {self.output_tokens:,} tokens, in {self.rows:,} "
            f"rows, {shares['masked_share']:.2%} of them masked; padding: "
            f"{shares['padding_share']:.2%} of the rows",
            f"label 1 (swapped, or B from a random document): {shares['label_1_share']:.2%}; "
            f"chunks of one sentence: {shares['single_segments_share']:.2%}; truncated: "
            f"{shares['truncated_share']:.2%}, which lost {self.dropped_tokens:,} tokens, "
            f"{shares['dropped_share']:.2%} of their text",
        ]
        if self.limited_masks:
            lines.append(
                f"max_predictions_per_seq left {shares['limited_masks_share']:.2%} of the "
                "instances with fewer masked tokens than masked_lm_prob asks for"
            )
        lines += [
            f"files: {len(self.shards)}, {num_bytes / 1e6:,.1f} MB",
            f"{self.seconds:.1f} seconds, {shares['output_tokens_per_second']:,.0f} output "
            f"tokens/s; {self.peak_memory_bytes / 1e6:,.0f} MB in the largest process",
        ]
        return lines

    def save(self, path: str) -> None:
        """Atomically writes the JSON of a finished run, to which nothing will be added."""
        values = self.to_json()
        del values["piece_histogram"]  # Thousands of lines.
        files.replace(path, json.dumps(values, indent=2) + "\n")


def report_path(output_file: str, suffix: str) -> str:
    """Returns the name of a file about the record files: records.tfrecord -> records.report.json.

    It is named after the first of several comma-separated files, without its extension, so that
    records.tfrecord* matches records only.
    """
    path = output_file.split(",")[0]
    root, extension = os.path.splitext(path)
    return f"{root if 'record' in extension else path}.report{suffix}"


def _measure_masked_runs(
    examples: Mapping[str, np.ndarray], do_whole_word_mask: bool
) -> np.ndarray:
    """Returns the lengths in words of maximal runs of masked words, <int64>[runs].

    A word is masked if its first piece is: words are masked whole. [CLS] and [SEP] are words that
    are never masked, so no run extends into another segment or row. Padding, and pieces after a
    [SEP] that don't start a word, count as part of the [SEP].
    """
    starts = examples["token_boundary" if do_whole_word_mask else "input_mask"].astype(bool)
    starts[:, 1] = True  # A segment cut at its front may begin inside a word.
    # Mark the words whose first piece is masked; a run is between two changes of the marks.
    masked = np.zeros(starts.shape, np.int8)
    np.put_along_axis(masked, examples["masked_lm_positions"], 1, axis=1)
    masked[:, 0] = 0  # Slots without a label point here.
    masked_words = masked.ravel()[np.flatnonzero(starts)]
    edges = np.flatnonzero(masked_words[1:] != masked_words[:-1])
    return edges[1::2] - edges[::2]


def _count_values(values: np.ndarray) -> Counter[int]:
    unique, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(unique.tolist(), counts.tolist(), strict=True)))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
