"""The settings of a fine-tuning task: its data, its features and its answers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from albert_tf.answers.choose import Choose
from albert_tf.answers.kind import Kind
from albert_tf.answers.span import BeamSpan, Span
from albert_tf.console.settings import POSITIVE, REQUIRED, setting
from albert_tf.tasks.table import TableSettings

# A split of the data -> the setting that names its file.
FILES: Mapping[str, str] = {"train": "train_file", "dev": "eval_file", "test": "predict_file"}
# Group headings of --help.
TASK, FEATURES, SQUAD, VECTORS = "Task and data", "Features", "SQuAD", "Vectors of texts"

_task = functools.partial(setting, group=TASK)
_feature = functools.partial(setting, group=FEATURES)
_race = functools.partial(setting, False, group=TASK, rare=True)


def _option(kind: type[Kind], name: str, more: str, group: str = SQUAD, rare: bool = True) -> Any:
    """Returns the setting of a kind's option, a positive integer; `more` ends its help text."""
    field = kind.option_fields()[name]
    text = f"{field.metadata['help']} {more}"
    return setting(field.default, text, group=group, interval=POSITIVE, rare=rare)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSettings(TableSettings):
    """The data, the features and the answers of a task.

    Names and defaults are those of the release's run_classifier.py. Where its run_race.py,
    run_squad_v1.py or run_squad_v2.py has another default, the task's row in registry.TASKS has it.

    Example:
        >>> TaskSettings(task_name="classification", train_file="train.csv").file("train")
        'train.csv'
    """

    task_name: str = _task(REQUIRED, "Name of the task.")
    data_dir: str | None = _task(
        None,
        "Directory of the data: for GLUE, the one that contains the tasks' folders; for RACE, the "
        "one that contains the folder RACE.",
    )
    train_file: str | None = _task(
        None,
        "File to train on: SQuAD's JSON, or a table in .csv, .tsv, .jsonl (also .json) or "
        ".parquet; questions in .jsonl or .parquet; for token_classification, CoNLL columns, "
        ".jsonl or .parquet.",
    )
    eval_file: str | None = _task(
        None,
        "File to evaluate on, in the format of train_file. For SQuAD the default is predict_file, "
        "as in the release.",
    )
    predict_file: str | None = _task(
        None,
        "File with the examples to predict, in the format of train_file. A table needs no labels "
        "here.",
    )
    high_only: bool = _race("Read only RACE's level high. By default both levels.")
    middle_only: bool = _race("Read only RACE's level middle. By default both levels.")

    max_seq_length: int = _feature(
        512,
        "Maximum length of a sequence in tokens, with [CLS] and [SEP]; longer text is truncated. "
        "512 is the release's; 384 for SQuAD.",
        interval="[4, 2147483647]",
    )
    windows: str | None = _feature(
        None,
        "Read texts longer than max_seq_length in windows, doc_stride apart, for "
        "classification, multilabel and regression: the probabilities of a text are the mean or "
        "the maximum over its windows. By default such a text is truncated.",
        choices=["mean", "max"],
    )
    max_qa_length: int = _option(
        Choose,
        "max_qa_length",
        "For race, with the question, and choice. 128 is the release's.",
        FEATURES,
    )

    allow_no_answer: bool = setting(
        False,
        "Allow questions without an answer, for task_name=question_answering: trains squad_v2's "
        "model instead of squad_v1's.",
        group=SQUAD,
    )
    span_head: str = setting(
        "conditional",
        "Head of squad_v2's model. conditional is the release's: a beam of starts, the ends given "
        "each start, and a score of its own for no answer. linear is BERT's, one dense layer for "
        "starts and ends, where no answer is the span of [CLS]; Hugging Face has only this one.",
        group=SQUAD,
        choices=["conditional", "linear"],
    )
    doc_stride: int = _option(
        Span,
        "doc_stride",
        "Those on texts overlap only if it is less than max_seq_length - 2. 128 is the release's.",
        rare=False,
    )
    max_query_length: int = _option(Span, "max_query_length", "64 is the release's.")
    max_answer_length: int = _option(Span, "max_answer_length", "30 is the release's.")
    n_best_size: int = _option(
        Span, "n_best_size", "All are in nbest_predictions.json. 20 is the release's."
    )
    start_n_top: int = _option(BeamSpan, "start_n_top", "For squad_v2. 5 is the release's.")
    end_n_top: int = _option(BeamSpan, "end_n_top", "For squad_v2. 5 is the release's.")

    ranking_scale: float = setting(
        20.0,
        "Number that multiplies cosines, 1 / temperature, where embedding is trained on pairs "
        "without scores. 20 is sentence-transformers'.",
        group=VECTORS,
        rare=True,
        interval="(0, inf)",
    )
    matryoshka_dimensions: tuple[str, ...] = setting(
        (),
        "Numbers of dimensions, separated by commas: the loss is summed over the first so many "
        "numbers of vectors, and whole ones, so that short vectors are of use, too.",
        group=VECTORS,
        rare=True,
    )
    corpus_file: str | None = setting(
        None,
        "A table of further texts, in text_pair_column, among which the pairs of eval_file have "
        "to be found.",
        group=VECTORS,
        rare=True,
    )

    def file(self, split: str) -> str:
        """Returns the file of a split."""
        path = getattr(self, FILES[split])
        if not path:
            raise ValueError(
                f"the {split} split of {self.task_name} is in `{FILES[split]}`: set that too"
            )
        return path

    @property
    def folder(self) -> str:
        """The data's directory; raises ValueError if none is given."""
        if not self.data_dir:
            raise ValueError(
                f"`task_name` {self.task_name} reads files in `data_dir`: set that too"
            )
        return self.data_dir
