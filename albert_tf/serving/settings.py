"""The settings of albert-export, albert-predict and albert-serve."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from albert_tf.console.settings import NATURAL, POSITIVE, REQUIRED, Settings, setting
from albert_tf.conversion.settings import StoredSettings
from albert_tf.tasks.table import COLUMNS, TableSettings

# What a trained model is for.
TASKS = ("fill_mask", "classify", "tag", "choose", "answer_v1", "answer_v2")
# Formats for other runtimes -> file name.
FORMATS = {
    "tflite": "model.tflite",
    "tflite_int8": "model_int8.tflite",
    "onnx": "model.onnx",
    "onnx_int8": "model_int8.onnx",
}
# The format that is one of them, and a page.
WEB = "web"
# What a model reads, and what its sequences are padded to a multiple of: few lengths, none shorter
# than a beam.
FEATURES = ("input_ids", "input_mask", "segment_ids")
LENGTH_MULTIPLE = 8
_ANSWERS = ("answer_v1", "answer_v2")
# Options, as the serving classes name them -> the tasks that take them.
TASKS_OF = {
    "labels": ("classify", "tag"),
    "pairs": ("classify",),
    "threshold": ("classify",),
    "multilabel": ("classify",),
    "top_k": ("fill_mask",),
    "num_choices": ("choose",),
    "max_qa_length": ("choose",),
    "null_threshold": ("answer_v2",),
    "start_n_top": ("answer_v2",),
    "end_n_top": ("answer_v2",),
    "doc_stride": ("classify", *_ANSWERS),
    "windows": ("classify",),
    "max_query_length": _ANSWERS,
    "max_answer_length": _ANSWERS,
    "n_best_size": _ANSWERS,
    "max_seq_length": TASKS,
}

_MODEL, _SCORES = "Model and output", "Scores before and after, on your own data"
# By default lengths, windows, pairs and beam sizes are those of fine-tuning.
_OPTIONS = "For some tasks, by default as in fine-tuning or, if that is unknown, as in parentheses"
_model = functools.partial(setting, group=_MODEL)
_scores = functools.partial(setting, group=_SCORES)
_option = functools.partial(setting, None, group=_OPTIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingSettings(StoredSettings):
    """How a trained model is served; None is as in fine-tuning."""

    headings: ClassVar[tuple[str, ...]] = (_MODEL, _SCORES, COLUMNS, _OPTIONS)

    labels: tuple[str, ...] | None = _option(
        "classify, tag: names of the classes in the order of their ids, separated by commas; by "
        "default those beside the weights."
    )
    pairs: bool | None = _option("classify: inputs are pairs of texts.")
    threshold: float | None = _option(
        "classify: with two labels, the minimum probability of the second one to be the answer; "
        "with --multilabel, the minimum probability of a label.",
        alias="threshold_to_export",
    )
    multilabel: bool | None = _option("classify: a text may have any number of the labels.")
    null_threshold: float | None = _option(
        'answer_v2: null odds (score of "no answer") from which on the answer is empty (0).'
    )
    windows: str | None = _option(
        "classify: read long texts in overlapping windows, and take the mean or the maximum of "
        "their probabilities; none cuts them.",
        choices=["mean", "max", "none"],
    )
    top_k: int | None = _option("fill_mask: number of pieces per [MASK] (5).")
    num_choices: int | None = _option("choose: number of endings per example (4).")
    max_qa_length: int | None = _option("choose: maximum length of an ending in tokens (128).")
    start_n_top: int | None = _option(
        "answer_v2: beam size, the number of answer starts considered (5)."
    )
    end_n_top: int | None = _option(
        "answer_v2: beam size, the number of answer ends considered per start (5)."
    )
    doc_stride: int | None = _option(
        "classify, answer: distance in tokens between the starts of successive windows (128)."
    )
    max_query_length: int | None = _option("answer: maximum length of a question in tokens (64).")
    max_answer_length: int | None = _option("answer: maximum length of an answer in tokens (30).")
    n_best_size: int | None = _option("answer: number of answers returned, best first (20).")
    max_seq_length: int | None = _option("Maximum length of a sequence in tokens (the model's).")

    def options(self, task: str) -> dict[str, Any]:
        """Returns the options of a task that are given, as its serving class names them."""
        options = {name: getattr(self, name) for name, of in TASKS_OF.items() if task in of}
        given = {name: value for name, value in options.items() if value is not None}
        if given.get("windows") == "none":
            given["windows"] = None
        return given


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings(ServingSettings, TableSettings):
    """The settings of albert-export."""

    model: str = _model(
        REQUIRED, "Trained model: a directory, checkpoint prefix, file or hf://OWNER/NAME."
    )
    task: str = _model(REQUIRED, "Task of the model.", choices=TASKS)
    export_dir: str = _model(REQUIRED, "Output directory, new or empty.")
    format: str = _model(
        "saved_model",
        "Format to write. tflite and onnx models take features, which albert-predict computes "
        "from text. web is onnx_int8 with a page that answers in the browser.",
        choices=["saved_model", *FORMATS, WEB],
    )
    eval_file: str | None = _scores(
        None,
        "Labelled .csv, .tsv, .jsonl or .parquet table; for answers SQuAD's .json, .jsonl or "
        ".parquet.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionSettings(ServingSettings):
    """The settings of albert-predict."""

    model: str = _model(
        REQUIRED,
        "Exported model (it can run code: only use one that you trust), or trained model.",
    )
    task: str | None = _model(
        None, "Task of a trained model; an exported one knows its own.", choices=TASKS
    )
    input_file: str | None = _model(None, "Text file to read; by default standard input.")
    json: bool = _model(False, "Print each answer as one line of JSON.")


_server = functools.partial(setting, group="Models and address")
_bounds = functools.partial(setting, group="Batches and limits", interval=POSITIVE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerSettings(Settings):
    """The settings of albert-serve."""

    model: tuple[str, ...] = _server(
        REQUIRED,
        "DIR or NAME=DIR: an export, or a folder of them, each named by its version's number; the "
        "highest answers unless a request names another. By default the name is the directory's. "
        "Repeat the flag for several models.",
        repeated=True,
    )
    host: str = _server("127.0.0.1", "Address to listen at; 0.0.0.0 lets other machines ask.")
    port: int = _server(8501, "Port to listen at; 0 takes a free one.", interval="[0, 65535]")
    access_log: bool = _server(True, "Print a line of JSON for each request.")
    max_batch_size: int = _bounds(32, "Texts that a model reads at once.")
    max_wait_ms: float = _bounds(
        0.0,
        "Time in ms that a text waits for others to fill its batch. With 0, batches are made of "
        "what arrives while all threads are busy.",
        interval="[0, 60000]",
    )
    threads: int = _bounds(1, "Batches of a model at the same time.")
    max_queue: int = _bounds(1024, "Texts that may wait; a request for more gets status 503.")
    max_body_bytes: int = _bounds(4_194_304, "Size of a request; a larger one gets status 413.")
    max_instances: int = _bounds(256, "Rows of a request, and endings of a row.")
    max_text_length: int = _bounds(100_000, "Characters of a text.")
    shutdown_seconds: int = _bounds(
        25, "Time to finish requests after SIGTERM. Kubernetes kills after 30.", interval=NATURAL
    )
