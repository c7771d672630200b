"""serving.json, beside an exported model: its task, its options and its config."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from albert_tf.config import AlbertConfig
from albert_tf.conversion import labels
from albert_tf.serving import settings
from albert_tf.storage import files
from albert_tf.storage.files import write_text
from albert_tf.storage.text_files import json_member, read_json_object

if TYPE_CHECKING:  # It needs tensorflow_text.
    from albert_tf.serving.served_models import ServedModel

FILE = "serving.json"
# Types of options, in JSON; the others are whole numbers.
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("pairs", "multilabel"), (bool,)),
    **dict.fromkeys(("threshold", "null_threshold"), (float, int)),
    "windows": (str,),
}


def write(served: ServedModel, directory: str) -> None:
    """Writes a model's task, config and options, and its labels in their own file."""
    options = {name: getattr(served, name, None) for name in _option_names(served.task)}
    description = {
        "task": served.task,
        "options": {name: value for name, value in options.items() if value is not None},
        "config": served.config.to_dict(),
    }
    text = json.dumps(description, indent=2) + "\n"
    write_text(os.path.join(directory, FILE), text)
    if served.labels:
        labels.write(directory, served.labels)


def _option_names(task: str) -> list[str]:
    names = [name for name, tasks in settings.TASKS_OF.items() if task in tasks]
    # These have their own file, as beside weights.
    return [name for name in names if name != "labels"]


def read(path: str) -> tuple[str, AlbertConfig, dict[str, Any]]:
    """Returns the task, the config and the options that `write` stored.

    Args:
      path: The file.
    """
    values = read_json_object(path)
    task = json_member(values, "task", path, str)
    if task not in settings.TASKS:
        raise ValueError(f"{path}: task must be one of {', '.join(settings.TASKS)}, not {task!r}")
    options = json_member(values, "options", path, dict)
    known = _option_names(task)
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise ValueError(f"{path}: unknown option {unknown[0]!r}: {task} has {', '.join(known)}")
    check_types(options, path)
    config = AlbertConfig.from_dict(json_member(values, "config", path, dict), path)
    return task, config, options


def check_types(options: Mapping[str, Any], path: str) -> None:
    """Checks the types of options that were read from a file."""
    for name in options:
        json_member(options, name, path, *_KINDS.get(name, (int,)))


def is_of(directory: str, task: str, options: Mapping[str, Any]) -> bool:
    """Whether the description in a directory, if there is one, has a task and these options.

    Args:
      directory: Any path; it need not exist.
      task: One of settings.TASKS.
      options: Arguments of the class that serves the task; None stands for one that is not set.
    """
    path = os.path.join(directory, FILE)
    if not files.is_file(path):  # Exports of earlier versions have none.
        return False
    try:
        (its_task, _, its_options), its_labels = read(path), labels.stored(directory)
    except ValueError:
        return False
    stored = {**its_options, "labels": its_labels}
    return its_task == task and all(
        stored.get(name) == (tuple(value) if name == "labels" else value)
        for name, value in options.items()
    )
