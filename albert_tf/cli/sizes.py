"""Sizes and costs of models: flags -> costs.py -> text. What users read is in commands.py."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

from absl import flags

from albert_tf import costs
from albert_tf.cli import checks
from albert_tf.config import AlbertConfig, shipped_models
from albert_tf.console import errors
from albert_tf.costs import Shape
from albert_tf.tasks import step_time

# By config: name, and parameters as the paper prints them. Source: its table 1.
_PAPER = {
    "bert_base": ("BERT base", "108M"),
    "bert_large": ("BERT large", "334M"),
    "albert_base_v2": ("ALBERT base", "12M"),
    "albert_large_v2": ("ALBERT large", "18M"),
    "albert_xlarge_v2": ("ALBERT xlarge", "60M"),
    "albert_xxlarge_v2": ("ALBERT xxlarge", "235M"),
}
# What --calibrate measures: little work for each byte, and much; deep, because the activations of a
# shallow model stay in the caches. (V, H, layers) with heads of 64.
_CALIBRATION = tuple(
    AlbertConfig(
        vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    for vocab_size, width, layers in (
        (8000, 128, 12),
        (30000, 256, 3),
        (8000, 256, 8),
        (8000, 512, 8),
    )
)
_CALIBRATION_TOKENS = 1024


def main(values: flags.FlagValues) -> None:
    """Prints what the flags ask for."""
    with errors.in_one_line(flags=values):
        for line in _markdown() if values.markdown else _lines(values):
            errors.print_to_reader(line)


def _markdown() -> Iterator[str]:
    yield "| model | layers | H | E | parameters in the paper | counted here |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, (title, printed) in _PAPER.items():
        config = AlbertConfig.from_json_file(shipped_models()[name])
        sizes = (config.num_hidden_layers, config.hidden_size, config.embedding_size)
        counted = f"{costs.count_encoder(config) / 1e6:.1f}M"
        yield f"| {' | '.join(map(str, (title, *sizes, printed, counted)))} |"


def _lines(values: flags.FlagValues) -> Iterator[str]:
    if not values.albert_config_file:
        raise ValueError(
            "no model given: set --albert_config_file, or --markdown for the paper's models"
        )
    config = AlbertConfig.from_json_file(values.albert_config_file)
    shape = Shape(values.train_batch_size, values.max_seq_length, values.max_predictions_per_seq)
    _check(values, config, shape)
    parts = costs.count_parameters(config)
    yield f"{'parameters':24}{sum(parts.values()):>20,}"
    for name, count in parts.items():
        yield f"  {name:22}{count:>20,}"
    yield f"  {'total without heads':22}{costs.count_encoder(config):>20,}"
    yield "bytes, float32"
    for name, count in (
        ("weights", costs.weight_bytes(config)),
        ("optimizer's moments", costs.optimizer_bytes(config)),
        ("activations of one step", costs.activation_bytes(config, shape)),
    ):
        yield f"  {name:22}{count:>20,}"
    forward = costs.forward_flops(config, shape) / shape.tokens
    yield "FLOPs per token"
    yield f"  {'forward pass':22}{forward:>20,.0f}"
    yield f"  {'training step':22}{costs.step_flops(config, shape) / shape.tokens:>20,.0f}"
    tokens = values.num_train_steps * shape.tokens
    yield "run"
    yield f"  {'tokens':22}{tokens:>20,}"
    yield f"  {'FLOPs':22}{values.num_train_steps * costs.step_flops(config, shape):>20.3g}"
    speeds = {}
    for source, speed in _speeds(values, config, shape):
        speeds[source] = speed
        yield f"  at {speed:,.0f} tokens/s, {source}:"
        hours = tokens / speed / 3600
        yield f"  {'hours':22}{hours:>20,.2f}"
        if values.watts:
            yield f"  {'kWh':22}{hours * values.watts / 1000:>20,.3f}"
    if {"predicted", "measured"} <= set(speeds):
        yield f"  {'predicted / measured':22}{speeds['predicted'] / speeds['measured']:>20,.2f}"


def _check(values: flags.FlagValues, config: AlbertConfig, shape: Shape) -> None:
    checks.check_positions(config, shape.seq)
    checks.check_predictions(shape.predictions, shape.seq)
    if values.watts and not (values.tokens_per_second or values.calibrate or values.measure):
        raise ValueError(
            f"--watts {values.watts:g} needs a speed to compute kWh: set --tokens_per_second, "
            "--calibrate or --measure too"
        )
    if values.measure:
        needed = costs.activation_bytes(config, shape)
        needed += 2 * costs.weight_bytes(config) + costs.optimizer_bytes(config)  # And gradients.
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > memory:
            raise ValueError(
                f"--measure with --train_batch_size {shape.batch} needs some {needed / 1e9:,.1f} "
                f"GB and this machine has {memory / 1e9:,.1f}: measure a smaller batch, and give "
                "its speed as --tokens_per_second"
            )


def _speeds(
    values: flags.FlagValues, config: AlbertConfig, shape: Shape
) -> Iterator[tuple[str, float]]:
    """Yields where a speed comes from, and tokens per second."""
    if values.tokens_per_second:
        yield "as given", values.tokens_per_second
    # In turns, so that what else the machine does befalls all.
    sizes = []
    if values.calibrate:
        batch = max(1, _CALIBRATION_TOKENS // shape.seq)
        small = Shape(batch, shape.seq, shape.predictions)
        most = max(shape.seq, _CALIBRATION[0].max_position_embeddings)
        sizes += [
            (dataclasses.replace(each, max_position_embeddings=most), small)
            for each in _CALIBRATION
        ]
    if values.measure:
        sizes.append((config, shape))
    seconds = step_time.measure(sizes)
    if values.calibrate:
        count = len(_CALIBRATION)
        machine = costs.Machine.fitted(sizes[:count], seconds[:count])
        yield "predicted", shape.tokens / machine.step_seconds(config, shape)
    if values.measure:
        yield "measured", shape.tokens / seconds[-1]
