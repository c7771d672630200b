"""Measures a trained model by document, and what a fresh linear probe reads from it.

Takes the flags of run_pretraining.py for an evaluation, and evaluates the same rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.console import errors, tensorflow_logs
from albert_tf.console.settings import REQUIRED, run_script, setting
from albert_tf.storage import checkpoint, files

# Most groups of documents: if there are more documents, neighbours share a group.
_MOST_GROUPS = 100
_DIGITS = 4
# Seed of the order of the probe's examples: the same for every model.
_PROBE_SEED = 0


_measurement = functools.partial(setting, group="Measurements")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasurementSettings(PretrainingSettings):
    """The settings of run_pretraining.py, and those of the measurements."""

    documents_file: str = _measurement(REQUIRED, "What corpus.py wrote of input_file.")
    measures_file: str = _measurement(REQUIRED, "JSON file to write.")
    probe_train_file: str | None = _measurement(
        None, "Records to train a probe of the order labels on; none: no probe."
    )
    probe_examples: int = _measurement(
        20000,
        "Number of records, from all over probe_train_file, that the probe is trained on. 20000 "
        "are 150 for each weight of a model with H=128.",
        interval="[2, 2147483647]",
    )


def group_sums(sums: np.ndarray, weights: np.ndarray, documents: np.ndarray) -> list[list[float]]:
    """Returns sum and weight of each group of documents."""
    groups = documents * min(_MOST_GROUPS, documents.max() + 1) // (documents.max() + 1)
    totals = np.stack([np.bincount(groups, values) for values in (sums, weights)], axis=1)
    return totals.round(_DIGITS).tolist()


def _row_measures(model: Any, features: dict[str, Any]) -> dict[str, Any]:
    """Returns sums over each row, with their weights `[B, 2]`; the pooled output; the labels."""
    from keras import ops

    from albert_tf.tasks.pretraining import hits, nll

    outputs = model(features, training=False)

    def sums(labels: Any, logits: Any, weights: Any) -> list[Any]:
        return [
            ops.stack([ops.sum(found * weights, axis=1), ops.sum(weights, axis=1)], axis=1)
            for found in (nll(labels, logits), hits(labels, logits))
        ]

    labels = features["sentence_order_labels"]
    masked_lm = (features["masked_lm_ids"], outputs["masked_lm_logits"])
    lm_loss, lm_accuracy = sums(*masked_lm, features["masked_lm_weights"])
    ones = ops.ones_like(labels, dtype="float32")
    orders = (labels[:, None], outputs["sentence_order_logits"][:, None], ones[:, None])
    order_loss, order_accuracy = sums(*orders)
    return {
        "masked_lm_loss": lm_loss,
        "masked_lm_accuracy": lm_accuracy,
        "sentence_order_loss": order_loss,
        "sentence_order_accuracy": order_accuracy,
        "pooled": outputs["pooled_output"],
        "labels": labels,
        "weights": features.get("example_weights", ones),
    }


def _probe_hits(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Trains a probe on features `<float>[M, F]`; returns 1 where it is right on `test`, else 0."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000))
    return (probe.fit(train, train_labels).predict(test) == labels).astype(np.float64)


def _measure_rows(trainer: Any, input_fn: Any) -> dict[str, np.ndarray]:
    """Returns `_row_measures` of a finite dataset, without the rows that fill up its last batch."""
    model = trainer.model
    rows_of = trainer.devices.gathered(model, functools.partial(_row_measures, model))
    parts = [rows_of(batch) for batch in trainer.devices.batches(input_fn)]
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    counted = found.pop("weights") > 0
    return {name: rows[counted] for name, rows in found.items()}


def measure(settings: MeasurementSettings) -> dict[str, Any]:
    """Returns metrics and sums by document, as written to --measures_file."""
    from albert_tf.cli import pretrain
    from albert_tf.records import input_files, input_pipeline

    documents = np.array(json.loads(files.read_bytes(settings.documents_file)))
    with contextlib.ExitStack() as held:
        run, trainer, records, _ = pretrain.prepare(settings, held)
        if len(documents) != sum(records.counts):
            raise ValueError(
                f"`documents_file` is of {len(documents)} records, `input_file` has "
                f"{sum(records.counts)}: make it with the flags that made them"
            )
        trainer.restore(checkpoint.latest(settings.output_dir))
        batch = run.eval_batch_size
        found = _measure_rows(trainer, pretrain.evaluation_input(run, records))
        labels, pooled = found.pop("labels"), found.pop("pooled")
        sums = {name: pairs.T.astype(np.float64) for name, pairs in found.items()}
        metrics = {"sentence_order_majority": float(max(labels.mean(), 1 - labels.mean()))}
        if settings.probe_train_file:
            paths = input_files.find_files(settings.probe_train_file)
            known = pretrain.check_records(run, paths, trainer.task.config, None)
            steps = max(1, min(settings.probe_examples, sum(known.counts)) // batch)

            def probed(context: Any) -> Any:
                return input_pipeline.training_dataset(
                    *(known.files, known.indexes, known.spec, batch, _PROBE_SEED, 0, context),
                    finish=known.masking(run.mask_settings, _PROBE_SEED),
                ).take(steps)

            train = _measure_rows(trainer, probed)
            hits = _probe_hits(train["pooled"], train["labels"], pooled, labels)
            sums["probe_accuracy"] = np.stack([hits, np.ones_like(hits)])
            metrics["probe_accuracy"] = float(hits.mean())
    documents = documents[: len(labels)]
    by_document = {name: group_sums(*pair, documents) for name, pair in sums.items()}
    return {"metrics": metrics, "documents": by_document}


def write(values: Any, names: Iterable[str], measured: Callable[[Any], Any]) -> None:
    """Measures on the backend that --backend names; writes the results to --measures_file."""
    tensorflow_logs.import_tensorflow(values.backend)
    with errors.in_one_line(flags=names):
        files.replace(values.measures_file, json.dumps(measured(values)) + "\n")


def main(settings: MeasurementSettings) -> None:
    """Writes the measurements."""
    write(settings, settings.names(), measure)


if __name__ == "__main__":
    run_script(MeasurementSettings, main, __doc__)
