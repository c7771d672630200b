"""Plans pre-training with a given text, devices and hours; each rule states its source.

Sizes of text and records are those of 20 MB of English Wikipedia with the release's vocabulary: one
sentence per line, rows of 512 tokens, and masks that are drawn in training. The generator's rate is
per CPU second of a busy EPYC core.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from albert_tf.config import AlbertConfig
from albert_tf.inspection import costs
from albert_tf.records.masking import MaskingSettings, count_full_row

LENGTH = 512  # The paper's.
BYTES_PER_WORD, BYTES_PER_TOKEN, TOKENS_PER_RECORD, RECORD_BYTES = 6.26, 4.60, 400.5, 770
GENERATED_PER_SECOND = 4.5e6  # Bytes of text.
# Bytes of text per file of records: after a kill the generator repeats only the last file.
SHARD_BYTES = 1e9
# Least bytes of text -> pieces in the vocabulary. Source: between the rows of docs/own_language.md.
PIECES = {0: 4_000, 3_000_000: 8_000, 20_000_000: 30_000}
# More passes over a text bring little. Source: docs/own_language.md.
MOST_PASSES = 20
# Batch, rate and warm-up of the release; a short run warms up for a tenth, as in small.flags.
BATCH, LEARNING_RATE, WARMUP_STEPS, WARMUP_SHARE = 4096, 0.00176, 3_125, 10
# The fewest updates with which LAMB trained BERT. Source: arXiv 1904.00962, abstract.
LEAST_STEPS = 8_599
# The release's steps between checkpoints; fewest saves per run; kept: the newest five, the best.
SAVE_STEPS, LEAST_SAVES, KEPT = 5_000, 10, 6


class Device(NamedTuple):
    """A kind of device."""

    kind: str  # "gpu", "tpu" or "cpu".
    peak: float  # FLOP/s of its matrix products.
    memory: float  # Bytes.
    mfu: float  # Share of the peak that training reaches.
    is_measured: bool = False  # Whether `mfu` is measured, not assumed.


# In bfloat16, without sparsity. Sources: NVIDIA's data sheets; cloud.google.com/tpu/docs, "Peak
# compute per chip". A CPU's core, in float32: the best product that docs/performance.md measured,
# and half of that machine's memory. It measured MFU for base on one H100 and on two cores.
DEVICES = {
    "h100": Device("gpu", 989.4e12, 80e9, 0.40, is_measured=True),
    "a100": Device("gpu", 312e12, 40e9, 0.30),
    "l4": Device("gpu", 121e12, 24e9, 0.30),
    "v4": Device("tpu", 275e12, 32e9, 0.30),
    "v5e": Device("tpu", 197e12, 16e9, 0.30),
    "v5p": Device("tpu", 459e12, 95e9, 0.30),
    "cpu": Device("cpu", 163e9, 6e9, 0.73, is_measured=True),
}


class Plan(NamedTuple):
    """A plan of pre-training."""

    config: AlbertConfig  # The model's, with the vocabulary's size.
    records: float
    core_hours: float  # Hours that one CPU core takes to write them.
    tokens_per_second: float  # All devices together, with padding.
    batch: int  # Sequences per step, over all devices.
    parts: int  # Micro-batches per step on each device.
    learning_rate: float  # LAMB's peak.
    steps: int
    warmup: int
    passes: float  # How often the run reads the text.
    save_steps: int  # Steps between checkpoints.
    checkpoint_bytes: int  # Weights and two moments.
    hours: float  # Time of all steps.


def make(
    config: AlbertConfig, text_bytes: float, device: Device, devices: int, hours: float
) -> Plan:
    """Plans the pre-training of a model on a text, on devices of one kind, in at most `hours`.

    Example:
      >>> from albert_tf import AlbertConfig
      >>> config = AlbertConfig.from_json_file("albert_base_v2")
      >>> plan = make(config, 50e9, DEVICES["h100"], devices=8, hours=24)
      >>> plan.batch, plan.steps, f"{plan.hours:.1f} hours"
      (4096, 132519, '13.9 hours')
    """
    config.check_length(LENGTH)
    # 1. The text, and its records.
    pieces = max(size for least, size in PIECES.items() if least <= text_bytes)
    config = dataclasses.replace(config, vocab_size=pieces)
    records = text_bytes / BYTES_PER_TOKEN / TOKENS_PER_RECORD

    # 2. Sequences: as many as the devices compute in the hours, unless the text has too few.
    masked = count_full_row(MaskingSettings.masked_lm_prob, LENGTH)
    sequence = costs.Shape(1, LENGTH, masked)
    per_hour = 3600 * devices * device.peak * device.mfu / costs.step_flops(config, sequence)
    sequences = min(hours * per_hour, MOST_PASSES * records)

    # 3. The largest batch that leaves enough steps: a power of two on each device.
    largest = min(BATCH, sequences / LEAST_STEPS)
    share = 2 ** max(0, math.floor(math.log2(largest / devices)))
    batch, steps = share * devices, int(sequences / (share * devices))
    if not steps:
        raise ValueError(
            f"no step of {batch} sequences fits: {hours:g} `hours` have {hours * per_hour:.2g}, "
            f"{MOST_PASSES} passes over `text_bytes` {MOST_PASSES * records:.2g}; give more"
        )
    # Activations in bfloat16, half of the float32 estimate, may fill half of the memory.
    parts, needed = 1, share * costs.activation_bytes(config, sequence)
    while parts < share and needed / parts > device.memory:
        parts *= 2
    return Plan(
        config,
        records=records,
        core_hours=text_bytes / GENERATED_PER_SECOND / 3600,
        tokens_per_second=per_hour * LENGTH / 3600,
        batch=batch,
        parts=parts,
        learning_rate=LEARNING_RATE * math.sqrt(batch / BATCH),
        steps=steps,
        warmup=min(WARMUP_STEPS, steps // WARMUP_SHARE),
        passes=steps * batch / records,
        save_steps=max(1, min(SAVE_STEPS, steps // LEAST_SAVES)),
        checkpoint_bytes=3 * costs.weight_bytes(config),
        hours=steps * batch / per_hour,
    )
