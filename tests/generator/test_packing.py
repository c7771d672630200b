"""Packing: nothing is lost or mixed, rows hold what fits, little room is left."""

from __future__ import annotations

import numpy as np
import pytest

from albert_tf.generator.examples import assign_rows, pack_rows
from albert_tf.records.spec import pretraining_spec

COUNT, S, P, K = 211, 43, 7, 5
PAD = 3


def draw_examples() -> dict[str, np.ndarray]:
    """Examples whose values are all different, so that none can stand in for another."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(4 + rng.geometric(0.07, COUNT), S)
    lengths[:3] = 5, S, 5
    kept = np.arange(S) < lengths[:, None]
    predictions = rng.integers(1, np.minimum(P, lengths // 3) + 1)
    filled = np.arange(P) < predictions[:, None]
    drawn = np.array([np.sort(rng.choice(length - 1, P)) + 1 for length in np.maximum(lengths, P)])
    return {
        "input_ids": np.where(kept, 10 + rng.permutation(COUNT * S).reshape(COUNT, S), PAD),
        "input_mask": kept.astype("int32"),
        "segment_ids": (kept & (np.arange(S) > lengths[:, None] // 2)).astype("int32"),
        "token_boundary": (kept & (rng.random((COUNT, S)) < 0.5)).astype("int32"),
        "masked_lm_positions": (drawn % lengths[:, None] * filled).astype("int32"),
        "masked_lm_ids": (10 + rng.permutation(COUNT * P).reshape(COUNT, P)) * filled,
        "masked_lm_weights": filled.astype("float32"),
        "sentence_order_labels": rng.integers(0, 2, COUNT).astype("int32"),
    }


@pytest.fixture(scope="module")
def examples() -> dict[str, np.ndarray]:
    return draw_examples()


@pytest.fixture(scope="module")
def packed(examples) -> dict[str, np.ndarray]:
    return pack_rows(examples, K, PAD)


def unpack(packed: dict[str, np.ndarray]) -> list[dict[str, list]]:
    """Cuts rows into examples, without padding: an example ends where the next one begins."""
    found = []
    for row in range(len(packed["input_ids"])):
        slots = np.flatnonzero(packed["sentence_order_weights"][row])
        starts = packed["cls_positions"][row, slots].tolist()
        ends = [*starts[1:], packed["input_mask"][row].sum()]
        for slot, start, end in zip(slots, starts, ends, strict=True):
            positions = packed["masked_lm_positions"][row]
            weights = packed["masked_lm_weights"][row] > 0
            inside = np.flatnonzero(weights & (start <= positions) & (positions < end))
            found.append(
                {
                    **{
                        name: packed[name][row, start:end].tolist()
                        for name in ("input_ids", "input_mask", "segment_ids", "token_boundary")
                    },
                    "masked_lm_positions": (positions[inside] - start).tolist(),
                    "masked_lm_ids": packed["masked_lm_ids"][row, inside].tolist(),
                    "label": packed["sentence_order_labels"][row, slot],
                }
            )
    return found


def test_every_example_is_there_once_and_whole(examples, packed):
    expected = []
    for i in range(COUNT):
        length, count = examples["input_mask"][i].sum(), int(examples["masked_lm_weights"][i].sum())
        expected.append(
            {
                **{
                    name: examples[name][i, :length].tolist()
                    for name in ("input_ids", "input_mask", "segment_ids", "token_boundary")
                },
                "masked_lm_positions": examples["masked_lm_positions"][i, :count].tolist(),
                "masked_lm_ids": examples["masked_lm_ids"][i, :count].tolist(),
                "label": examples["sentence_order_labels"][i],
            }
        )
    found = unpack(packed)
    assert len(found) == COUNT
    by_ids = {tuple(example["input_ids"]): example for example in found}
    assert [by_ids[tuple(example["input_ids"])] for example in expected] == expected


def test_rows_are_records_and_what_is_free_is_padding(examples, packed):
    spec = pretraining_spec(S, P, K)
    for row in range(len(packed["input_ids"])):
        spec.serialize({name: values[row] for name, values in packed.items()})
    free = packed["input_mask"] == 0
    assert (packed["input_ids"][free] == PAD).all()
    assert not packed["segment_ids"][free].any() and not packed["token_boundary"][free].any()
    empty = packed["masked_lm_weights"] == 0
    assert (
        not packed["masked_lm_ids"][empty].any() and not packed["masked_lm_positions"][empty].any()
    )
    empty = packed["sentence_order_weights"] == 0
    assert empty.any() and not packed["cls_positions"][empty].any()
    assert set(np.diff(packed["input_mask"]).ravel()) == {0, -1}


def test_first_fit_decreasing_by_hand():
    lengths = np.array([4, 3, 9, 6, 2, 5, 1])
    predictions = np.array([1, 1, 1, 2, 1, 1, 1])
    # Longest first into the first row with room for 10 tokens, 3 predictions, 3 examples:
    # 9 opens a row; 6, 5 one each; 4 goes to 6; 3 to 5; 2 to 5 and 3; 1 to 9.
    rows = assign_rows(lengths, predictions, (10, 3), 3)
    assert rows.tolist() == [0, 1, 2, 0, 1, 1, 2]
    # Two examples a row: 2 opens one, where 1 can't go before 9's has it.
    rows = assign_rows(lengths, predictions, (10, 3), 2)
    assert rows.tolist() == [0, 1, 2, 0, 3, 1, 2]
    # Two predictions a row: 6 has them all.
    rows = assign_rows(lengths, predictions, (10, 2), 3)
    assert rows.tolist() == [0, 1, 2, 3, 1, 0, 2]


def test_little_room_is_left():
    lengths = np.random.default_rng(5).integers(8, 129, 256)
    rows = assign_rows(lengths, np.ones_like(lengths), (128, 128), 8)
    # Lower bound: the tokens' number of rows. Half of each row was padding before.
    assert rows.max() + 1 <= 1.05 * np.ceil(lengths.sum() / 128)


def test_same_examples_same_rows(examples, packed):
    again = pack_rows(draw_examples(), K, PAD)
    assert again.keys() == packed.keys()
    for name, values in packed.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)


def test_rows_come_in_the_order_of_their_first_examples(examples, packed):
    number = {ids[0]: i for i, ids in enumerate(examples["input_ids"].tolist())}
    members = [
        [number[row_ids[start]] for start in starts[weights > 0]]
        for row_ids, starts, weights in zip(
            packed["input_ids"],
            packed["cls_positions"],
            packed["sentence_order_weights"],
            strict=True,
        )
    ]
    assert all(row == sorted(row) for row in members)
    assert [row[0] for row in members] == sorted(row[0] for row in members)
    assert max(map(len, members)) == K
