"""The settings of albert-export, albert-predict and albert-serve."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

from albert_tf.answers.kinds import KINDS, TASKS
from albert_tf.console.settings import NATURAL, POSITIVE, REQUIRED, Settings, setting
from albert_tf.conversion.settings import StoredSettings
from albert_tf.tasks.table import COLUMNS, TableSettings

# Formats for other runtimes -> file name.
FORMATS = {
    "tflite": "model.tflite",
    "tflite_int8": "model_int8.tflite",
    "onnx": "model.onnx",
    "onnx_int8": "model_int8.onnx",
}
# Formats: onnx_int8 with a web page, and TFLite for MediaPipe, with the name of its file.
WEB, MEDIAPIPE = "web", "mediapipe"
MEDIAPIPE_FILE = "mediapipe.tflite"

_MODEL, _SCORES = "Model and output", "Scores before and after, on your own data"
# Heading of the options, whose defaults are the values in fine-tuning.
_OPTIONS = "For some tasks, by default as in fine-tuning or, if that is unknown, as in parentheses"
_model = functools.partial(setting, group=_MODEL)
_scores = functools.partial(setting, group=_SCORES)


def _option(name: str) -> Any:
    """Returns the setting of an option, as the kinds that have it declare it."""
    having = [kind for kind in KINDS if name in kind.option_fields()]
    field = having[0].option_fields()[name]
    tasks = [task for task in TASKS if any(kind.task == task for kind in having)]
    help = f"{'all' if len(tasks) == len(TASKS) else ', '.join(tasks)}: {field.metadata['help']}"
    if type(field.default) in (int, float) and name != "max_seq_length":  # The model's own.
        help = f"{help.removesuffix('.')} ({field.default:g})."
    choices = field.metadata["choices"]
    return setting(
        None,
        help,
        group=_OPTIONS,
        choices=[*choices, "none"] if choices else (),
        alias=field.metadata["alias"],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings(StoredSettings, TableSettings):
    """The settings of albert-export; an option that is None is as in fine-tuning."""

    headings: ClassVar[tuple[str, ...]] = (_MODEL, _SCORES, COLUMNS, _OPTIONS)

    model: str = _model(
        REQUIRED, "Trained model: a directory, checkpoint prefix, file or hf://OWNER/NAME."
    )
    task: str = _model(REQUIRED, "Task of the model.", choices=TASKS)
    export_dir: str = _model(REQUIRED, "Output directory, new or empty.")
    format: str = _model(
        "saved_model",
        "Format to write. tflite and onnx models take features, which albert-predict computes "
        "from text. web is onnx_int8 with a page that answers in the browser. mediapipe is TFLite "
        "with the tokenizer, for MediaPipe's TextClassifier and TextEmbedder.",
        choices=["saved_model", *FORMATS, WEB, MEDIAPIPE],
    )
    num_hidden_layers: int | None = _model(
        None,
        "Number of layers, by default the config's. A model that was trained with elastic_depths "
        "may have one of those.",
        interval=POSITIVE,
    )
    depths: tuple[str, ...] = _model(
        (),
        "Smaller numbers of layers with which the export answers as well, for a model that was "
        "trained with elastic_depths: albert-predict and albert-serve have `depth`.",
    )
    description: str = _model("", "A sentence on the model, for its page.")
    examples_file: str | None = _model(
        None,
        "Texts as albert-predict reads them, of which the page offers the first two as examples.",
    )
    eval_file: str | None = _scores(
        None,
        "Labelled .csv, .tsv, .jsonl or .parquet table; for answers SQuAD's .json, .jsonl or "
        ".parquet.",
    )
    labels: tuple[str, ...] | None = _option("labels")
    pairs: bool | None = _option("pairs")
    multilabel: bool | None = _option("multilabel")
    threshold: float | None = _option("threshold")
    windows: str | None = _option("windows")
    pooling: str | None = _option("pooling")
    dimensions: int | None = _option("dimensions")
    normalize: bool | None = _option("normalize")
    similarity: str | None = _option("similarity")
    query_prompt: str | None = _option("query_prompt")
    document_prompt: str | None = _option("document_prompt")
    default_prompt: str | None = _option("default_prompt")
    top_k: int | None = _option("top_k")
    num_choices: int | None = _option("num_choices")
    max_qa_length: int | None = _option("max_qa_length")
    null_threshold: float | None = _option("null_threshold")
    start_n_top: int | None = _option("start_n_top")
    end_n_top: int | None = _option("end_n_top")
    doc_stride: int | None = _option("doc_stride")
    max_query_length: int | None = _option("max_query_length")
    max_answer_length: int | None = _option("max_answer_length")
    n_best_size: int | None = _option("n_best_size")
    max_seq_length: int | None = _option("max_seq_length")

    def options(self) -> dict[str, Any]:
        """Returns the options that are given, by name."""
        names = dict.fromkeys(name for kind in KINDS for name in kind.option_fields())
        values = {name: getattr(self, name, None) for name in names}
        given = {name: value for name, value in values.items() if value is not None}
        return {name: None if value == "none" else value for name, value in given.items()}

    def file(self, split: str) -> str:
        """Returns the file of a split, here always `eval_file`; see TaskSettings."""
        return self.eval_file or ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionSettings(StoredSettings):
    """The settings of albert-predict."""

    headings: ClassVar[tuple[str, ...]] = (_MODEL,)

    model: str = _model(
        REQUIRED,
        "Exported model (it can run code: only use one that you trust), or trained model.",
    )
    task: str | None = _model(
        None, "Task of a trained model; an exported one knows its own.", choices=TASKS
    )
    depth: int | None = _model(
        None,
        "Number of layers to apply, one of the export's `depths`; by default all.",
        interval=POSITIVE,
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
    poll_seconds: float = _server(
        10.0,
        "Time between looks into folders of versions, to load what is new or has changed there and "
        "take out what is gone, without a restart; with 0 never. After SIGHUP it looks at once.",
        interval="[0, 86400]",
    )
    depth: int | None = _server(
        None,
        "Number of layers to apply, one of each export's `depths`; by default all. A request may "
        "name another: ?depth=4 behind its path.",
        interval=POSITIVE,
    )
    host: str = _server("127.0.0.1", "Address to listen at; 0.0.0.0 lets other machines ask.")
    port: int | None = _server(
        None,
        "Port to listen at; 0 takes a free one. By default 8501, or $AIP_HTTP_PORT of Vertex AI.",
        interval="[0, 65535]",
    )
    allowed_hosts: tuple[str, ...] = _server(
        (),
        "Names by which clients may call the server, beside localhost and addresses; * is any, "
        "the default where other machines can ask. At 127.0.0.1 it is none, so that no page in a "
        "browser can give its own name to this machine and ask.",
    )
    allowed_origins: tuple[str, ...] = _server(
        (),
        "Web pages that may ask from browsers (CORS), as https://example.org; * is any. By default "
        "none but the server's own.",
    )
    api_key_file: str | None = _server(
        None,
        "Text file with a key in each line, one of which a request for answers has to bring, as "
        "`Authorization: Bearer KEY` or `X-Api-Key: KEY`. By default everybody may ask.",
    )
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
    timeout_seconds: float = _bounds(30.0, "Time to wait for an answer; then it is status 504.")
    max_body_bytes: int = _bounds(
        4_194_304, "Size of a request, also once unpacked; a larger one gets status 413."
    )
    max_instances: int = _bounds(256, "Rows of a request, and endings of a row.")
    max_text_length: int = _bounds(100_000, "Characters of a text.")
    shutdown_seconds: int = _bounds(
        25, "Time to finish requests after SIGTERM. Kubernetes kills after 30.", interval=NATURAL
    )
