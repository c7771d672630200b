"""Loads what is inspected: models, and rows of texts or records to run them on."""

from __future__ import annotations

import csv
import dataclasses
import io
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from albert_tf.answers.rows import pair_features, stack
from albert_tf.config import AlbertConfig
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.model.albert import AlbertModel
from albert_tf.records import input_files
from albert_tf.records.input_files import untuned
from albert_tf.records.spec import pretraining_spec
from albert_tf.storage import files, protobuf
from albert_tf.storage.text_files import utf8_lines
from albert_tf.text.tokenization import Tokenizer
from albert_tf.types import Array

Row = dict[str, np.ndarray]
_Item = TypeVar("_Item")
_FEATURES = ("input_ids", "input_mask", "segment_ids")
# Features of records that can't be used -> why, and what to do.
_STRANGERS = {
    "starts": "has no masks: give records that the generator made with `masking=static`",
    "cls_positions": "packs several examples into a row: give records that the generator made "
    "with `max_examples_per_row=1`",
}


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns the text of a .csv file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


def sample(items: Iterable[_Item], most: int) -> list[_Item]:
    """Returns a uniform sample of at most `most` items, in their order (reservoir sampling)."""
    drawn = random.Random(0)
    kept: list[tuple[int, _Item]] = []
    for number, item in enumerate(items):
        # The n-th item replaces a random one with probability most / n.
        if number < most:
            kept.append((number, item))
        elif (place := drawn.randrange(number + 1)) < most:
            kept[place] = (number, item)
    return [item for _, item in sorted(kept, key=lambda pair: pair[0])]


def texts(paths: Sequence[str]) -> Iterator[str]:
    """Yields the non-empty lines of text files."""
    empty = True
    for path in paths:
        for _, line in utf8_lines(path):
            if line.strip():
                empty = False
                yield line.strip()
    if empty:
        raise ValueError(f"{', '.join(paths)}: expected lines of text, got none")


def text_rows(lines: Iterable[str], tokenizer: Tokenizer, max_seq_length: int) -> list[Row]:
    """Returns a row for each text, cut at `max_seq_length`."""
    return [pair_features(tokenizer, t, None, max_seq_length) for t in lines]


def are_records(paths: Sequence[str]) -> bool:
    """Whether files hold records, not text, judging by their first bytes."""
    found = set()
    for path in paths:
        with files.open_bytes(path) as file:
            begin = file.read(12)
        # A record begins with its length and the checksum of the length.
        found.add(len(begin) == 12 and protobuf.masked_checksum(begin[:8]) == begin[8:])
    if len(found) > 1:
        raise ValueError(
            f"{', '.join(paths)}: some are records, some are not: give only one of the two"
        )
    return found.pop()


def record_rows(
    paths: Sequence[str], config: AlbertConfig, max_seq_length: int, most: int
) -> list[dict[str, np.ndarray]]:
    """Returns a sample of pre-training records, masked as they are stored.

    They have `input_ids`, `input_mask`, `segment_ids` `<int32>[S]` and `sentence_order_labels`
    `<int32>[]`; `max_seq_length` must be the length of their rows.
    """
    spec = pretraining_spec(
        max_seq_length,
        input_files.count_prediction_slots(paths[0]),
        vocab_size=config.vocab_size,
        type_vocab_size=config.type_vocab_size,
    )
    # Recognise records without masks, and packed ones, by a feature's name, and refuse them.
    spec = dataclasses.replace(spec, strangers=_STRANGERS)
    input_files.check_features(paths, spec)
    with input_files.naming_bad_records(paths, spec):
        records = untuned(tf.data.TFRecordDataset(list(paths))).as_numpy_iterator()
        # Sample serialized records, and parse only what is kept.
        kept = sample(records, most)
        found = {name: np.asarray(value) for name, value in spec.parse(tf.constant(kept)).items()}
    names = (*_FEATURES, "sentence_order_labels")
    return [{name: found[name][i] for name in names} for i in range(len(kept))]


def batches(rows: Sequence[Any], size: int = 32) -> Iterator[tuple[int, Row]]:
    """Yields batches of one shape: the number of their real rows, and features `<int32>[size, S]`.

    S is the length of the longest row; rows of padding fill up the last batch.
    """
    longest = max(row["input_ids"].shape[-1] for row in rows)
    for begin in range(0, len(rows), size):
        part = [{name: row[name] for name in _FEATURES} for row in rows[begin : begin + size]]
        stacked = stack(part, longest)
        missing = ((0, size - len(part)), (0, 0))
        yield len(part), {name: np.pad(value, missing) for name, value in stacked.items()}


def load_encoder(stored: ModelLocation) -> AlbertModel:
    """Returns the encoder of a stored model, without its heads."""
    model = AlbertModel(stored.config())
    stored.fill(model)  # Only the pooler may be missing, and no command looks at it.
    return model


def check_extra_layers(config: AlbertConfig, extra_layers: int) -> None:
    """Checks that all layers share one block, if more of them are asked for."""
    if extra_layers and max(config.num_attention_groups, config.num_ffn_groups) > 1:
        raise ValueError(
            "`extra_layers` applies the block that all layers share; this model has "
            f"{config.num_attention_groups} groups of attention and {config.num_ffn_groups} of "
            "feed-forward layers: leave it out"
        )


def lengthened(model: AlbertModel, extra_layers: int) -> AlbertModel:
    """Returns a model with the same weights that applies its shared block more often."""
    depth = model.config.num_hidden_layers + extra_layers
    longer = AlbertModel(dataclasses.replace(model.config, num_hidden_layers=depth))
    longer.set_weights(model.get_weights())
    return longer


def layer_states(model: AlbertModel, features: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the input of the first layer (after the map from E to H) and each layer's output.

    They are L + 1 arrays `<float32>[B, S, H]`; a layer is all its `inner_group_num` blocks.
    """
    states = block_states(model, features)[:: model.config.inner_group_num]
    return [np.asarray(state) for state in states]


def block_states(model: AlbertModel, features: Mapping[str, np.ndarray]) -> list[Array]:
    """Returns the input of each block, and the last one's output; see layer_states."""
    outputs = model(features, training=False)
    # The model returns no output of the map from E to H: compute it again.
    first = model.encoder.to_hidden_size(outputs["embedding_output"])
    return [first, *outputs["all_encoder_layers"]]
