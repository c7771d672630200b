"""Pre-trains a tiny ALBERT on the State of the Union addresses and fine-tunes it, from raw text.

    make demo

says what it will do and how long that takes here, runs the project's own scripts one after another,
and prints each command first. All files go to demo/; what already exists is not made again, and
interrupted training resumes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf import Tokenizer
from albert_tf.console import log, tensorflow_logs
from albert_tf.storage import checkpoint, eval_results

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAX_SEQ_LENGTH = 64
MAX_PREDICTIONS = 10
# How far above chance this run must get, or something is broken.
LEAST_MASKED_LM_RATIO = 2.2
# How far the loss must be below the unigram loss, which predicts only the pieces' frequencies: a
# model that has learned no more than these is at 0.
LEAST_MASKED_LM_NATS = 0.3
LEAST_SENTENCE_ORDER_GAIN = 0.06
CONFIG = os.path.relpath(os.path.join(ROOT, "configs/albert_tiny.json"))


def say_what_comes(directory: str, steps: int, batch_size: int) -> None:
    """Prints what the demo will do, and how long each part takes on this machine."""
    print(f"From raw text to trained models, in {directory}/. First, how fast is this machine?\n")
    sys.stdout.flush()
    # Each part, its last file, and its duration in pre-training steps, as measured once.
    tiny = f"a model of 4 layers, {steps:,} steps of {batch_size} x {MAX_SEQ_LENGTH} tokens"
    parts = [
        ("raw text, a vocabulary, pre-training records", "dev.tfrecord", 700),
        (f"pre-training: {tiny}", f"albert_tiny/model.ckpt-{steps}.index", steps + 400),
        ("fine-tuning it: in which era was this said?", "era/eval_results.txt", 1200),
        ("the same from scratch", "era_from_scratch/eval_results.txt", 1200),
    ]
    left = {what: size for what, file, size in parts if not os.path.exists(f"{directory}/{file}")}
    seconds = measure_step(batch_size) if left else 0.0
    for what, *_ in parts:
        time_left = f"about {_rounded(left[what] * seconds)}" if what in left else "is there"
        print(f"  {time_left:<14} {what}")
    total, milliseconds = _rounded(sum(left.values()) * seconds), 1000 * seconds
    print(
        f"\nAbout {total} in all, at {milliseconds:.0f} ms a step of pre-training on this machine."
    )
    print("Ctrl-C stops it; the same command goes on from there.", flush=True)


def _rounded(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(seconds, 1):.0f} s"


def measure_step(batch_size: int) -> float:
    """Trains on noise for some seconds; returns the seconds per step."""
    tensorflow_logs.import_tensorflow()
    import tensorflow as tf

    from albert_tf import AlbertConfig
    from albert_tf.tasks.pretraining import PretrainingTask
    from albert_tf.training.optimizers import create_optimizer
    from albert_tf.training.tensorflow_devices import TensorFlowDevices, create_strategy
    from albert_tf.training.trainer import Trainer

    class Stopwatch(contextlib.nullcontext):
        """Keeps the time of the last loop of steps."""

        def report(self, step: int, stats: Mapping[str, float], seconds: float, _: bool) -> None:
            self.seconds = seconds

    def noise(_: tf.distribute.InputContext) -> tf.data.Dataset:
        rng = np.random.default_rng(0)
        rows, masks = (batch_size, MAX_SEQ_LENGTH), (batch_size, MAX_PREDICTIONS)
        batch: dict[str, Any] = {
            "input_ids": rng.integers(5, 8000, rows),
            "input_mask": np.ones(rows),
            "segment_ids": np.zeros(rows),
            "masked_lm_positions": rng.integers(0, MAX_SEQ_LENGTH, masks),
            "masked_lm_ids": rng.integers(5, 8000, masks),
            "sentence_order_labels": np.zeros(batch_size),
        }
        batch = {name: values.astype(np.int32) for name, values in batch.items()}
        batch["masked_lm_weights"] = np.ones(masks, np.float32)
        return tf.data.Dataset.from_tensors(batch).repeat()

    with tempfile.TemporaryDirectory() as folder:
        task = PretrainingTask(AlbertConfig.from_json_file(CONFIG))
        devices = TensorFlowDevices(create_strategy(False))
        trainer = Trainer(task, devices, folder, lambda: create_optimizer(0.001, 100, 10, "muon"))
        watch = Stopwatch()
        trainer.train(noise, watch, 21, steps_per_loop=10, save_steps=21, keep_max=1)
    return watch.seconds


def run(script: str, outputs: Sequence[str] = (), **flags: object) -> float:
    """Runs a script of the project unless its outputs exist; returns the seconds it took."""
    command = [os.path.join(ROOT, script), *(f"--{name}={value}" for name, value in flags.items())]
    shown = shlex.join([os.path.relpath(command[0]), *command[1:]])
    if outputs and all(os.path.exists(path) for path in outputs):
        print(f"\n# {', '.join(outputs)} already exist and are kept", flush=True)
        return 0.0
    print(f"\n$ python {shown}", flush=True)
    started, stops = time.monotonic(), []
    # Ctrl-C also reaches the script, which saves and exits.
    before = signal.signal(signal.SIGINT, lambda *_: stops.append(True))
    code = subprocess.run([sys.executable, *command], check=False).returncode
    signal.signal(signal.SIGINT, before)
    if stops:
        sys.exit("stopped: the same command goes on from there")
    if code:
        sys.exit(f"error: this command failed with exit code {code}: {shown}")
    return time.monotonic() - started


def prepare_text(directory: str) -> dict[str, str]:
    """Makes training and held-out documents; returns their paths by name."""
    text = f"{directory}/text"
    paths = {name: f"{text}/{name}.txt" for name in ("train", "dev")}
    passages = [f"{text}/passages_{name}.jsonl" for name in paths]
    run("data/prepare_sotu.py", [*paths.values(), *passages], output_dir=text)
    return paths


def prepare_records(directory: str, paths: dict[str, str]) -> dict[str, str]:
    """Makes a vocabulary and records; returns their paths and those of the text."""
    made = dict(paths)
    run(
        "data/train_sentencepiece.py",
        [f"{directory}/spm.model"],
        input_file=paths["train"],
        model_prefix=f"{directory}/spm",
        vocab_size=8000,
    )
    for name, passes in (("train", 5), ("dev", 2)):
        output = f"{directory}/{name}.tfrecord"
        run(
            "data/create_pretraining_data.py",
            [output],
            input_file=paths[name],
            output_file=output,
            spm_model_file=f"{directory}/spm.model",
            max_seq_length=MAX_SEQ_LENGTH,
            max_predictions_per_seq=MAX_PREDICTIONS,
            dupe_factor=passes,
            # Shorter examples are often one sentence, which has no order to predict.
            short_seq_prob=0.0,
        )
        made[f"{name}_records"] = output
    return made


def pretrain(directory: str, paths: dict[str, str], steps: int, batch_size: int) -> float:
    """Trains, then evaluates on the held-out addresses; returns the training's seconds."""
    shared = {
        "albert_config_file": CONFIG,
        "output_dir": f"{directory}/albert_tiny",
        "max_seq_length": MAX_SEQ_LENGTH,
        "max_predictions_per_seq": MAX_PREDICTIONS,
        "num_train_steps": steps,
    }
    # A checkpoint that is not listed was left by a killed run.
    listed = checkpoint.listed(f"{directory}/albert_tiny")
    last = f"{directory}/albert_tiny/model.ckpt-{steps}"
    seconds = run(
        "run_pretraining.py",
        [f"{last}.index"] if last in listed else [],
        input_file=paths["train_records"],
        train_batch_size=batch_size,
        recipe="fast",
        save_checkpoints_steps=1000,
        **shared,
    )
    run(
        "run_pretraining.py",
        input_file=paths["dev_records"],
        do_train=False,
        do_eval=True,
        max_eval_steps=1000,
        **shared,
    )
    return seconds


def fine_tune(directory: str, text: str, name: str, **start: object) -> float:
    """Learns a passage's era; returns the accuracy on passages of held-out addresses."""
    output_dir = f"{directory}/{name}"
    steps = 500
    run(
        "run_finetune.py",
        [f"{output_dir}/eval_results.txt"],
        task_name="classification",
        label_column="era",
        train_file=f"{text}/passages_train.jsonl",
        eval_file=f"{text}/passages_dev.jsonl",
        spm_model_file=f"{directory}/spm.model",
        albert_config_file=CONFIG,
        output_dir=output_dir,
        do_train=True,
        do_eval=True,
        max_seq_length=MAX_SEQ_LENGTH,
        learning_rate=0.0003,
        train_step=steps,
        warmup_step=steps // 10,
        save_checkpoints_steps=steps,
        eval_batch_size=64,
        **start,
    )
    return eval_results.read_last(output_dir)["eval_accuracy"]


def print_eras(directory: str, text: str) -> bool:
    """Fine-tunes twice and prints the results; returns whether pre-training helped."""
    weights = f"{directory}/albert_tiny"
    pretrained = fine_tune(directory, text, "era", init_checkpoint=weights)
    scratch = fine_tune(directory, text, "era_from_scratch", from_scratch=True)
    with open(f"{text}/passages_dev.jsonl", encoding="utf-8") as file:
        eras = collections.Counter(json.loads(line)["era"] for line in file)
    era, count = eras.most_common(1)[0]
    print("\nEra of passages of held-out addresses, accuracy")
    print(f"  ALBERT, pre-trained above   {pretrained:.3f}")
    print(f"  ALBERT from scratch         {scratch:.3f}")
    print(f"  always {era:<15}      {count / sum(eras.values()):.3f}")
    return pretrained > max(scratch, count / sum(eras.values()))


def chance_baselines(records: str, vocabulary: str) -> tuple[float, str, float, float]:
    """Returns the scores of guesses that ignore the text.

    The share of the most frequent masked piece; that piece; the unigram loss in nats; the share of
    the larger class.
    """
    tensorflow_logs.import_tensorflow()
    import tensorflow as tf

    from albert_tf.records import frequencies
    from albert_tf.records.input_files import untuned
    from albert_tf.records.spec import pretraining_spec

    spec = pretraining_spec(MAX_SEQ_LENGTH, MAX_PREDICTIONS)
    rows = untuned(tf.data.TFRecordDataset(records).batch(1024).map(spec.parse))
    batches = list(rows.as_numpy_iterator())
    counts = frequencies.count_masked(batches)
    swapped = np.concatenate([batch["sentence_order_labels"] for batch in batches]).mean()
    piece = Tokenizer(spm_model_file=vocabulary).convert_ids_to_tokens([int(counts.argmax())])[0]
    chance = counts.max() / counts.sum()
    return chance, piece, frequencies.loss(counts), max(swapped, 1 - swapped)


def print_table(directory: str, paths: dict[str, str], tokens: int, seconds: float) -> bool:
    """Prints the results; returns whether the model learned enough."""
    results = eval_results.read_last(f"{directory}/albert_tiny")
    chance, piece, unigram_loss, majority = chance_baselines(
        paths["dev_records"], f"{directory}/spm.model"
    )
    masked_lm, order = results["masked_lm_accuracy"], results["sentence_order_accuracy"]
    loss = results["masked_lm_loss"]
    gain = f"{100 * (order - majority):+.1f} points over the larger class"
    print("\nOn held-out addresses      ALBERT   chance")
    print(
        f"  masked LM accuracy        {masked_lm:.3f}    {chance:.3f}   "
        f"{masked_lm / chance:.2f} times always {piece!r}"
    )
    print(
        f"  masked LM loss            {loss:.3f}    {unigram_loss:.3f}   "
        f"{unigram_loss - loss:.2f} nats below the unigram loss"
    )
    print(f"  sentence order accuracy   {order:.3f}    {majority:.3f}   {gain}")
    if seconds:
        rate = f"{tokens / seconds:,.0f} tokens/s"
        print(f"\n{tokens:,} tokens in {seconds:.0f} s, start-up included: {rate}")
    print(f"\nFiles in {directory}/")
    for path in (*paths.values(), f"{directory}/spm.model", f"{directory}/albert_tiny"):
        print(f"  {path}")
    return (
        masked_lm >= LEAST_MASKED_LM_RATIO * chance
        and loss <= unigram_loss - LEAST_MASKED_LM_NATS
        and order >= majority + LEAST_SENTENCE_ORDER_GAIN
    )


def print_what_is_next(directory: str) -> None:
    """Prints three commands that show what the models can do."""
    tiny, era = f"{directory}/albert_tiny", f"{directory}/era/model.ckpt-best"
    fill_mask = log.command("albert-predict", model=tiny, task="fill_mask")
    classify = log.command("albert-predict", model=era, task="classify")
    print("\nThree things to try next")
    print(f"  the era of a sentence: echo 'We went to the Moon.' | {classify}")
    print(f"  the hidden word: echo 'The United States [MASK] America' | {fill_mask}")
    print(f"  how it learned: {log.command('tensorboard', logdir=tiny)}")


def main() -> None:
    """Runs the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", default="demo", help="folder for all files")
    parser.add_argument("--num_train_steps", type=int, default=5000)
    parser.add_argument("--train_batch_size", type=int, default=16)
    arguments = parser.parse_args()
    directory, steps = arguments.output_dir, arguments.num_train_steps
    os.makedirs(directory, exist_ok=True)
    say_what_comes(directory, steps, arguments.train_batch_size)
    paths = prepare_records(directory, prepare_text(directory))
    seconds = pretrain(directory, paths, steps, arguments.train_batch_size)
    tokens = steps * arguments.train_batch_size * MAX_SEQ_LENGTH
    learned = print_table(directory, paths, tokens, seconds)
    helped = print_eras(directory, os.path.dirname(paths["train"]))
    print_what_is_next(directory)
    if not learned or not helped:
        sys.exit("error: the model learned less than expected on this text")


if __name__ == "__main__":
    main()
