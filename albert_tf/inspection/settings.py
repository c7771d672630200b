"""The settings of albert-inspect's commands."""

from __future__ import annotations

import dataclasses
import functools

from albert_tf.console.settings import NATURAL, POSITIVE, REQUIRED, Settings, setting
from albert_tf.conversion.settings import StoredSettings

# The columns of a word in a CoNLL-U file. Source: universaldependencies.org/format.html.
COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")

_MODELS, _INPUT = "Models and output", "What they are inspected on"
_models = functools.partial(setting, group=_MODELS)
_input = functools.partial(setting, group=_INPUT)
_LENGTH_HELP = (
    "Maximum length of a row in tokens; for records, the length they were made with; by default "
    "128, or the model's maximum if that is less."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectionSettings(StoredSettings):
    """Which models are inspected, and where the findings go."""

    headings = (_MODELS, _INPUT)

    model: tuple[str, ...] = _models(
        REQUIRED,
        "Trained models, separated by commas: directories, checkpoint prefixes, files or "
        "hf://OWNER/NAME.",
    )
    output_dir: str = _models(REQUIRED, "Output directory, new or empty.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilaritySettings(InspectionSettings):
    """The settings of albert-inspect similarity."""

    input_file: str = _input(
        REQUIRED,
        "Text files, a row per line, or pre-training records; paths or globs, separated by commas.",
    )
    max_seq_length: int | None = _input(None, _LENGTH_HELP, interval=POSITIVE)
    max_rows: int = _input(
        256, "Maximum number of rows to measure on, drawn at random.", interval=POSITIVE
    )
    extra_layers: int = _input(
        0,
        "Number of additional times to apply the shared block after the last layer.",
        interval=NATURAL,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSettings(InspectionSettings):
    """The settings of albert-inspect attention."""

    text: str = _input(REQUIRED, "The text.")
    text_pair: str | None = _input(None, "A second text.")

    def __post_init__(self) -> None:
        if len(self.model) > 1:
            raise ValueError(f"`model`: expected 1 model, got {len(self.model)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeSettings(InspectionSettings):
    """The settings of albert-inspect probes."""

    task: str = _input(
        REQUIRED,
        "What the probes predict: order, whether the segments of a record are swapped; "
        "neighbours, whether two adjacent pieces of a text are exchanged; table, the label of a "
        "text; conllu, a column of a word.",
        choices=["order", "neighbours", "table", "conllu"],
    )
    input_file: str = _input(
        REQUIRED, "Records, text, a table or a CoNLL-U file, as the task needs."
    )
    max_seq_length: int | None = _input(None, _LENGTH_HELP, interval=POSITIVE)
    text_column: str = _input("text", "table: column of the text.")
    label_column: str = _input("label", "table: column of the label.")
    group_column: str | None = _input(
        None,
        "table: column that tells which texts belong together, such as a document's name: all of "
        "one are held out, or none. By default each text is one.",
    )
    column: str = _input("upos", "conllu: column.", choices=COLUMNS)
    max_examples: int = _input(
        5000,
        "Maximum number of rows or words, a sample; a fifth of the rows, or of their groups, is "
        "held out.",
        interval=POSITIVE,
    )
    seed: int = _input(
        0,
        "Seed of samples and random weights.",
        interval="[0, 4294967295]",  # NumPy's.
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizesSettings(Settings):
    """The settings of albert-inspect sizes."""

    albert_config_file: str | None = setting(
        None,
        "Config of the model: a name such as albert_base_v2, or a JSON file.",
        group="Model",
    )
    markdown: bool = setting(
        False,
        "Print a table of the parameters of the paper's ALBERT and BERT models instead.",
        group="Model",
    )
    train_batch_size: int = setting(
        4096, "Number of sequences per step. 4096 is the paper's.", group="Run", interval=POSITIVE
    )
    max_seq_length: int = setting(
        512, "Number of tokens per sequence. 512 is the paper's.", group="Run", interval=POSITIVE
    )
    max_predictions_per_seq: int = setting(
        20,
        "Number of masked tokens per sequence. 20 is the release's.",
        group="Run",
        interval=POSITIVE,
    )
    num_train_steps: int = setting(
        125000, "Number of training steps. 125000 is the paper's.", group="Run", interval=POSITIVE
    )

    def __post_init__(self) -> None:
        if not self.albert_config_file and not self.markdown:
            raise ValueError(
                "no model given: set `albert_config_file`, or `markdown` for the paper's models"
            )
