"""The task that the flags of run_finetune.py name, and what reads its examples."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from absl import flags

from albert_tf.config import AlbertConfig
from albert_tf.conversion.vocabulary import Vocabulary
from albert_tf.tasks.classification import MultipleChoiceTask, SequenceClassificationTask
from albert_tf.tasks.glue import GLUE_TASKS, read_glue
from albert_tf.tasks.question_answering import SquadV1Task, SquadV2Task, is_labelled
from albert_tf.tasks.race import LEVELS, read_race
from albert_tf.tasks.squad_text import SquadExample, read_squad
from albert_tf.tasks.supervised import ModelOptions, SupervisedTask
from albert_tf.tokenization import Tokenizer

# A split -> the flag of what needs it.
_STEPS = {"train": "do_train", "dev": "do_eval", "test": "do_predict"}
# From the name of a split to its examples.
Reader = Callable[[str], list[Any]]


def make_task(
    values: flags.FlagValues, config: AlbertConfig | None
) -> tuple[SupervisedTask, Reader]:
    """Returns the task, and what reads the examples of a split.

    Args:
      values: The flags.
      config: The model's; None if only files of predictions are read.

    Raises:
      ValueError: There is no such task, or it needs another flag, or the vocabulary is not the
        model's.
    """
    options = tokenizer = None
    if config:
        dtype = "mixed_bfloat16" if values.precision == "bfloat16" else "float32"
        options = ModelOptions(config, values.dropout_prob, dtype, values.recompute)
        tokenizer = _tokenizer(values, config)
    common = (options, tokenizer, values.max_seq_length)
    name = values.task_name
    if name in GLUE_TASKS:
        row = GLUE_TASKS[name]
        file = f"{row.submission or row.folder}.tsv"
        task = SequenceClassificationTask(*common, row.labels, row.key_metric, file, (0.0, 5.0))
        return task, functools.partial(read_glue, name, _folder(values))
    if name == "race":
        task = MultipleChoiceTask(values.max_qa_length, *common, "ABCD")
        return task, functools.partial(read_race, _folder(values), levels=_levels(values))
    read = functools.partial(_read_squad, values)
    windows = (values.doc_stride, values.max_query_length)
    answers = (values.n_best_size, values.max_answer_length)
    if name == "squad_v1":
        return SquadV1Task(*windows, *answers, *common), read
    if name == "squad_v2":
        beam = (values.start_n_top, values.end_n_top)
        return SquadV2Task(*beam, *windows, *answers, *common), read
    known = ", ".join([*GLUE_TASKS, "race", "squad_v1", "squad_v2"])
    raise ValueError(f"--task_name {name!r} is none of {known}")


def _levels(values: flags.FlagValues) -> tuple[str, ...]:
    if values.high_only:
        return ("high",)
    return ("middle",) if values.middle_only else LEVELS


def _read_squad(values: flags.FlagValues, split: str) -> list[SquadExample]:
    flag = {"train": "train_file", "dev": "eval_file", "test": "predict_file"}[split]
    if split == "dev" and not values.eval_file:
        flag = "predict_file"
    path = values[flag].value
    if not path:
        raise ValueError(f"--{_STEPS[split]} of {values.task_name} reads --{flag}: set that too")
    examples = read_squad(path)
    if split == "dev" and not is_labelled(examples):
        raise ValueError(
            f"{path} has no answers to evaluate with: name another file with --eval_file, or set "
            "--do_eval=false"
        )
    return examples


def _folder(values: flags.FlagValues) -> str:
    if not values.data_dir:
        raise ValueError(f"--task_name={values.task_name} reads files in --data_dir: set that too")
    return values.data_dir


def _tokenizer(values: flags.FlagValues, config: AlbertConfig) -> Tokenizer:
    """Reads the vocabulary, which must be the model's."""
    if not values.spm_model_file and not values.vocab_file:
        raise ValueError("no vocabulary: set --spm_model_file, or --vocab_file for a WordPiece one")
    # The release prefers the SentencePiece model where both are named.
    path = values.spm_model_file or values.vocab_file
    vocabulary = Vocabulary.read(path, not values.spm_model_file, values.do_lower_case)
    vocabulary.check(config)
    return vocabulary.tokenizer
