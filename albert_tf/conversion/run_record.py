"""What a fine-tuning run was, stored beside its weights: for model cards."""

from __future__ import annotations

import dataclasses
import json
import os

from albert_tf import files
from albert_tf.text_files import json_member, read_json_object

RECORD_FILE = "run.json"
# The problem_type of texts with one label, and with any number of them.
SINGLE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """A fine-tuning run.

    Attributes:
      task_name: The task.
      problem_type: Hugging Face's name for the kind of classifier; "" for other models.
      init_checkpoint: The weights that it started from, as named; "" for none.
      command: The command line.
      note: What users of the model must know; "" for nothing.
    """

    task_name: str
    problem_type: str
    init_checkpoint: str
    command: str
    note: str = ""

    def write(self, directory: str) -> None:
        """Writes the record."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        files.replace(os.path.join(directory, RECORD_FILE), text + "\n")


def find(path: str) -> RunRecord | None:
    """Returns the record beside a model's weights, if there is one.

    Raises:
      ValueError: If it is damaged.
    """
    directory = path if files.is_dir(path) else os.path.dirname(path)
    file = os.path.join(directory, RECORD_FILE)
    if not files.is_file(file):
        return None
    stored = read_json_object(file)
    fields = dataclasses.fields(RunRecord)
    # Earlier versions wrote no note.
    names = [f.name for f in fields if f.name in stored or f.default is dataclasses.MISSING]
    return RunRecord(**{name: json_member(stored, name, file, str) for name in names})
