"""Tells by document how many held-out examples a fine-tuned model gets right.

Takes the flags of run_finetune.py that made it. Of tasks without `eval_accuracy` nothing is told.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.console.settings import REQUIRED, run_script, setting
from albert_tf.tasks import registry
from research.experiments import measure

_METRIC = "eval_accuracy"


_MEASUREMENTS = "Measurements"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HitsSettings(FinetuningSettings):
    """The settings of run_finetune.py, and the name of the file to write."""

    headings = (*FinetuningSettings.headings, _MEASUREMENTS)

    measures_file: str = setting(REQUIRED, "JSON file to write.", group=_MEASUREMENTS)
    document_column: str | None = setting(
        None,
        "Column of eval_file that names an example's document. Without one each example counts as "
        "a document: an interval is then too narrow if those of one are alike.",
        group=_MEASUREMENTS,
    )


def hits(settings: HitsSettings) -> dict[str, Any]:
    """Returns counts of the best checkpoint's right answers, as written to --measures_file."""
    from albert_tf.cli import finetune
    from albert_tf.cli.run_directory import RunDirectory
    from albert_tf.tasks import table

    if settings.document_column and not settings.eval_file:
        raise ValueError("`document_column` is a column of `eval_file`: set both")
    classes = finetune.find_classes(settings, RunDirectory(settings.output_dir))
    task = finetune.make_task(settings, classes=classes)
    metrics, documents = {}, {}
    if _METRIC in task.metric_names:
        examples = registry.row_of(settings).read(settings, "dev", task)
        chosen = task.average([settings.output_dir], "dev", examples).argmax(axis=-1)
        labels = np.array([example.label for example in examples])
        right = chosen == labels
        metrics["eval_majority"] = float(np.bincount(labels).max() / len(labels))
        names = range(len(right))
        if column := settings.document_column:
            names = [row[column] for _, row in table.text_rows(settings.eval_file, [column])]
        numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
        places = np.array([numbers[name] for name in names])
        documents[_METRIC] = measure.group_sums(right, np.ones(len(right)), places)
    return {"metrics": metrics, "documents": documents}


def main(settings: HitsSettings) -> None:
    """Writes the counts of right answers."""
    measure.write(settings, settings.names(), hits)


if __name__ == "__main__":
    run_script(HitsSettings, main, __doc__)
