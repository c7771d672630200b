"""A squad_v2 model -> a span model, the only kind that Hugging Face has.

There start and end are each a linear map of the hidden states. The start is the squad_v2 model's;
its end, a small network that is given the start, is replaced by the linear map nearest to it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from albert_tf import conversion
from albert_tf.conversion import layouts
from albert_tf.conversion.names import ENCODER, POOLER
from albert_tf.model.finetuning import AlbertForQuestionAnsweringV2
from albert_tf.tasks import metrics, supervised_run
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.question_answering import Predictions, SquadV1Task, SquadV2Task, answer_texts
from albert_tf.tasks.squad_text import SquadExample
from albert_tf.tasks.supervised_run import Split, SupervisedRun
from albert_tf.training import length_buckets
from albert_tf.training.row_outputs import RowOutputs
from albert_tf.types import Features

# Windows held in memory at a time: at most 2.4 GB for 384 positions of width 768.
MOST_WINDOWS = 2000
# Weight of the squared map in the fit, per variance of the hidden states: far less than what an
# end decides, and enough where fewer windows than dimensions would leave the map undetermined.
_RIDGE = 1e-3
# Newton's method ends where the loss can fall by about this many nats, after some 10 steps.
_TOLERANCE = 1e-9
_MOST_STEPS = 100
_KERNEL, _BIAS = "cls/squad/output_weights", "cls/squad/output_bias"


class Window(NamedTuple):
    """The P positions of a window where an answer from its best start can end, and [CLS].

    Attributes:
      hidden: `<float32>[P, H]`, the encoder's output.
      ends: `<float32>[P]`, the probability of each of these ends, given that start.
    """

    hidden: np.ndarray
    ends: np.ndarray


class SpanTask(SquadV1Task):
    """SQuAD with a span model that answers as Hugging Face's pipeline does: from the paragraph.

    Args: see SquadTask.
    """

    def predictions(
        self, examples: Sequence[SquadExample], features: FeatureTable, outputs: Any
    ) -> Predictions:
        """Returns the best answers; positions that `p_mask` excludes are none."""
        excluded = features.sequences["p_mask"] > 0
        rows = np.repeat(np.arange(len(features.lengths)), features.lengths)[excluded]
        positions = np.concatenate([np.arange(n) for n in features.lengths])[excluded]
        masked = {name: np.array(value) for name, value in outputs.items()}
        for value in masked.values():
            value[rows, positions] = -np.inf
        return super().predictions(examples, features, masked)


def make(
    run: SupervisedRun, fitted_on: Split, measured_on: Split | None
) -> tuple[dict[str, np.ndarray], str]:
    """Makes a span model of a squad_v2 model.

    Args:
      run: A run of squad_v2; its trainer has the weights.
      fitted_on: Its end is fitted on at most MOST_WINDOWS windows of this split.
      measured_on: What is lost is measured on this one, of other examples; None to measure on the
        first.

    Returns:
      Weights by the release's names, and a text that names what is lost.
    """
    windows = _sample(run, fitted_on)
    end, count = fit_end(windows), len(windows)
    named = conversion.named_weights(run.trainer.model)
    stored = {name: np.asarray(value) for name, value in named.items()}
    span_weights = weights(stored, end)
    note = (
        f"A span model made from a squad_v2 model: its encoder and its start are unchanged; its "
        f'end is a linear map fitted on {count} windows. Lost are the score of "no '
        "answer\" (answer_class/) and the end's dependence on the start (end_logits/). "
    )
    if measured_on:
        windows.clear()  # So that never two samples are in memory.
        windows = _sample(run, measured_on)
    where = "the windows it was fitted on"
    if measured_on:
        where = f"{len(windows)} windows of evaluation data"
    note += (
        f"The likeliest end is the squad_v2 model's in {agreement(windows, end):.1%} of {where}."
    )
    if measured_on and any(example.answers for example in measured_on.examples):
        count, before, after = _answer_scores(run, measured_on, span_weights)
        changes = (f"{name} {value:.2f} -> {after[name]:.2f}" for name, value in before.items())
        note += f" On {count} answerable questions, always answered: {', '.join(changes)}."
    return span_weights, note


def _sample(run: SupervisedRun, split: Split) -> list[Window]:
    """Returns MOST_WINDOWS windows of a split, or all if there are fewer.

    Args:
      run: A run of squad_v2; its trainer has the weights.
      split: The split, with a batch size that its devices can share.
    """
    model, devices = run.trainer.model, run.trainer.devices
    table = split.features.select(run.task.inputs)
    rows = np.random.default_rng(0).permutation(len(table.lengths))[:MOST_WINDOWS]
    plan = length_buckets.evaluation_batches(
        table.lengths[rows], split.batch_size, split.static_lengths
    )
    plan = dataclasses.replace(plan, rows=rows[plan.rows])
    assert isinstance(run.task, SquadV2Task)
    encode = devices.gathered(
        model, functools.partial(_encode, model, run.task.squad.max_answer_length)
    )
    windows = []
    for input_fn in table.evaluation_inputs(plan):
        for batch in devices.batches(input_fn):
            for hidden, ends, excluded, weight in zip(*encode(batch), strict=True):
                if weight > 0:
                    windows.append(Window(hidden[excluded == 0], ends[excluded == 0]))
    return windows


def _encode(
    model: AlbertForQuestionAnsweringV2, max_answer_length: int, features: Features
) -> tuple[Any, ...]:
    """Returns hidden states `[B, S, H]`, ends `[B, S]`, what is no end, and weights `[B]`."""
    p_mask = features["p_mask"] > 0
    hidden = model.albert(features, training=False)["sequence_output"]
    starts = ops.argmax(model.span(hidden, p_mask), axis=-1)[:, None]
    # A start at [CLS] means no answer: all ends compete with [CLS]. Of any other start, those in
    # its reach do, and [CLS]: no others can become its answer.
    distances = ops.arange(ops.shape(p_mask)[1], dtype=starts.dtype)[None] - starts
    too_far = (distances < 0) | (distances >= max_answer_length)
    excluded = p_mask | (too_far & (starts > 0) & (distances + starts > 0))
    ends = ops.softmax(model.span.end_logits(hidden, starts, excluded)[:, 0], axis=-1)
    hidden, excluded = ops.cast(hidden, "float32"), ops.cast(excluded, "int32")
    return hidden, ends, excluded, features["example_weights"]


def fit_end(windows: Sequence[Window]) -> np.ndarray:
    """Fits ends by a linear map of the hidden states.

    It minimises the mean cross entropy of softmax(hidden @ map) to the ends, plus a small ridge: a
    convex problem, solved by Newton's method with step halving. A bias would change nothing.

    Args:
      windows: At least one.

    Returns:
      The map, `<float32>[H]`.
    """
    ridge = _RIDGE * float(np.mean([window.hidden.var(axis=0).mean() for window in windows]))
    solution = np.zeros(windows[0].hidden.shape[1])
    for _ in range(_MOST_STEPS):
        gradient, hessian = _derivatives(windows, solution, ridge)
        step = np.linalg.solve(hessian, gradient)
        decrease = float(gradient @ step)
        if decrease < _TOLERANCE:
            break
        loss, size = _loss(windows, solution, ridge), 1.0
        while _loss(windows, solution - size * step, ridge) > loss - size * decrease / 4:
            size /= 2
        solution = solution - size * step
    return solution.astype(np.float32)


def _loss(windows: Sequence[Window], solution: np.ndarray, ridge: float) -> float:
    losses = [-window.ends @ _log_softmax(window.hidden @ solution) for window in windows]
    return float(np.mean(losses) + ridge / 2 * solution @ solution)


def _derivatives(
    windows: Sequence[Window], solution: np.ndarray, ridge: float
) -> tuple[np.ndarray, np.ndarray]:
    width = len(solution)
    gradient, hessian = np.zeros(width), np.zeros((width, width))
    for hidden, ends in windows:
        probabilities = np.exp(_log_softmax(hidden @ solution))
        gradient += (probabilities - ends) @ hidden
        # The covariance of the hidden states under these probabilities.
        centred = hidden - (probabilities @ hidden).astype(np.float32)
        hessian += (centred.T * probabilities.astype(np.float32)) @ centred
    count = len(windows)
    return gradient / count + ridge * solution, hessian / count + ridge * np.eye(width)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max()
    return logits - np.log(np.exp(logits).sum())


def agreement(windows: Sequence[Window], end: np.ndarray) -> float:
    """Returns the share of windows whose likeliest end is the same by a map as in the model."""
    return float(np.mean([(w.hidden @ end).argmax() == w.ends.argmax() for w in windows]))


def weights(stored: Mapping[str, np.ndarray], end: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the span model's weights by the release's names, without the unused pooler.

    Args:
      stored: The squad_v2 model's, likewise.
      end: The map `<float32>[H]` that gives the end.
    """
    kernel = np.stack([stored["start_logits/dense/kernel"][:, 0], end])
    bias = np.append(stored["start_logits/dense/bias"], np.float32(0))
    return {**_encoder(stored), _KERNEL: kernel, _BIAS: bias}


def _encoder(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: value
        for name, value in stored.items()
        if name.startswith(ENCODER) and not name.startswith(POOLER)
    }


def holds_span_model_of(directory: str, path: str) -> bool:
    """Whether a directory holds a span model made from a stored squad_v2 model.

    Args:
      directory: Any path; it need not exist.
      path: What `load_weights` takes.
    """
    try:
        held = layouts.find(directory).read_weights(directory)
        expected = weights(layouts.find(path).read_weights(path), held[_KERNEL][1])
    except (FileNotFoundError, IndexError, KeyError, ValueError):
        return False
    return held.keys() == expected.keys() and all(
        np.array_equal(value, held[name]) for name, value in expected.items()
    )


def _answer_scores(
    run: SupervisedRun, split: Split, span_weights: Mapping[str, np.ndarray]
) -> tuple[int, dict[str, float], dict[str, float]]:
    """Returns the number of answerable questions, and their scores before and after.

    Before are the squad_v2 model's best answers whatever its null odds, after the span model's.
    """
    task, devices = run.task, run.trainer.devices
    assert isinstance(task, SquadV2Task)
    span_task = SpanTask(task.squad, task.options, task.tokenizer, task.max_seq_length)
    with devices.scope():
        model = span_task.build_model()
    for name, variable in conversion.named_weights(model).items():
        if name in span_weights:
            variable.assign(span_weights[name])
    answers = answer_texts([example for example in split.examples if example.answers])
    outputs = (RowOutputs(devices, run.trainer.model), RowOutputs(devices, model))
    before, after = (
        metrics.squad_v1_scores(supervised_run.predict(*pair, split).texts, answers)
        for pair in zip((task, span_task), outputs, strict=True)
    )
    return len(answers), before, after
