"""Makes the task that run_finetune.py's flags name, and the reader of its examples."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags, logging

from albert_tf.cli import finetune_flags, shared_flags
from albert_tf.config import AlbertConfig
from albert_tf.conversion import labels as labels_file
from albert_tf.conversion.run_record import SINGLE_LABEL
from albert_tf.storage import checkpoint, files
from albert_tf.tasks import classification, conll, table, token_classification
from albert_tf.tasks.classification import (
    MultiLabelTask,
    MultipleChoiceTask,
    SequenceClassificationTask,
    TextWindows,
)
from albert_tf.tasks.glue import GLUE_TASKS, OF_MNLI, read_glue
from albert_tf.tasks.question_answering import SquadSettings, SquadV1Task, SquadV2Task, is_labelled
from albert_tf.tasks.race import LETTERS, LEVELS, read_race
from albert_tf.tasks.squad_text import SquadExample, read_squad
from albert_tf.tasks.supervised import ModelOptions, SupervisedTask
from albert_tf.tasks.token_classification import TokenClassificationTask
from albert_tf.text import vocabulary
from albert_tf.text.tokenization import Tokenizer

# A split -> the flag that needs it, the flag of its file and that of its batch size.
SPLITS = {
    "train": ("do_train", "train_file", "train_batch_size"),
    "dev": ("do_eval", "eval_file", "eval_batch_size"),
    "test": ("do_predict", "predict_file", "predict_batch_size"),
}
# From the name of a split to its examples.
Reader = Callable[[str], list[Any]]
# Every task's first arguments: the model's options, its tokenizer, and max_seq_length.
_Common = tuple[ModelOptions | None, Tokenizer | None, int]


def make_task(
    values: flags.FlagValues, config: AlbertConfig | None, tokenizer: Tokenizer | None
) -> tuple[SupervisedTask, Reader]:
    """Returns the task, and the function that reads a split's examples.

    Args:
      values: The flags.
      config: The model's; None if only prediction files are read.
      tokenizer: The model's, or None.

    Raises:
      ValueError: If there is no such task, or it needs another flag.
    """
    options = None
    if config:
        dtype = shared_flags.dtype_policy(values)
        options = ModelOptions(config, values.dropout_prob, dtype, values.recompute)
    makers = {name: _glue_task for name in GLUE_TASKS} | _MAKERS
    if values.task_name not in makers:
        raise ValueError(
            f"--task_name must be one of {', '.join(makers)}, not {values.task_name!r}"
        )
    task, read = makers[values.task_name](values, (options, tokenizer, values.max_seq_length))
    if values.key_metric:
        if values.key_metric not in task.metric_names:
            raise ValueError(
                f"--key_metric of {values.task_name} must be one of "
                f"{', '.join(task.metric_names)}, not {values.key_metric!r}"
            )
        task.key_metric = values.key_metric
    return task, read


def weigh_classes(values: flags.FlagValues, task: SupervisedTask, examples: Sequence[Any]) -> None:
    """Sets the weights of a task's classes.

    Raises:
      ValueError: If the task has no classes, or the weights don't fit them.
    """
    if task.problem_type != SINGLE_LABEL:
        raise ValueError(
            "--class_weights applies only to tasks with one class per text, not to "
            f"{values.task_name}: leave it out"
        )
    assert isinstance(task, SequenceClassificationTask)
    labels = [example.label for example in examples]
    task.class_weights = classification.parse_class_weights(
        values.class_weights, task.classes, labels
    )
    pairs = zip(task.classes, task.class_weights, strict=True)
    logging.info("class weights: %s", ", ".join(f"{name} {weight:.4g}" for name, weight in pairs))


def _glue_task(values: flags.FlagValues, common: _Common) -> tuple[SupervisedTask, Reader]:
    row = GLUE_TASKS[values.task_name]
    file = f"{row.submission or row.folder}.tsv"
    # In MNLI's directory.
    prefix = f"{values.task_name}_" if values.task_name in OF_MNLI else ""
    task = SequenceClassificationTask(*common, row.labels, row.key_metric, file, (0.0, 5.0), prefix)
    return task, functools.partial(read_glue, values.task_name, _folder(values))


def _race_task(values: flags.FlagValues, common: _Common) -> tuple[SupervisedTask, Reader]:
    task = MultipleChoiceTask(*common, LETTERS, max_qa_length=values.max_qa_length)
    _, tokenizer, _ = common
    # Without a model the texts aren't used.
    preprocess = tokenizer.preprocess if tokenizer else str
    read = functools.partial(read_race, levels=_levels(values), preprocess=preprocess)
    return task, functools.partial(read, _folder(values))


def _squad_task(values: flags.FlagValues, common: _Common) -> tuple[SupervisedTask, Reader]:
    fields = [field.name for field in dataclasses.fields(SquadSettings)]
    settings = SquadSettings(**{name: getattr(values, name) for name in fields})
    task_class = SquadV1Task if finetune_flags.squad_model(values) == "squad_v1" else SquadV2Task
    return task_class(settings, *common), functools.partial(_read_squad, values)


def _choice_task(values: flags.FlagValues, common: _Common) -> tuple[SupervisedTask, Reader]:
    columns = _columns(values)
    task = MultipleChoiceTask(*common, columns.choices, max_qa_length=values.max_qa_length)

    def read(split: str) -> list[Any]:
        return table.read_choices(_file(values, split), columns, split != "test")

    return task, read


def _text_task(values: flags.FlagValues, common: _Common) -> tuple[SupervisedTask, Reader]:
    columns = _columns(values)
    several = values.task_name == "multilabel"
    find = functools.partial(table.find_labels, columns=columns, several=several)
    labels = () if values.task_name == "regression" else _labels(values, find)
    key_metric = {"multilabel": "micro_f1", "regression": "pearson"}.get(values.task_name)
    task_class = MultiLabelTask if several else SequenceClassificationTask
    windows = TextWindows(values.windows, values.doc_stride) if values.windows else None
    task = task_class(*common, labels, key_metric or "eval_accuracy", windows=windows)

    def read(split: str) -> list[Any]:
        return table.read_texts(_file(values, split), columns, labels, split != "test", several)

    return task, read


def _token_task(values: flags.FlagValues, common: _Common) -> tuple[SupervisedTask, Reader]:
    classes = _labels(values, conll.find_tags)

    def read(split: str) -> list[Any]:
        examples = conll.read_sentences(_file(values, split), classes, split != "test")
        if split != "train" and token_classification.is_labelled(examples):
            token_classification.check_seqeval(classes)
        return examples

    return TokenClassificationTask(*common, classes), read


# The tasks that are not GLUE's; the last six read your own file.
_MAKERS = {
    "race": _race_task,
    "squad_v1": _squad_task,
    "squad_v2": _squad_task,
    "classification": _text_task,
    "multilabel": _text_task,
    "regression": _text_task,
    "choice": _choice_task,
    "token_classification": _token_task,
    "question_answering": _squad_task,
}


def find_vocabulary(values: flags.FlagValues) -> None:
    """Sets the vocabulary's flags to those of the weights or the run; a file that is named stays.

    Raises:
      ValueError: If several lie there, or it is damaged.
    """
    given = values.do_lower_case if values["do_lower_case"].present else None
    initial = finetune_flags.initial_weights(values)
    if values.spm_model_file or values.vocab_file:
        is_word_piece, case = not values.spm_model_file, given
        has_run = checkpoint.latest(values.output_dir) or checkpoint.best(values.output_dir)
        if initial and not has_run:
            files.check_not_url(initial)
            case = vocabulary.is_uncased(initial, is_word_piece, given)
        # A run keeps the case that it began with.
        values["do_lower_case"].value = vocabulary.is_uncased(
            values.output_dir, is_word_piece, given, default=case is not False
        )
        return
    found = vocabulary.find(initial, given) if initial else None
    found = found or vocabulary.find(values.output_dir, given)
    if found:
        values["vocab_file" if found.is_word_piece else "spm_model_file"].value = found.path
        values["do_lower_case"].value = found.tokenizer.do_lower_case
        logging.info("vocabulary: %s", found.path)


def write_labels(values: flags.FlagValues, task: SupervisedTask) -> None:
    """Writes a classifier's class names beside its checkpoints, for their later users."""
    kinds = (SequenceClassificationTask, TokenClassificationTask)
    if isinstance(task, kinds) and task.classes:
        labels_file.write(values.output_dir, task.classes)


def _columns(values: flags.FlagValues) -> table.TableColumns:
    """Returns a table's columns; those of choices are for the task `choice`."""
    if (values.task_name == "choice") != bool(values.choice_columns):
        raise ValueError("--choice_columns and --task_name=choice go together: set both or neither")
    return table.TableColumns(
        values.text_column, values.text_pair_column, values.label_column, (*values.choice_columns,)
    )


def _labels(values: flags.FlagValues, find: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the classes: those found in the file a fresh run reads, or trained on before.

    These lie in output_dir or, if that has no model, may lie beside the initial weights.
    """
    if values.ensemble_dirs:
        return _shared_labels(values.ensemble_dirs)
    path = os.path.join(values.output_dir, labels_file.LABELS_FILE)
    latest = checkpoint.latest(values.output_dir)
    if values.do_train and not (latest and files.exists(path)):
        return find(_file(values, "train"))
    initial = finetune_flags.initial_weights(values)
    is_fresh = not (latest or checkpoint.best(values.output_dir) or files.exists(path))
    named = labels_file.stored(initial) if initial and is_fresh else ()
    return named or labels_file.read(values.output_dir)


def _shared_labels(directories: Sequence[str]) -> tuple[str, ...]:
    first, *others = directories
    labels = labels_file.read(first)
    for other in others:
        found = labels_file.read(other)
        if found != labels:
            raise ValueError(
                f"--ensemble_dirs {first} and {other} contain runs with different classes "
                f"({', '.join(labels)}; {', '.join(found)}): give runs with the same classes"
            )
    return labels


def _levels(values: flags.FlagValues) -> tuple[str, ...]:
    if values.high_only:
        return ("high",)
    return ("middle",) if values.middle_only else LEVELS


def _file(values: flags.FlagValues, split: str) -> str:
    step, flag, _ = SPLITS[split]
    path = getattr(values, flag)
    if not path:
        raise ValueError(f"--{step} of {values.task_name} reads --{flag}: set that too")
    return path


def _read_squad(values: flags.FlagValues, split: str) -> list[SquadExample]:
    if split == "dev" and not (values.eval_file or values.predict_file):
        raise ValueError(
            f"--do_eval of {values.task_name} reads --eval_file, or else --predict_file: set one"
        )
    # The release evaluates on the file it predicts.
    path = _file(values, "test" if split == "dev" and not values.eval_file else split)
    examples = read_squad(path)
    if split == "dev" and not is_labelled(examples):
        raise ValueError(
            f"{path} has no answers to evaluate with: give another file with --eval_file, or set "
            "--do_eval=false"
        )
    is_v1 = finetune_flags.squad_model(values) == "squad_v1"
    if is_v1 and (split == "train" or is_labelled(examples)):
        without = [each.qas_id for each in examples if each.is_impossible or not each.answers]
        if without:
            mend = "--task_name=squad_v2"
            if values.task_name == "question_answering":
                mend = "--allow_no_answer"
            raise ValueError(
                f"{path}: question {without[0]} has no answer, but {values.task_name} needs one "
                f"for each question: set {mend}"
            )
    return examples


def _folder(values: flags.FlagValues) -> str:
    if not values.data_dir:
        raise ValueError(f"--task_name={values.task_name} reads files in --data_dir: set that too")
    return values.data_dir
