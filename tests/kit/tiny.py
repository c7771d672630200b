"""Tiny models, their weights and files, and flags: what most tests begin with."""

from __future__ import annotations

import inspect
import pathlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from albert_tf import conversion
from albert_tf.answers.classify import MULTI_LABEL, REGRESSION
from albert_tf.config import AlbertConfig
from albert_tf.console import settings
from albert_tf.conversion import labels as labels_file
from albert_tf.storage import checkpoint
from albert_tf.storage.run_record import RunRecord, TaskRecord
from albert_tf.tasks import registry
from albert_tf.tasks.settings import TaskSettings
from albert_tf.text.tokenization import Tokenizer

if TYPE_CHECKING:
    from albert_tf.tasks.supervised import ModelOptions, SupervisedTask

# All axes differ in size, so that none can be mistaken for another.
CONFIG = {
    "vocab_size": 53,
    "embedding_size": 7,
    "hidden_size": 15,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 29,
    "max_position_embeddings": 31,
    # Ten times the usual, so that attention and feed-forward layers matter from step 1 on.
    "initializer_range": 0.2,
}


def config(**changes: Any) -> AlbertConfig:
    """Returns the tiny model's config, without dropout unless `changes` asks for it."""
    return AlbertConfig.from_dict({**CONFIG, **changes})


def randomise(model, seed: int = 7):
    """Fills all weights, even of normalisation, from a normal distribution; returns the model."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(0.3 * rng.standard_normal(variable.shape))
    return model


def weights(model) -> dict[str, np.ndarray]:
    """Returns copies of a model's weights by the release's names."""
    return {name: np.array(value) for name, value in conversion.named_weights(model).items()}


def store(
    folder: pathlib.Path, model, labels: Sequence[str] = (), name: str = "model.ckpt-best"
) -> str:
    """Writes a model as a run does, with its config and labels; returns the checkpoint's prefix."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "albert_config.json").write_text(model.config.to_json())
    checkpoint.write(str(folder / name), weights(model))
    if labels:
        labels_file.write(str(folder), labels)
    return str(folder / name)


def checkpoint_files(*steps: int | str) -> set[str]:
    """Returns the names of the files of a run's checkpoints."""
    ends = ("meta", "data-00000-of-00001", "index")
    return {f"model.ckpt-{step}.{end}" for step in steps for end in ends}


def fine_tuned(
    name: str, problem_type: str = "", reading: Mapping[str, Any] | None = None, **settings: Any
) -> RunRecord:
    """Returns the record of a run that fine-tuned a model for a task, and how it read texts."""
    tasks = {"race": "choose", "choice": "choose", "token_classification": "tag"}
    of_task = "classify" if problem_type else tasks.get(name)
    known = {"task": of_task} if of_task else {}
    known |= {REGRESSION: {"labels": []}, MULTI_LABEL: {"multilabel": True}}.get(problem_type, {})
    task = TaskRecord(name, {**known, **(reading or {})})
    return RunRecord(settings, {}, task=task, command="finetune" if settings else "")


def task(
    name: str,
    tokenizer: Tokenizer | None = None,
    classes: Sequence[str] | None = None,
    options: ModelOptions | None = None,
    **given: Any,
) -> SupervisedTask:
    """Returns the task of a name and settings, with the classes that it was trained on."""
    of_task = TaskSettings(task_name=name, **given)
    return registry.row_of(of_task).make(of_task, options, tokenizer, classes)


def write(path: pathlib.Path, content: str | bytes) -> str:
    """Writes a file, and its folder; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def parse(cls: type[settings.Settings], *arguments: str, **given: Any) -> Any:
    more = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return settings.parse(cls, ["script.py", *arguments, *more])


def run_main(main: Callable[[Any], None], argv: Sequence[Any]) -> None:
    (cls,) = (kind for name, kind in get_type_hints(main).items() if name != "return")
    main(settings.parse(cls, ["script.py", *map(str, argv)]))


def arguments(function: Callable[..., Any], *args: Any, **kwargs: Any) -> types.SimpleNamespace:
    """Returns the arguments of a call by name."""
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    return types.SimpleNamespace(**bound.arguments.pop("kwargs", {}), **bound.arguments)
