"""Arguments of the commands that load a trained model to serve it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from albert_tf.serving import choices

if TYPE_CHECKING:  # --help needs no TensorFlow.
    from albert_tf.conversion.stored import Stored
    from albert_tf.serving.served_models import ServedModel

_BESIDE = {
    "albert_config_file": "config",
    "spm_model_file": "SentencePiece model",
    "vocab_file": "WordPiece vocabulary",
}
# Those that are whole numbers, and what they are.
_WHOLE_NUMBERS = {
    "top_k": "fill_mask: number of pieces per [MASK] (5).",
    "num_choices": "choose: number of endings per example (4).",
    "max_qa_length": "choose: maximum length of an ending in tokens (128).",
    "start_n_top": "answer_v2: beam size, the number of answer starts considered (5).",
    "end_n_top": "answer_v2: beam size, the number of answer ends considered per start (5).",
    "doc_stride": "classify, answer: distance in tokens between the starts of successive windows "
    "(128).",
    "max_query_length": "answer: maximum length of a question in tokens (64).",
    "max_answer_length": "answer: maximum length of an answer in tokens (30).",
    "n_best_size": "answer: number of answers returned, best first (20).",
    "max_seq_length": "Maximum length of a sequence in tokens (the model's).",
}


def add_stored(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments about what is beside a model's weights."""
    for name, what in _BESIDE.items():
        help_text = f"The model's {what}; by default the one beside the weights."
        parser.add_argument(f"--{name}", help=help_text)
    parser.add_argument(
        "--do_lower_case",
        action=argparse.BooleanOptionalAction,
        help="Whether the model is uncased; by default as stored with the weights, else yes.",
    )


def stored(args: argparse.Namespace, path: str) -> Stored:
    """Returns the stored model of a path, read as the arguments of `add_stored` say."""
    from albert_tf.conversion.stored import Stored

    return Stored(path, *(getattr(args, name) for name in (*_BESIDE, "do_lower_case")))


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments; those not given are as in fine-tuning or, if unknown, the class's."""
    add_stored(parser)
    add = parser.add_argument_group(
        "for some tasks",
        "By default lengths, windows, pairs and beam sizes are those of fine-tuning or, if these "
        "are unknown, the values in parentheses.",
    ).add_argument
    add(
        "--labels",
        help="classify, tag: names of the classes in the order of their ids, separated by commas; "
        "by default those beside the weights.",
    )
    add("--pairs", action="store_true", default=None, help="classify: inputs are pairs of texts.")
    add(
        "--threshold_to_export",
        dest="threshold",
        type=float,
        help="classify: with two labels, the minimum probability of the second one to be the "
        "answer; with --multilabel, the minimum probability of a label.",
    )
    add(
        "--multilabel",
        action="store_true",
        default=None,
        help="classify: a text may have any number of the labels.",
    )
    add(
        "--null_threshold",
        type=float,
        help='answer_v2: null odds (score of "no answer") from which on the answer is empty (0).',
    )
    add(
        "--windows",
        choices=("mean", "max", "none"),
        help="classify: read long texts in overlapping windows, and take the mean or the maximum "
        "of their probabilities; none cuts them.",
    )
    for name, what in _WHOLE_NUMBERS.items():
        add(f"--{name}", type=int, help=what)


def serve(args: argparse.Namespace) -> ServedModel:
    """Loads the trained model that `--model` and `--task` name; raises what trained.serve does.

    Raises:
      ValueError: If an argument is given that the task doesn't have.
    """
    from albert_tf.serving import trained

    return trained.serve(args.task, stored(args, args.model), _options(args))


def check_none(args: argparse.Namespace) -> None:
    """Checks that no argument is given for a model that is already exported.

    Raises:
      ValueError: If an argument is given.
    """
    for name in (*_BESIDE, "do_lower_case", *choices.TASKS_OF):
        if getattr(args, name) is not None:
            raise ValueError(
                f"--{_flag(name)} applies only to trained models, with --task: leave it out, "
                f"because {args.model} is exported"
            )


def check_applies(flag: str, tasks: Sequence[str], task: str) -> None:
    """Checks that an argument that is given is one for the task.

    Raises:
      ValueError: If it applies only to other tasks.
    """
    if task not in tasks:
        raise ValueError(
            f"--{flag} applies only to {' and '.join(tasks)}, not to {task}: leave it out"
        )


def _flag(name: str) -> str:
    return "threshold_to_export" if name == "threshold" else name


def _options(args: argparse.Namespace) -> dict[str, Any]:
    given = {
        name: getattr(args, name) for name in choices.TASKS_OF if getattr(args, name) is not None
    }
    for name in given:
        check_applies(_flag(name), choices.TASKS_OF[name], args.task)
    if given.get("windows") == "none":
        given["windows"] = None
    if "labels" in given:
        given["labels"] = tuple(label.strip() for label in given["labels"].split(","))
    return given
