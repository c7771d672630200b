"""albert-inspect: what models cost, how runs went, what trained models' layers do.

Each command checks its settings and files before it loads a model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

from albert_tf.config import AlbertConfig, shipped_models
from albert_tf.console import errors, log, tensorflow_logs
from albert_tf.console.settings import NATURAL, POSITIVE, REQUIRED, Settings, setting
from albert_tf.conversion.settings import StoredSettings
from albert_tf.inspection import plan as planning
from albert_tf.inspection.plan import DEVICES
from albert_tf.storage import files

if TYPE_CHECKING:  # --help needs no TensorFlow.
    from albert_tf.conversion.stored_model import ModelLocation
    from albert_tf.text.tokenization import Tokenizer

_MODELS, _INPUT = "Models and output", "What they are inspected on"
_models = functools.partial(setting, group=_MODELS)
_input = functools.partial(setting, group=_INPUT)
_run = functools.partial(setting, group="Run")
_LENGTH = 128
_LENGTH_HELP = (
    "Maximum length of a row in tokens; for records, the length they were made with; by default "
    f"{_LENGTH}, or the model's maximum if that is less."
)
# Flags with which a run uses a given number of devices of a kind.
_GPU = "--backend=jax --precision=bfloat16 "
_USES = {"gpu": _GPU, "tpu": _GPU + "--use_tpu --num_tpu_cores={} ", "cpu": ""}
# Config -> name and number of parameters as printed in the paper. Source: its table 1.
_PAPER = {
    "bert_base": ("BERT base", "108M"),
    "bert_large": ("BERT large", "334M"),
    "albert_base_v2": ("ALBERT base", "12M"),
    "albert_large_v2": ("ALBERT large", "18M"),
    "albert_xlarge_v2": ("ALBERT xlarge", "60M"),
    "albert_xxlarge_v2": ("ALBERT xxlarge", "235M"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectionSettings(StoredSettings):
    """The settings of all commands on trained models."""

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
class CurveSettings(Settings):
    """The settings of albert-inspect curve."""

    runs: tuple[str, ...] = _models(
        REQUIRED, "Output directories of training runs, separated by commas; they may go on."
    )
    output_dir: str = _models(REQUIRED, "Output directory, new or empty.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizesSettings(Settings):
    """The settings of albert-inspect sizes."""

    albert_config_file: str | None = setting(
        None, "Config of the model: a name such as albert_base_v2, or a JSON file.", group="Model"
    )
    markdown: bool = setting(
        False,
        "Print a table of the parameters of the paper's ALBERT and BERT models instead.",
        group="Model",
    )
    train_batch_size: int = _run(
        4096, "Number of sequences per step. 4096 is the paper's.", interval=POSITIVE
    )
    max_seq_length: int = _run(
        512, "Number of tokens per sequence. 512 is the paper's.", interval=POSITIVE
    )
    max_predictions_per_seq: int = _run(
        20, "Number of masked tokens per sequence. 20 is the release's.", interval=POSITIVE
    )
    num_train_steps: int = _run(
        125000, "Number of training steps. 125000 is the paper's.", interval=POSITIVE
    )

    def __post_init__(self) -> None:
        if not self.albert_config_file and not self.markdown:
            raise ValueError(
                "no model given: set `albert_config_file`, or `markdown` for the paper's models"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings(Settings):
    """The settings of albert-inspect plan."""

    text_bytes: float = _input(REQUIRED, "Size of the text in bytes: 50e9.", interval="(0, inf)")
    albert_config_file: str = setting(
        "albert_base_v2",
        "Config of the model: a name, or a JSON file; its vocab_size follows from the text.",
        group="Model",
    )
    device: str = _run(REQUIRED, "A GPU, a TPU's chip, or a CPU's core.", choices=tuple(DEVICES))
    devices: int = _run(1, "Number of devices.", interval=POSITIVE)
    hours: float = _run(REQUIRED, "Maximum hours of training.", interval="(0, inf)")
    mfu: float | None = _run(
        None,
        "Share of the devices' peak FLOP/s that is reached. By default what was measured on an "
        "H100 and a CPU, for albert_base_v2; of other devices an assumption.",
        interval="(0, 1]",
    )


def similarity(settings: SimilaritySettings) -> None:
    """Measures the L2 distance and the angle between input and output of each layer.

    As in figure 1 of the paper.
    """
    with _running(settings):
        from albert_tf.inspection import models
        from albert_tf.inspection import similarity as similar

        paths = files.list_files(settings.input_file)
        of_records = models.are_records(paths)
        # All models read the same lines, each with its own vocabulary.
        lines = [] if of_records else models.sample(models.texts(paths), settings.max_rows)
        prepared = []
        for stored in _stored(settings):
            config = stored.config()
            models.check_extra_layers(config, settings.extra_layers)
            length = _length(settings, config)
            if of_records:
                rows = models.record_rows(paths, config, length, settings.max_rows)
            else:
                rows = models.text_rows(lines, _tokenizer(stored), length)
            prepared.append((stored, rows))
        # All models fit their rows: now load one after the other.
        found = {}
        for stored, rows in prepared:
            model = models.lengthened(models.load_encoder(stored), settings.extra_layers)
            found[stored.path] = similar.measure(model, rows)
        table = similar.table(found, settings.extra_layers)
        figure = similar.draw(found, settings.extra_layers)
        _write(settings, {"similarity.csv": table, "similarity.png": figure})
        print(table, end="")


def attention(settings: AttentionSettings) -> None:
    """Computes how much each piece of a text attends to each, in every head."""
    with _running(settings):
        from albert_tf.inspection import attention as attending
        from albert_tf.inspection import models

        (stored,) = _stored(settings)
        texts = (_tokenizer(stored), settings.text, settings.text_pair)
        pieces, probabilities = attending.of_text(models.load_encoder(stored), *texts)
        figure = attending.draw(pieces, probabilities)
        arrays = attending.npz(pieces, probabilities)
        _write(settings, {"attention.npz": arrays, "attention.png": figure})
        logging.info("attention of %d layers, %d heads, %d pieces", *probabilities.shape[:3])


def curve(settings: CurveSettings) -> None:
    """Draws losses, learning rate and speed of training runs, and writes them as a table."""
    with _running(settings):
        from albert_tf.inspection import curves

        found = {path: curves.read(path) for path in dict.fromkeys(settings.runs)}
        _write(settings, {"curve.csv": curves.table(found), "curve.png": curves.draw(found)})


@contextlib.contextmanager
def _running(settings: InspectionSettings | CurveSettings) -> Iterator[None]:
    """Imports TensorFlow; a user error in the body ends the process with one line."""
    log.begin()
    tensorflow_logs.import_tensorflow()
    with errors.in_one_line(flags=settings.names()):
        with errors.of_extra("inspect", "the figure"):
            importlib.import_module("matplotlib")
        files.check_free(settings.output_dir)
        yield


def _stored(settings: InspectionSettings) -> list[ModelLocation]:
    found = [settings.stored(path) for path in dict.fromkeys(settings.model)]
    for stored in found:
        stored.config()  # Raises before any model is loaded.
    return found


def _length(settings: SimilaritySettings, config: AlbertConfig) -> int:
    length = settings.max_seq_length or min(_LENGTH, config.max_position_embeddings)
    config.check_length(length)
    return length


def _tokenizer(stored: ModelLocation) -> Tokenizer:
    vocabulary = stored.vocabulary()
    vocabulary.check(stored.config())
    return vocabulary.tokenizer


def _write(
    settings: InspectionSettings | CurveSettings, contents: Mapping[str, str | bytes]
) -> None:
    # The directory appears under its name once all files are in it.
    with files.whole_directory(settings.output_dir) as temporary:
        for name, content in contents.items():
            files.replace(os.path.join(temporary, name), content)
    logging.info("%s: %s", settings.output_dir, ", ".join(contents))


def sizes(settings: SizesSettings) -> None:
    """Prints what a model and a run cost: parameters, FLOPs, bytes."""
    with errors.in_one_line(flags=settings.names()):
        for line in _markdown() if settings.markdown else _costs(settings):
            errors.print_to_reader(line)


def _markdown() -> Iterator[str]:
    from albert_tf.inspection import costs

    yield "| model | layers | H | E | parameters in the paper | counted here |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, (title, printed) in _PAPER.items():
        # A file in the working directory may have a shipped model's name.
        config = AlbertConfig.from_json_file(shipped_models()[name])
        shape = (config.num_hidden_layers, config.hidden_size, config.embedding_size)
        counted = f"{costs.count_encoder(config) / 1e6:.1f}M"
        yield f"| {' | '.join(map(str, (title, *shape, printed, counted)))} |"


def _costs(settings: SizesSettings) -> Iterator[str]:
    from albert_tf.inspection import costs

    config = AlbertConfig.from_json_file(settings.albert_config_file)
    shape = costs.Shape(
        settings.train_batch_size, settings.max_seq_length, settings.max_predictions_per_seq
    )
    # Layers that share their weights count once, however deep the model is.
    parts = costs.count_parameters(config)
    yield f"{'parameters':24}{sum(parts.values()):>20,}"
    for name, count in parts.items():
        yield f"  {name:22}{count:>20,}"
    yield f"  {'total without heads':22}{costs.count_encoder(config):>20,}"
    yield "bytes, float32"
    # Training holds two moments for each weight, and the activations that the gradient needs.
    weights = costs.weight_bytes(config)
    for name, count in (
        ("weights", weights),
        ("optimizer's moments", 2 * weights),
        ("activations of one step", costs.activation_bytes(config, shape)),
    ):
        yield f"  {name:22}{count:>20,}"
    # FLOPs do grow with the depth, since each application of a shared layer is computed.
    step = costs.step_flops(config, shape)
    yield "FLOPs per token"
    yield f"  {'forward pass':22}{costs.forward_flops(config, shape) / shape.tokens:>20,.0f}"
    yield f"  {'training step':22}{step / shape.tokens:>20,.0f}"
    yield f"  {'Muon':22}{costs.muon_flops(config) / shape.tokens:>20,.0f}"
    yield "run"
    yield f"  {'tokens':22}{settings.num_train_steps * shape.tokens:>20,}"
    yield f"  {'FLOPs':22}{settings.num_train_steps * step:>20.3g}"


def plan(settings: PlanSettings) -> None:
    """Plans a pre-training: prints what a text, devices and hours allow, and the commands."""
    with errors.in_one_line(flags=settings.names()):
        for line in _planned(settings):
            errors.print_to_reader(line)


def _planned(settings: PlanSettings) -> Iterator[str]:
    device, count = DEVICES[settings.device], settings.devices
    how = "measured for albert_base_v2" if device.is_measured else "assumed: measure, give --mfu"
    if settings.mfu:
        device, how = device._replace(mfu=settings.mfu), "as given"
    config = AlbertConfig.from_json_file(settings.albert_config_file)
    length, hours = settings.text_bytes, settings.hours
    made = planning.make(config, length, device, count, hours)
    # 1. Names, values, and where these are from. Text is assumed to be like English.
    a_word, a_token = planning.BYTES_PER_WORD, planning.BYTES_PER_TOKEN
    fitting = made.tokens_per_second * 3600 * hours
    kept = f"{planning.KEPT} are kept: {planning.KEPT * made.checkpoint_bytes / 1e9:.3g} GB"
    for name, value, remark in (
        ("words", f"{length / a_word:,.0f}", f"{a_word} bytes each: English Wikipedia"),
        ("tokens", f"{length / a_token:,.0f}", f"{a_token} bytes each: the same"),
        ("vocabulary", f"{made.config.vocab_size:,}", "pieces, by docs/own_language.md"),
        ("records", f"{made.records:,.0f}", f"of {planning.LENGTH} tokens, masked in training"),
        ("disk for records", f"{planning.RECORD_BYTES * made.records / 1e9:.3g} GB", ""),
        ("writing them", f"{made.core_hours:.3g} hours", "of one core, an EPYC's"),
        ("MFU", f"{100 * device.mfu:.3g}%", f"of {device.peak / 1e12:g} TFLOP/s a device; {how}"),
        ("tokens/s", f"{made.tokens_per_second:,.0f}", "by FLOPs; padding counts as tokens"),
        ("tokens that fit", f"{fitting:,.0f}", f"in {hours:g} hours"),
        ("passes", f"{made.passes:.1f}", f"over the text, at most {planning.MOST_PASSES}"),
        ("batch", f"{made.batch:,}", f"{made.batch // count} a device, in {made.parts} parts"),
        ("learning rate", f"{made.learning_rate:.3g}", "0.00176 x sqrt(batch / 4,096), for LAMB"),
        ("steps", f"{made.steps:,}", ""),
        ("warm-up", f"{made.warmup:,}", "the release's steps, at most a tenth of all"),
        ("a checkpoint", f"{made.checkpoint_bytes / 1e6:,.0f} MB", kept),
        ("saved each", f"{made.save_steps:,} steps", "the release's, at least ten times"),
        ("training", f"{made.hours:.3g} hours", "by FLOPs; what several devices wait is not in it"),
    ):
        yield f"{name:18}{value:>18}  {remark}".rstrip()

    # 2. The commands, with the flags that differ from the defaults.
    shards = math.ceil(length / planning.SHARD_BYTES)
    text, pieces = "--input_file='text/*.txt'", f"--vocab_size={made.config.vocab_size}"
    masks = "--masking=dynamic --max_predictions_per_seq=0"
    yield f"albert-train-sentencepiece {text} --model_prefix=vocab/spm {pieces}"
    yield (
        f"albert-create-pretraining-data {text} --spm_model_file=vocab/spm.model {masks} "
        f"--dupe_factor=1 --output_file=records/all.tfrecord --num_output_shards={shards}"
    )
    yield (
        f"albert-pretrain --albert_config_file={shlex.quote(settings.albert_config_file)} {pieces} "
        f"--input_file='records/all.tfrecord-*' --output_dir=model {masks} "
        f"{_USES[device.kind].format(count)}--train_batch_size={made.batch} "
        f"--gradient_accumulation_steps={made.parts} --learning_rate={made.learning_rate:.3g} "
        f"--num_train_steps={made.steps} --num_warmup_steps={made.warmup} "
        f"--save_checkpoints_steps={made.save_steps}"
    )


# Name -> function and settings.
COMMANDS: dict[str, tuple[Callable[[Any], None], type[Any]]] = {
    "similarity": (similarity, SimilaritySettings),
    "attention": (attention, AttentionSettings),
    "curve": (curve, CurveSettings),
    "sizes": (sizes, SizesSettings),
    "plan": (plan, PlanSettings),
}
