"""Question answering on texts of any length, in the graph: strings in, strings out."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from albert_tf.answers.span import NO_WINDOW_NULL_ODDS, Span
from albert_tf.serving.graphs.base import ServedModel, run_in_parts
from albert_tf.serving.graphs.text import SPACES, cut, dense, from_rows, ragged_rows, ranges
from albert_tf.serving.graphs.tokenizer import Pieces
from albert_tf.types import Features

# Candidates that are kept for each requested answer, since some have equal texts.
_CANDIDATES = 8
_IMPOSSIBLE = -float("inf")


class QuestionAnswerer(ServedModel):
    """Finds the answer to a question in a context.

    A context too long for one sequence is read in windows. The raw-text signature returns the
    `answer` `<string>[B]`, the N best `answers` `<string>[B, N]`, best first, their
    `probabilities`, normalised over the N, `<float32>[B, N]`, and `starts` `<int32>[B, N]`, their
    first characters' indexes in the context (padded with "" and 0). With a null threshold it adds
    `null_odds` `<float32>[B]`: where they are not below the threshold, the `answer` is "". The
    other signatures return the model's outputs.

    Source: squad_utils.py, convert_examples_to_features and write_predictions_v1 and _v2.
    Differs: no answer is "", not "empty". Equal answers are merged among the N best.
    """

    kind_class = Span

    def numbers(self, features: Features) -> Features:
        """See ServedModel; [SEP] tells where an answer may be."""
        if not self.kind.has_beam:
            return self.apply(features)
        ids, keep = features["input_ids"], features["input_mask"]
        # The context lies between the question's [SEP] and its own.
        is_end = ids == self.builder.sep_id
        is_context = (tf.cumsum(tf.cast(is_end, tf.int32), axis=1) * keep == 1) & ~is_end
        # Position 0, [CLS], stands for no answer.
        may_answer = is_context | (tf.range(tf.shape(ids)[1]) == 0)
        return self.apply({**features, "p_mask": 1 - tf.cast(may_answer, tf.int32)})

    def answer_texts(self, question: tf.Tensor, context: tf.Tensor) -> Features:
        # Read all windows on all contexts.
        query = self.tokenizer.first(question, self.kind.max_query_length)
        pieces = self.tokenizer(context)
        windows = make_windows(query, pieces, self.kind.max_seq_length, self.kind.doc_stride)
        always = tf.ones_like(windows.examples, tf.bool)
        queries = tf.gather(query, windows.examples)
        outputs = run_in_parts(self.run, self.builder.join(queries, windows.ids, always))
        # Rank the spans of each question's windows.
        spans = self._beam(outputs) if self.kind.has_beam else self._pairs(outputs)
        answers, best = self._best(windows, pieces, tf.size(question), *spans)
        if not self.kind.may_be_impossible:
            return answers
        # Null odds: the minimum over all windows; for a linear head, minus the best answer's score.
        if self.kind.has_beam:
            odds = outputs["cls_logits"]
        else:
            odds = outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0]
        # A context without pieces has one empty window.
        odds = tf.where(windows.widths > 0, odds, NO_WINDOW_NULL_ODDS)
        null_odds = tf.math.unsorted_segment_min(odds, windows.examples, tf.size(question))
        if not self.kind.has_beam:
            null_odds = tf.minimum(null_odds - best, NO_WINDOW_NULL_ODDS)
        is_answered = null_odds < self.kind.null_threshold
        answer = tf.where(is_answered, answers["answer"], "")
        return {**answers, "answer": answer, "null_odds": null_odds}

    def _pairs(self, outputs: Features) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns starts, ends and scores `[W, P]` of all pairs of the best starts and ends."""
        best = tf.minimum(self.kind.n_best_size, tf.shape(outputs["start_logits"])[1])
        start_scores, starts = tf.math.top_k(outputs["start_logits"], best)
        end_scores, ends = tf.math.top_k(outputs["end_logits"], best)
        shape = [tf.shape(starts)[0], best, best]
        # Flatten the square of starts and ends: P = best * best.
        return tuple(
            tf.reshape(tf.broadcast_to(values, shape), [shape[0], best * best])
            for values in (
                starts[:, :, None],
                ends[:, None],
                start_scores[:, :, None] + end_scores[:, None],
            )
        )

    def _beam(self, outputs: Features) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns starts, ends and scores `[W, P]` of the model's beam."""
        ends, end_scores = outputs["end_top_index"], outputs["end_top_log_probs"]
        # The ends of one start follow each other, so repeat each start for its ends.
        of_start = tf.shape(ends)[1] // tf.shape(outputs["start_top_index"])[1]
        starts, start_scores = (
            tf.repeat(outputs[f"start_top_{what}"], of_start, axis=1)
            for what in ("index", "log_probs")
        )
        return starts, ends, start_scores + end_scores

    def _best(
        self,
        windows: Windows,
        pieces: Pieces,
        batch: tf.Tensor,
        starts: tf.Tensor,
        ends: tf.Tensor,
        scores: tf.Tensor,
    ) -> tuple[Features, tf.Tensor]:
        """Returns the best answers to each question, and the score of the best `<float32>[B]`."""
        # Keep spans of allowed length within the context whose first piece counts in this window.
        firsts, lasts = starts - windows.offsets[:, None], ends - windows.offsets[:, None]
        width = windows.widths[:, None]
        valid = (firsts >= 0) & (firsts <= lasts) & (lasts < width)
        valid &= lasts < firsts + self.kind.max_answer_length
        # Clip positions outside, so that gather is in range; their scores are ruled out anyway.
        in_window = [tf.clip_by_value(p, 0, tf.maximum(width - 1, 0)) for p in (firsts, lasts)]
        valid &= tf.gather(windows.counts, in_window[0], batch_dims=1)
        scores = tf.where(valid, scores, _IMPOSSIBLE)
        first_piece, last_piece = (
            tf.gather(windows.flat, place, batch_dims=1) for place in in_window
        )

        def of_examples(values: tf.Tensor, default: float | int) -> tf.Tensor:
            """Gathers `[W, P]` into `[B, all of an example]`, at least N wide."""
            rows = from_rows(values, windows.examples, batch)
            return dense(rows.merge_dims(1, 2), default, least=self.kind.n_best_size)

        # Keep the best of each window first: an example may have thousands of windows, and all rows
        # are as wide as the widest. Then keep the best of each example.
        count = _CANDIDATES * self.kind.n_best_size
        scores, first_piece, last_piece = _best_of(count, scores, first_piece, last_piece)
        scores, first_piece, last_piece = _best_of(
            count,
            of_examples(scores, _IMPOSSIBLE),
            of_examples(first_piece, 0),
            of_examples(last_piece, 0),
        )
        # Merge equal texts, and normalise over the N best.
        texts, starts = _texts(pieces, first_piece, last_piece, scores > _IMPOSSIBLE)
        scores, order = tf.math.top_k(_without_repeats(texts, scores), self.kind.n_best_size)
        texts, starts = (
            tf.where(scores > _IMPOSSIBLE, tf.gather(values, order, batch_dims=1), default)
            for values, default in ((texts, ""), (starts, 0))
        )
        # Relative to the best score, so that exp can't overflow; without answers all are -inf.
        shares = tf.exp(scores - tf.maximum(scores[:, :1], scores.dtype.min))
        probabilities = shares / tf.maximum(tf.reduce_sum(shares, axis=1, keepdims=True), 1.0)
        answers = {"answers": texts, "probabilities": probabilities, "starts": starts}
        return {"answer": texts[:, 0], **answers}, scores[:, 0]


@dataclasses.dataclass(frozen=True)
class Windows:
    """W windows on contexts.

    Attributes:
      ids: `<int32>[W, (L)]`, pieces of the context.
      examples: `<int32>[W]`, the example each belongs to.
      offsets: `<int32>[W]`, position of the first of these pieces in the sequence.
      flat: `<int32>[W, L]`, each piece's index in all the batch's contexts.
      counts: `<bool>[W, L]`, whether this window shows the most context around the piece.
      widths: `<int32>[W]`, number of pieces.
    """

    ids: tf.RaggedTensor
    examples: tf.Tensor
    offsets: tf.Tensor
    flat: tf.Tensor
    counts: tf.Tensor
    widths: tf.Tensor


def make_windows(
    query: tf.RaggedTensor, pieces: Pieces, max_seq_length: int, doc_stride: int
) -> Windows:
    """Cuts contexts into windows that fit beside their questions, `<int32>[B, (Q)]`."""
    # The question leaves this room in each sequence of its example.
    room = max_seq_length - 3 - tf.cast(query.row_lengths(), tf.int32)
    examples, widths, flat = cut(pieces.ids, room, doc_stride)
    of_window, places = ranges(widths)
    # A piece counts in the window with most context on its shorter side, the first if equal.
    width = tf.gather(widths, of_window)
    shown = 100 * tf.minimum(places, width - 1 - places) + width
    total = tf.size(pieces.ids.values)
    most = tf.gather(tf.math.unsorted_segment_max(shown, flat, total), flat)
    # Among equals the first window wins; windows that show less get a number beyond all.
    candidates = tf.where(shown == most, of_window, tf.size(widths))
    best = tf.gather(tf.math.unsorted_segment_min(candidates, flat, total), flat)

    return Windows(
        ids=ragged_rows(tf.gather(pieces.ids.values, flat), widths),
        examples=examples,
        # The context follows [CLS], the question and [SEP].
        offsets=2 + tf.gather(tf.cast(query.row_lengths(), tf.int32), examples),
        flat=dense(ragged_rows(flat, widths), 0, least=1),
        counts=dense(ragged_rows(best == of_window, widths), False, least=1),
        widths=widths,
    )


def _best_of(count: int, scores: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
    """Returns the `count` best scores (or all) of each row `[A, P]`, and the matching others."""
    scores, order = tf.math.top_k(scores, tf.minimum(count, tf.shape(scores)[1]))
    return [scores, *(tf.gather(other, order, batch_dims=1) for other in others)]


def _texts(
    pieces: Pieces, first_piece: tf.Tensor, last_piece: tf.Tensor, is_answer: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the raw texts from first to last pieces `<int32>[B, N]`, stripped; their starts."""
    # Gather characters: tf.strings.substr would copy the whole text for each of the N.
    codes = tf.strings.unicode_decode(pieces.raw, "UTF-8")
    starts, ends = (tf.pad(part.values, [[0, 1]]) for part in (pieces.starts, pieces.ends))
    # As released: the first piece begins at character 0, whatever normalisation drops there, and a
    # space that only the tokenizer puts there ends with the first character.
    of_text = tf.cast(pieces.starts.row_starts(), tf.int32)[:, None]
    starts = tf.where(first_piece == of_text, 0, tf.gather(starts, first_piece))
    ends = tf.maximum(tf.gather(ends, last_piece), 1)
    lengths = tf.where(is_answer, tf.maximum(ends - starts, 0), 0)
    begins = starts + tf.cast(codes.row_starts(), tf.int32)[:, None]
    places = tf.ragged.range(tf.reshape(begins, [-1]), tf.reshape(begins + lengths, [-1]))
    found = places.with_values(tf.gather(codes.values, places.values))
    texts = tf.reshape(tf.strings.unicode_encode(found, "UTF-8"), tf.shape(starts))
    rest = tf.strings.regex_replace(texts, f"^{SPACES}+", "")
    starts += tf.strings.length(texts, "UTF8_CHAR") - tf.strings.length(rest, "UTF8_CHAR")
    return tf.strings.regex_replace(rest, f"{SPACES}+$", ""), starts


def _without_repeats(texts: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Returns scores `[B, N]`, with later repeats of a text ruled out."""
    equal = texts[:, :, None] == texts[:, None]
    places = tf.range(tf.shape(texts)[1])
    repeated = tf.reduce_any(equal & (places < places[:, None]), axis=2)
    return tf.where(repeated, _IMPOSSIBLE, scores)
