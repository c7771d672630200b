"""Answers texts with an exported file, without TensorFlow: what ServedModels do in the graph."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.serving.exported_files import ExportedFile
from albert_tf.serving.settings import LENGTH_MULTIPLE
from albert_tf.tasks import conll, sequence_features, squad_text
from albert_tf.tasks.squad_text import SquadExample, SquadSpan, best_spans
from albert_tf.tasks.table import LABEL_SEPARATOR, THRESHOLD
from albert_tf.text.words import SPACE_MARK, split_words
from albert_tf.types import Features

_MASK = "[MASK]"
# Positions that a model reads at once, and one whose outputs have a number for each piece.
_POSITIONS_AT_ONCE, _POSITIONS_WITH_PIECES = 4096, 512


class TextFunction(abc.ABC):
    """A function of raw texts, with the outputs of the ServedModel of its task.

    Args:
      export: The file.

    Attributes:
      names: The texts that it takes.
      takes_many: Whether the last one is several.
      embeds: Whether it returns a vector of each text.
      depends_on_batch: Whether an answer depends on the texts beside it, beyond rounding.
    """

    names: tuple[str, ...] = ("text",)
    takes_many = embeds = False
    _at_once = _POSITIONS_AT_ONCE

    def __init__(self, export: ExportedFile) -> None:
        self.options, self.labels = export.options, export.labels
        self.tokenizer, self._run = export.vocabulary.tokenizer, export.runner.run
        self.depends_on_batch = export.runner.depends_on_batch
        self.max_seq_length: int = export.options["max_seq_length"]

    @abc.abstractmethod
    def __call__(self, *columns: Any) -> dict[str, np.ndarray]:
        """Maps texts, in the order of `names`, to outputs, strings as bytes."""

    def parts(self, rows: Sequence[Features]) -> Iterator[tuple[Features, Features]]:
        """Yields the features of some rows at a time, as wide as all, and the file's outputs."""
        longest = max(row["input_ids"].shape[-1] for row in rows)
        width = min(-(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, self.max_seq_length)
        size = max(self._at_once // (width * rows[0]["input_ids"][..., 0].size), 1)
        for start in range(0, len(rows), size):
            features = sequence_features.stack(rows[start : start + size], width)
            yield features, self._run(features)

    def outputs(self, rows: Sequence[Features]) -> dict[str, np.ndarray]:
        """Returns the file's outputs for all rows."""
        found = [outputs for _, outputs in self.parts(rows)]
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def join(self, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Makes a sequence of a text's ids."""
        return sequence_features.join_ids(self.tokenizer, ids[: self.max_seq_length - 2])


class _Classifying(TextFunction):
    def __init__(self, export: ExportedFile) -> None:
        super().__init__(export)
        self.names = ("text_a", "text_b") if self.options.get("pairs") else ("text",)

    def __call__(self, *columns: Sequence[str]) -> dict[str, np.ndarray]:
        windows, most = self.options.get("windows"), self.max_seq_length
        rows: list[Features] = []
        firsts = []
        seconds = columns[1] if len(columns) == 2 else [None] * len(columns[0])
        for text, second in zip(columns[0], seconds, strict=True):
            firsts.append(len(rows))
            if windows:
                ids, stride = self.tokenizer.encode(text), self.options["doc_stride"]
                spans = sequence_features.window_spans(len(ids), most - 2, stride)
                rows += [self.join(ids[begin:end]) for begin, end in spans]
            else:
                rows.append(sequence_features.pair_features(self.tokenizer, text, second, most))
        logits = self.outputs(rows)["logits"]

        def of_texts(values: np.ndarray) -> np.ndarray:
            """Combines windows."""
            if windows == "max":
                return np.maximum.reduceat(values, firsts)
            counts = np.diff(firsts, append=len(rows)).astype(np.float32)
            return np.add.reduceat(values, firsts) / counts.reshape(-1, *[1] * (values.ndim - 1))

        if not self.labels:
            return {"score": of_texts(logits[:, 0])}
        probabilities = _sigmoid(logits) if self.options.get("multilabel") else _softmax(logits)
        named = self._named(of_texts(probabilities))
        return named if windows else {"logits": logits, **named}

    def _named(self, probabilities: np.ndarray) -> dict[str, np.ndarray]:
        threshold, names = self.options.get("threshold"), self.labels
        if self.options.get("multilabel"):
            least = THRESHOLD if threshold is None else threshold
            chosen = [[*itertools.compress(names, row >= least)] for row in probabilities]
        elif threshold is not None:
            chosen = [[names[int(row[1] >= threshold)]] for row in probabilities]
        else:
            chosen = [[names[i]] for i in probabilities.argmax(axis=1)]
        answers = {"probabilities": probabilities, "labels": _strings([names] * len(chosen))}
        if threshold is not None:
            answers["threshold"] = np.full(len(chosen), threshold, np.float32)
        return {**answers, "label": _strings(map(LABEL_SEPARATOR.join, chosen))}


class _Tagging(TextFunction):
    def __call__(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Reads words in windows, and makes entities of their tags."""
        room = self.max_seq_length - 2
        rows: list[list[int]] = []
        # Of each word its start and end, and the row and position of its first piece, if any.
        words: list[list[tuple[int, int, tuple[int, int] | None]]] = []
        for text in texts:
            rows.append([])
            words.append([])
            for start, end in split_words(text):
                ids = self.tokenizer.encode(text[start:end], room)
                if len(rows[-1]) + len(ids) > room:
                    rows.append([])
                place = (len(rows) - 1, 1 + len(rows[-1])) if ids else None
                words[-1].append((start, end, place))
                rows[-1] += ids
        probabilities = _softmax(self.outputs([self.join(ids) for ids in rows])["logits"])
        are_entities, unread = conll.are_entities(self.labels), conll.default_tag(self.labels)
        answers = []
        for text, found in zip(texts, words, strict=True):
            spans: list[Any] = []  # Text, kind, start, end, and the probability of each word.
            prefix = kind = ""
            for start, end, place in found:
                shares = probabilities[place] if place else np.eye(len(self.labels))[unread]
                label, share = self.labels[np.argmax(shares)], shares.max()
                before = prefix, kind
                prefix, kind = conll.tag_parts(label) if are_entities else ("", label)
                # As seqeval finds entities.
                if prefix in ("I", "E") and before in (("B", kind), ("I", kind)):
                    first = spans.pop()
                    start, share = first[2], [*first[4], share]
                elif prefix != conll.OUTSIDE:
                    share = [share]
                else:
                    continue
                spans.append((text[start:end].encode(), kind.encode(), start, end, share))
            answers.append([(*span[:4], np.mean(span[4], dtype=np.float32)) for span in spans])
        kinds = ("entities", "types") if are_entities else ("words", "tags")
        columns = {**dict.fromkeys(kinds, b""), "starts": np.int32(0), "ends": np.int32(0)}
        columns["probabilities"] = np.float32(0)
        return {
            name: _padded([[span[i] for span in row] for row in answers], padding)
            for i, (name, padding) in enumerate(columns.items())
        }


class _Choosing(TextFunction):
    names, takes_many = ("context", "endings"), True

    def __call__(
        self, contexts: Sequence[str], endings: Sequence[Sequence[str]]
    ) -> dict[str, np.ndarray]:
        lengths = self.max_seq_length, self.options["max_qa_length"]
        rows = [
            sequence_features.choice_features(self.tokenizer, *pair, *lengths)
            for pair in zip(contexts, endings, strict=True)
        ]
        logits = self.outputs(rows)["logits"]
        choice = np.argmax(logits, axis=1).astype(np.int32)
        return {"logits": logits, "probabilities": _softmax(logits), "choice": choice}


class _Filling(TextFunction):
    embeds = True
    _at_once = _POSITIONS_WITH_PIECES

    def __call__(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        rows = [self.join(self._ids(text)) for text in texts]
        pieces, probabilities, vectors = [], [], []
        for features, outputs in self.parts(rows):
            is_mask = features["input_ids"] == self.tokenizer.mask_id
            for logits, masked in zip(outputs["masked_lm_logits"], is_mask, strict=True):
                shares = _softmax(logits[masked])
                best = np.argsort(-shares, axis=1, kind="stable")[:, : self.options["top_k"]]
                names = [self.tokenizer.convert_ids_to_tokens(ids) for ids in best.tolist()]
                pieces.append([_strings(row) for row in names])
                probabilities.append([*np.take_along_axis(shares, best, axis=1)])
            keep = features["input_mask"][:, :, None].astype(np.float32)
            vector = {"mean": (outputs["sequence_output"] * keep).sum(axis=1) / keep.sum(axis=1)}
            if "pooled_output" in outputs:
                vector["pooled"] = outputs["pooled_output"]
            if "sentence_order_logits" in outputs:
                vector["swapped"] = _softmax(outputs["sentence_order_logits"])[:, 1]
            vectors.append(vector)
        nothing = np.zeros(self.options["top_k"], np.float32)
        return {
            "pieces": _padded(pieces, _strings([""] * len(nothing))),
            "probabilities": _padded(probabilities, nothing),
            **{name: np.concatenate([part[name] for part in vectors]) for name in vectors[0]},
        }

    def _ids(self, text: str) -> list[int]:
        """Splits a text at each [MASK]; text after it without a space continues its word."""
        tokenizer, found = self.tokenizer, []
        for i, part in enumerate(text.split(_MASK)):
            ids = tokenizer.encode(part, self.max_seq_length)
            if i > 0 and ids and not part[0].isspace():
                (piece,) = tokenizer.convert_ids_to_tokens(ids[:1])
                bare = piece.removeprefix(SPACE_MARK)
                glued = tokenizer.convert_tokens_to_ids([bare]) if bare else []
                if tokenizer.convert_ids_to_tokens(glued) == [bare] * len(glued):
                    ids = [*glued, *ids[1:]]
            found += [tokenizer.mask_id, *ids] if i else ids
        return found


class _Answering(TextFunction):
    names = ("question", "context")

    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> dict[str, np.ndarray]:
        """Scores all windows, and takes the best answers of any of them."""
        examples, windows, rows = [], [], []
        options, threshold = self.options, self.options.get("null_threshold")
        for index, (question, context) in enumerate(zip(questions, contexts, strict=True)):
            examples.append(SquadExample(str(index), question, context, (), False))
            query = self.tokenizer.encode(question, options["max_query_length"])
            ids, offsets = self.tokenizer.encode_with_offsets(context)
            room = self.max_seq_length - 3 - len(query)
            spans = sequence_features.window_spans(len(ids), room, options["doc_stride"])
            best = best_spans(spans, len(ids))
            for number, (begin, end) in enumerate(spans):
                starts, ends = offsets[begin:end].T
                is_best = best[begin:end] == number
                windows.append(SquadSpan(index, len(query) + 2, starts, ends - 1, is_best))
                rows.append(sequence_features.join_ids(self.tokenizer, query, ids[begin:end]))
        count = options["n_best_size"]
        limits = (count, options["max_answer_length"])
        found = squad_text.predict(examples, windows, self.outputs(rows), *limits, True)
        texts, shares = [], []
        for example in examples:
            entries = found.nbest[example.qas_id]
            texts.append([e["text"] for e in entries] + [""] * (count - len(entries)))
            # "" may be a span of white space, or stand for no span at all.
            is_span = entries[0]["start_log_prob"] > -squad_text.NO_WINDOW_NULL_ODDS
            nbest = [entry["probability"] * is_span for entry in entries]
            shares.append(nbest + [0.0] * (count - len(entries)))
        odds = np.array([found.null_odds[each.qas_id] for each in examples], np.float32)
        answered = np.full(len(examples), True) if threshold is None else odds < threshold
        answer = [row[0] if has else "" for row, has in zip(texts, answered, strict=True)]
        outputs = {"answer": _strings(answer), "answers": _strings(texts)}
        outputs["probabilities"] = np.array(shares, np.float32)
        return outputs if threshold is None else {**outputs, "null_odds": odds}


FUNCTIONS: Mapping[str, type[TextFunction]] = {
    "fill_mask": _Filling,
    "classify": _Classifying,
    "tag": _Tagging,
    "choose": _Choosing,
    "answer_v1": _Answering,
    "answer_v2": _Answering,
}


def _softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(logits, 0)) / (1 + np.exp(-np.abs(logits)))


def _strings(texts: Any) -> np.ndarray:
    """Returns strings, or rows of strings, as TensorFlow's tensors give them to NumPy."""
    encoded = [t.encode() if isinstance(t, str) else [each.encode() for each in t] for t in texts]
    return np.array(encoded, object)


def _padded(rows: Sequence[Sequence[Any]], padding: Any) -> np.ndarray:
    """Returns rows of values `<T>[...]` as one array, filled up with a value."""
    longest = max(map(len, rows))
    filled = [[*row, *[padding] * (longest - len(row))] for row in rows]
    kind = object if isinstance(padding, bytes) else np.asarray(padding).dtype
    return np.array(filled, kind).reshape(len(rows), longest, *np.shape(padding))
