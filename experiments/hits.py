"""Tells by document how many held-out examples a fine-tuned model gets right.

Takes the flags of run_finetune.py that made it. Of tasks without `eval_accuracy` nothing is told.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
from absl import flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from albert_tf import scripts
from albert_tf.cli import finetune_flags
from experiments import measure

_METRIC = "eval_accuracy"


def define_flags(values: flags.FlagValues) -> None:
    """Adds the flags of run_finetune.py, and the name of the file to write."""
    finetune_flags.define_flags(values)
    group = scripts.FlagGroup(values, "Measurements")
    group.string("measures_file", None, "JSON file to write.", required=True)
    group.string(
        "document_column",
        None,
        "Column of eval_file that names an example's document. Without one each example counts as "
        "a document: an interval is then too narrow if those of one are alike.",
    )


def hits(values: flags.FlagValues) -> dict[str, Any]:
    """Returns the right answers of the best checkpoint, as written to --measures_file.

    Raises:
      ValueError, OSError: If the run has not been evaluated, or on other examples.
    """
    from albert_tf.cli import finetune_tasks
    from albert_tf.tasks import table

    if values.document_column and not values.eval_file:
        raise ValueError("`document_column` is a column of `eval_file`: set both")
    finetune_flags.set_task_defaults(values)
    task, read = finetune_tasks.make_task(values, None, None)
    metrics, documents = {}, {}
    if _METRIC in task.metric_names:
        examples = read("dev")
        chosen = task.average([values.output_dir], "dev", examples).argmax(axis=-1)
        labels = np.array([example.label for example in examples])
        right = chosen == labels
        metrics["eval_majority"] = float(np.bincount(labels).max() / len(labels))
        names = range(len(right))
        if column := values.document_column:
            names = [row[column] for _, row in table.text_rows(values.eval_file, [column])]
        numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
        places = np.array([numbers[name] for name in names])
        documents[_METRIC] = measure.group_sums(right, np.ones(len(right)), places)
    return {"metrics": metrics, "documents": documents}


def main(values: flags.FlagValues) -> None:
    """Writes the right answers."""
    measure.write(values, list(values), hits)


if __name__ == "__main__":
    scripts.run_script(main, define_flags, __doc__)
