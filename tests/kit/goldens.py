"""The release's tiny models and small SQuAD files, and what it computed of them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

import albert_tf
from albert_tf.training.optimizers import create_optimizer
from tests.kit import tolerances

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "encoder"
OPTIM = FOLDER.parent / "optim"
VARIANTS = ("base", "groups2", "groups2_inner2", "groups3", "inner2", "same_width_relu")

# The examples packed by hand, with a width and slots that no other axis has.
LENGTHS = (20, 12, 17, 4)
# Each row's examples: the first row has them out of order, the second has empty slots.
ROWS = ((3, 1, 2), (0,))
WIDTH, PREDICTIONS, SLOTS = 37, 11, 3


def arrays(file: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads an .npz whose names hold | for /."""
    with np.load(file) as stored:
        return {name.replace("|", "/"): stored[name] for name in stored.files}


def features(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames the release's inputs to the names of this library's features."""
    inputs = dict(inputs)
    inputs["sentence_order_labels"] = inputs.pop("next_sentence_labels")[:, 0]
    return inputs


def inputs(variant: str) -> dict[str, np.ndarray]:
    return features(arrays(FOLDER / variant / "inputs.npz"))


def packed(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Puts examples one after the other, value by value; padding gets other values than before."""
    tokens = ("input_ids", "input_mask", "segment_ids")
    masks = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    widths = dict.fromkeys(tokens, WIDTH) | dict.fromkeys(masks, PREDICTIONS)
    rows = {name: np.zeros((len(ROWS), w), inputs[name].dtype) for name, w in widths.items()}
    rows["input_ids"] += 7
    rows["sentence_order_labels"] = np.ones((len(ROWS), SLOTS), "int32")
    rows["sentence_order_weights"] = np.zeros((len(ROWS), SLOTS), "float32")
    rows["cls_positions"] = np.zeros((len(ROWS), SLOTS), "int32")
    for row, members in enumerate(ROWS):
        begin = predictions = 0
        for slot, example in enumerate(members):
            rows["cls_positions"][row, slot] = begin
            rows["sentence_order_weights"][row, slot] = 1
            rows["sentence_order_labels"][row, slot] = inputs["sentence_order_labels"][example]
            for i in range(LENGTHS[example]):
                for name in tokens:
                    rows[name][row, begin + i] = inputs[name][example, i]
            for i in np.flatnonzero(inputs["masked_lm_weights"][example]):
                for name in masks:
                    rows[name][row, predictions] = inputs[name][example, i]
                rows["masked_lm_positions"][row, predictions] += begin
                predictions += 1
            begin += LENGTHS[example]
    return rows


def outputs(variant: str) -> dict[str, np.ndarray]:
    return arrays(FOLDER / variant / "outputs.npz")


def config(variant: str, **changes: Any) -> albert_tf.AlbertConfig:
    stored = albert_tf.AlbertConfig.from_json_file(FOLDER / variant / "albert_config.json")
    return dataclasses.replace(stored, **changes)


def checkpoint(variant: str) -> str:
    return str(FOLDER / variant / "model.ckpt-best")


def pretrained(variant: str, recompute: bool = False, dtype: str = "float32", **changes: Any):
    """Returns an AlbertForPreTraining that holds the release's weights, all of its shapes."""
    released = albert_tf.AlbertForPreTraining(config(variant))
    albert_tf.load_weights(released, checkpoint(variant))
    changed = config(variant, **changes)
    model = albert_tf.AlbertForPreTraining(changed, recompute=recompute, dtype=dtype)
    model.set_weights(released.get_weights())
    return model


def trajectory(case: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns settings and losses of the release's ten steps, and its weights after some."""
    stored = json.loads((OPTIM / "trajectories.json").read_text())
    return stored[case], arrays(OPTIM / f"{case}_params.npz")


def batches() -> list[dict[str, np.ndarray]]:
    """Returns the features of each of those steps."""
    stored = arrays(OPTIM / "batches.npz")
    steps = sorted({name.partition("/")[0] for name in stored})
    parts = [{k: v for k, v in stored.items() if k.startswith(f"{step}/")} for step in steps]
    return [features({k.partition("/")[2]: v for k, v in part.items()}) for part in parts]


def optimizer(settings: dict[str, Any], **changes: Any):
    names = ("init_lr", "num_train_steps", "num_warmup_steps", "optimizer", "poly_power")
    names += ("start_warmup_step",)
    return create_optimizer(**{name: settings[name] for name in names}, **changes)


def check_weights(params: dict[str, np.ndarray], step: int, weights: dict[str, Any]) -> None:
    """Compares weights with those of a trajectory after a step, if it has them."""
    prefix = f"after{step}/"
    expected = {k.removeprefix(prefix): v for k, v in params.items() if k.startswith(prefix)}
    assert not expected or set(expected) == set(weights)
    for name, value in expected.items():
        tolerances.assert_weight(name, weights[name], value)


def squad_settings(golden: pathlib.Path) -> dict[str, int]:
    stored = json.loads((golden / "features/squad_settings.json").read_text())
    return {name: stored[name] for name in ("max_seq_length", "doc_stride", "max_query_length")}


def squad_rows(golden: pathlib.Path, version: str, split: str) -> list[dict]:
    path = golden / f"features/squad_{version}_{split}_features.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def squad_windows(golden: pathlib.Path, version: str) -> list[tuple[int, dict[str, Any]]]:
    """Returns the stored windows of a dev set: each one's question, and its part of the context."""
    return [(row["example_index"], _window(row)) for row in squad_rows(golden, version, "dev")]


def _window(row: dict) -> dict[str, Any]:
    offset = row["tokens"].index("[SEP]") + 1
    places = {
        "char_starts": row["tok_start_to_orig_index"],
        "char_ends": row["tok_end_to_orig_index"],
        "is_max_context": [best for _, best in row["token_is_max_context"]],
    }
    padded = {name: np.array([0] * offset + [*v, 0]) for name, v in places.items()}
    return {"doc_offset": offset, **padded}


def squad_answers(golden: pathlib.Path, name: str) -> Any:
    """Returns the content of one of the files of answers and scores."""
    return json.loads((golden / "squad_eval/answers.json").read_text())[name]
