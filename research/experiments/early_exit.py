"""A pilot of early exit: may a model stop at the layer where its answer has settled?

    python -m research.experiments.early_exit --checkpoint albert_small --folder faster

One head reads every layer, since all layers share their weights; the loss of a layer is weighted by
its depth. It is compared with models of fewer layers that benchmarks/faster.py has trained in the
folder, with the same tasks, seeds, steps and teacher, at the same mean time. A threshold is chosen
on one half of the dev set and judged on the other. Unless --layer_times say so, deciding takes no
time: then early exit gains at most what is shown. What has been trained is not trained again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from albert_tf.answers.kind import softmax
from albert_tf.console import tensorflow_logs
from research.experiments import intervals

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "benchmarks"))
import faster

# What a layer must show so that its answer is taken.
WAYS = ("confidence", "entropy", "patience")
# Points by which it must beat fewer layers, on two tasks, to be worth building.
WORTH = 0.5


# --- training -------------------------------------------------------------------------------


def every_layer(classifier: Any) -> Any:
    """Returns a classifier's model with logits `<float32>[B, L, C]`: its head on each layer."""
    import keras
    from keras import ops

    class EveryLayer(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = classifier

        def call(self, inputs: dict[str, Any], training: bool | None = None) -> Any:
            outputs, seed = self.classifier.encode(inputs, training, None)
            firsts = ops.stack([x[:, 0] for x in outputs["all_encoder_layers"]], axis=1)
            return self.classifier.classifier(self.classifier.albert.pooler(firsts), seed=seed)

    return EveryLayer()


def loss_of_layers(is_taught: bool) -> Any:
    """Returns the loss of logits `[B, L, C]`, given labels and a teacher's shares `[B, 1 + C]`."""
    from keras import ops

    from albert_tf.tasks import losses

    def loss(targets: Any, logits: Any) -> Any:
        count = logits.shape[1]
        # The same label at each layer.
        targets = ops.repeat(targets[:, None], count, axis=1)
        labels, shares = ops.cast(targets[..., 0], "int32"), targets[..., 1:]
        found = losses.position_loss(labels, ops.log_softmax(logits, axis=-1))
        if is_taught:  # As by default in albert-finetune.
            found = losses.Distillation(0.5, 2.0).mix(found, shares, logits)
        weights = np.arange(1, count + 1, dtype="float32") / (count * (count + 1) / 2)
        return ops.mean(ops.sum(found * weights, axis=1))

    return loss


def read(
    plan: faster.Plan, task: faster.Task, split: str
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the features `<int32>[N, S]` of a task's "train" or "dev", and labels `[N]`."""
    import albert_tf
    from albert_tf.tasks import glue

    preprocess = albert_tf.Preprocessor.from_weights(
        plan.checkpoint, max_seq_length=task.max_seq_length
    )
    examples = glue.read_glue(task.name, str(plan.folder / "glue"), split)
    pairs = [example.text_b for example in examples]
    features = preprocess([e.text_a for e in examples], pairs if pairs[0] else None)
    return features, np.array([example.label for example in examples], "float32")


def train(
    plan: faster.Plan, task: faster.Task, seed: int, is_taught: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Trains one model; returns the dev set's labels `[N]` and logits `[N, L, C]`."""
    import keras

    import albert_tf

    path = plan.folder / f"exit-{task.name}-{seed}{'-taught' if is_taught else ''}.npz"
    if path.exists():
        with np.load(path) as kept:
            return kept["labels"], kept["logits"]
    keras.utils.set_random_seed(seed)
    features, labels = read(plan, task, "train")
    targets = np.zeros([len(labels), 3], "float32")
    targets[:, 0] = labels
    if is_taught:
        whole = faster.Run(task, seed, plan.depths[0]).name
        teacher = albert_tf.AlbertForSequenceClassification.from_weights(plan.folder / whole)
        targets[:, 1:] = softmax(_predict(teacher, features))
    classifier = albert_tf.AlbertForSequenceClassification.from_weights(
        plan.checkpoint, num_labels=2
    )
    model = every_layer(classifier)
    optimizer = albert_tf.optimization.create_optimizer(
        task.learning_rate,
        num_train_steps=task.train_step,
        num_warmup_steps=task.train_step // 10,
    )
    # XLA would compile a step for each length.
    model.compile(optimizer, loss_of_layers(is_taught), jit_compile=False)
    lengths = features["input_mask"].sum(axis=1)
    for rows in _batches(lengths, task, np.random.default_rng(seed)):
        model.train_on_batch(_cut(features, rows), targets[rows])
    features, labels = read(plan, task, "dev")
    logits = _predict(model, features)
    np.savez(path, labels=labels, logits=logits)
    print(path.name, file=sys.stderr, flush=True)
    return labels, logits


def _batches(
    lengths: np.ndarray, task: faster.Task, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yields the rows of each step, of one length as far as 16 steps have them.

    Each is read once before any is read again, but for these 16.
    """
    size, count = task.train_batch_size, task.train_step * task.train_batch_size
    epochs = -(-count // len(lengths))
    order = np.concatenate([rng.permutation(len(lengths)) for _ in range(epochs)])[:count]
    for start in range(0, count, 16 * size):
        rows = order[start : start + 16 * size]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        yield from rng.permutation(rows.reshape(-1, size))


def _cut(features: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns rows without the padding that all of them have, but for a few lengths."""
    longest = int(features["input_mask"][rows].sum(axis=1).max())
    return {name: values[rows, : -(-longest // 16) * 16] for name, values in features.items()}


def _predict(model: Any, features: dict[str, np.ndarray]) -> np.ndarray:
    lengths = features["input_mask"].sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    parts = np.array_split(order, -(-len(order) // 64))
    found = np.concatenate([model.predict_on_batch(_cut(features, rows)) for rows in parts])
    return found[np.argsort(order)]


# --- what stopping gives --------------------------------------------------------------------


def exits(logits: np.ndarray, way: str) -> Iterator[np.ndarray]:
    """Yields, for thresholds of a way to stop, the place of the layer `[N]` that answers."""
    shares, count = softmax(logits), logits.shape[1]
    if way == "patience":
        same = np.equal(*(logits.argmax(axis=-1)[:, part] for part in (slice(1, None), slice(-1))))
        for patience in range(1, count):
            run, stops = np.zeros(len(logits), int), np.zeros(logits.shape[:2], bool)
            for layer in range(1, count):
                run = np.where(same[:, layer - 1], run + 1, 0)
                stops[:, layer] = run >= patience
            yield _first(stops)
        return
    entropy = -(shares * np.log(np.maximum(shares, 1e-30))).sum(axis=-1)
    signal = shares.max(axis=-1) if way == "confidence" else -entropy
    # The last layer's own signal decides nothing. With the last threshold it always answers.
    for threshold in (*np.quantile(signal[:, :-1], np.linspace(0, 1, 101)), np.inf):
        yield _first(signal >= threshold)


def _first(stops: np.ndarray) -> np.ndarray:
    stops[:, -1] = True
    return stops.argmax(axis=1)


def within(
    task: faster.Task, labels: np.ndarray, logits: np.ndarray, way: str, layers: float
) -> float:
    """Returns the score of a way to stop after a mean of so many layers or fewer, NaN if it can't.

    Either half of the examples is answered with the threshold that is best on the other.
    """
    places = np.stack(list(exits(logits, way)))
    answers = logits.argmax(axis=-1)[np.arange(len(labels)), places]
    taken = np.empty(len(labels), int)
    for half in (slice(0, None, 2), slice(1, None, 2)):
        other = slice(1 - half.start, None, 2)
        counts = (1 + places[:, other]).sum(axis=1)
        allowed = [
            (task.score(labels[other], answers[i, other]), counts[i], i)
            for i in np.flatnonzero(counts <= layers * len(labels[other]))
        ]
        if not allowed:
            return np.nan
        taken[half] = answers[max(allowed)[-1], half]
    return task.score(labels, taken)


def report(
    plan: faster.Plan, tasks: list[faster.Task], seeds: int, layer_times: Sequence[float] = ()
) -> list[str]:
    """Returns a table, and a sentence on whether early exit is worth building.

    Args:
      plan: What the models have in common.
      tasks: On which they were trained.
      seeds: How many there are of each.
      layer_times: What a layer takes that may be the last, in layers of each model of fewer;
        by default as much as one of theirs.
    """
    header = ["task", "time, in layers", "fewer layers, a teacher", *WAYS, "gain"]
    lines = [f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
    won = []
    for task in tasks:
        gains = []
        models = {
            is_taught: [train(plan, task, seed, is_taught) for seed in range(seeds)]
            for is_taught in (False, True)
        }
        depths = plan.depths[1:]
        for depth, layer_time in zip(depths, layer_times or np.ones(len(depths)), strict=True):
            runs = [faster.Run(task, seed, depth, is_taught=True) for seed in range(seeds)]
            kept = [json.loads((plan.folder / r.name / "scores.json").read_text()) for r in runs]
            fewer = np.array([scores[faster.FORMATS[0]] for scores in kept])
            best = {
                (way, is_taught): np.array(
                    [within(task, *model, way, depth / layer_time) for model in models[is_taught]]
                )
                for way, is_taught in itertools.product(WAYS, models)
            }
            shown = [
                " / ".join(f"{best[way, is_taught].mean():.1f}" for is_taught in models)
                for way in WAYS
            ]
            top = max(best.values(), key=lambda scores: scores.mean())
            verdict = intervals.judge((top - fewer).tolist(), effect=WORTH)
            gains.append(verdict.gain)
            band = "" if verdict.low is None else f" ({verdict.low:+.1f} to {verdict.high:+.1f})"
            cells = [task.name, str(depth), f"{fewer.mean():.1f}", *shown]
            lines.append(f"| {' | '.join(cells)} | {verdict.gain:+.1f}{band} |")
        if any(gain >= WORTH for gain in gains):
            won.append(task.name)
    lines += ["", f"Early exit gains {WORTH} points or more on: {', '.join(won) or 'no task'}."]
    for task in tasks:
        by_layer = [
            " ".join(
                f"{np.mean([task.score(y, z[:, layer].argmax(-1)) for y, z in models]):.1f}"
                for layer in range(plan.depths[0])
            )
            for models in (
                [train(plan, task, seed, is_taught) for seed in range(seeds)]
                for is_taught in (False, True)
            )
        ]
        lines.append(f"{task.name}, each layer: {by_layer[0]}; with a teacher {by_layer[1]}")
    return lines


def main() -> None:
    """Trains, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    faster.add_flags(parser)
    parser.add_argument(
        "--layer_times",
        type=float,
        nargs="+",
        default=[],
        help="What a layer takes that may be the last, in layers of each model of fewer.",
    )
    args = parser.parse_args()
    tensorflow_logs.import_tensorflow()
    plan, tasks = faster.planned(args)
    print("\n".join(report(plan, tasks, args.seeds, args.layer_times)))


if __name__ == "__main__":
    main()
