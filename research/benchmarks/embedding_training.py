"""Trains vectors on STS-B by albert_tf and sentence-transformers' Trainer, in turns of ten steps.

    python research/benchmarks/embedding_training.py --model DIR --data GLUE/STS-B

Both begin with the same weights, and have the same loss, batches in the same order, maximum length,
rate with warm-up and linear decay, and AdamW with bias correction and without weight decay, as the
Trainer has it. The batches are those of albert_tf's plan. A step includes reading the input,
and for theirs tokenising. Prints, for each seed, the Spearman correlation on the dev set before and
after training and the median seconds per step; and the median of the turns' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from workers import Worker, in_process

MAX_LENGTH = 64
WARM_UP = 0.1
# Steps per turn.
AT_ONCE = 10

Answer = Callable[..., dict[str, Any]]


def prepare(model: str, folder: str) -> None:
    """Writes a model with mean pooling as a folder of sentence-transformers."""
    import albert_tf
    from albert_tf.answers.embed import Embed
    from albert_tf.conversion.convert import convert
    from albert_tf.storage.run_record import RunRecord, TaskRecord

    ours = Path(folder, "ours")
    ours.mkdir()
    albert_tf.AlbertForEmbedding.from_weights(model).save(ours / "model.keras")
    albert_tf.Preprocessor.from_weights(model).save(ours)
    kind = Embed(max_seq_length=MAX_LENGTH)
    RunRecord({}, {}, task=TaskRecord(kind.task_name, kind.to_json())).write(str(ours))
    convert(str(ours), "huggingface", str(Path(folder, "theirs")))


def ours(folder: str, data: str, seed: str, how: str) -> Answer:
    """albert-finetune, step by step; an answer with scores also has the examples' order."""
    from albert_tf.cli import finetune
    from albert_tf.cli.finetune_settings import FinetuningSettings
    from albert_tf.training import length_buckets
    from albert_tf.training.schedules import WarmupPolynomialDecay
    from albert_tf.training.trainer import StepIterators

    given = json.loads(how)
    settings = FinetuningSettings.of(
        task_name="embedding",
        init_checkpoint=f"{folder}/ours",
        output_dir=f"{folder}/out-{seed}",
        train_file=f"{data}/train.tsv",
        eval_file=f"{data}/dev.tsv",
        text_column="sentence1",
        text_pair_column="sentence2",
        label_column="score",
        max_seq_length=MAX_LENGTH,
        train_batch_size=given["batch"],
        eval_batch_size=32,
        num_train_epochs=given["epochs"],
        learning_rate=given["rate"],
        weight_decay_rate=0.0,
        adam_epsilon=1e-8,
        random_seed=int(seed),
        do_train=True,
        do_eval=True,
    )
    settings, run = finetune.prepare(settings, contextlib.ExitStack())
    trainer, task, split = run.trainer, run.task, run.splits["train"]
    trainer.optimizer.bias_correction = True
    table, count = split.features.select(task.inputs + task.labels), settings.train_step
    # The decay begins when the warm-up ends; the release's begins at step 0.
    warm_up = int(WARM_UP * count)
    trainer.optimizer.learning_rate = WarmupPolynomialDecay(
        given["rate"], count, warm_up, first_decay_step=warm_up
    )
    plan = length_buckets.training_batches(
        table.lengths, split.batch_size, split.static_lengths, settings.random_seed, count
    )
    source = table.training_input(plan, 0, trainer.devices.static_shapes)
    iterators = StepIterators(trainer.devices, source, 0, count)

    def answer(step: int = 0, steps: int = 0) -> dict[str, Any]:
        seconds = []
        for i in range(step, step + steps):
            start = time.perf_counter()
            trainer._train_runs(iterators.runs(i, 1))
            seconds.append(time.perf_counter() - start)
        if steps:
            return {"seconds": seconds}
        scores = task.scores(run.splits["dev"].examples, run.predict("dev", "the model"))
        return {"spearman": scores["spearman"], "order": plan.rows.tolist()}

    return answer


def theirs(folder: str, data: str, seed: str, how: str) -> Answer:
    """sentence-transformers' Trainer in a thread that waits for a request before each step."""
    import datasets
    import sentence_transformers
    import transformers
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer import evaluation, losses
    from torch.utils.data import SequentialSampler

    given = json.loads(how)
    model = sentence_transformers.SentenceTransformer(f"{folder}/theirs", device="cpu")
    model.max_seq_length = MAX_LENGTH
    columns = {name: _read(data, name) for name in ("train", "dev")}
    allowed, done = threading.Semaphore(0), threading.Semaphore(0)
    seconds: list[float] = []

    class InTurns(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.start)
            done.release()
            allowed.acquire()
            self.start = time.perf_counter()

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            allowed.acquire()
            self.start = time.perf_counter()

    rows = np.ravel(json.loads(Path(given["order"]).read_text()))
    ordered = {name: [column[i] for i in rows] for name, column in columns["train"].items()}
    arguments = sentence_transformers.SentenceTransformerTrainingArguments(
        output_dir=f"{folder}/theirs-{seed}",
        num_train_epochs=1,
        per_device_train_batch_size=given["batch"],
        learning_rate=given["rate"],
        warmup_steps=int(WARM_UP * len(rows) / given["batch"]),
        lr_scheduler_type="linear",
        seed=int(seed),
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        batch_sampler=lambda dataset, **options: DefaultBatchSampler(
            SequentialSampler(dataset), **options
        ),
    )
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(ordered),
        loss=losses.CosineSimilarityLoss(model),
        callbacks=[InTurns()],
    )
    dev = columns["dev"]
    measure = evaluation.EmbeddingSimilarityEvaluator(*dev.values(), write_csv=False)
    thread = threading.Thread(target=trainer.train, daemon=True)

    def answer(step: int = 0, steps: int = 0) -> dict[str, Any]:
        if not steps:
            return {"spearman": float(measure(model.eval())["spearman_cosine"])}
        if step == 0:
            thread.start()
        for _ in range(steps):
            allowed.release()
            while not done.acquire(timeout=5):
                if not thread.is_alive():
                    raise RuntimeError("the Trainer has ended")
        return {"seconds": seconds[step : step + steps]}

    return answer


def _read(data: str, split: str) -> dict[str, list[Any]]:
    from albert_tf.tasks import table
    from albert_tf.tasks.table import TableSettings

    names = {"text_column": "sentence1", "text_pair_column": "sentence2", "label_column": "score"}
    examples = table.read_texts(f"{data}/{split}.tsv", TableSettings(**names), ())
    first, second = [each.text_a for each in examples], [each.text_b for each in examples]
    # The train set's scores are from 0 to 5.
    return {"first": first, "second": second, "score": [each.label / 5 for each in examples]}


def train(folder: str, data: str, seed: int, how: dict[str, Any]) -> list[list[float]]:
    """Trains both with a seed, prints their scores, and returns the seconds of each step."""
    given = json.dumps({**how, "order": f"{folder}/order-{seed}.json"})
    asked = folder, data, str(seed), given
    mine = Worker("albert_tf", "embedding_training.ours", *asked, backend=how["backend"])
    before = mine.ask()
    Path(folder, f"order-{seed}.json").write_text(json.dumps(before["order"]))
    other = Worker("sentence-transformers", "embedding_training.theirs", *asked)
    both, scores = (mine, other), [[before["spearman"]], [other.ask()["spearman"]]]
    seconds: list[list[float]] = [[], []]
    count = min(len(before["order"]), how["steps"] or len(before["order"]))
    for step in range(0, count, AT_ONCE):
        # They also alternate in who goes first.
        for side in (0, 1) if step // AT_ONCE % 2 else (1, 0):
            steps = min(AT_ONCE, count - step)
            seconds[side] += both[side].ask(step=step, steps=steps)["seconds"]
    for side, worker in enumerate(both):
        scores[side].append(worker.ask()["spearman"])
        print(
            f"| {seed} | {worker.name} | {scores[side][0]:.4f} | {scores[side][1]:.4f} | "
            f"{statistics.median(seconds[side]):.3f} |",
            flush=True,
        )
        worker._process.kill()  # The Trainer's thread may still wait for a request.
        worker.close()
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="Weights to begin with.")
    parser.add_argument("--data", required=True, help="The folder of STS-B.")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--steps", type=int, help="Only so many steps of the training.")
    parser.add_argument("--backend", default="tensorflow")
    args = vars(parser.parse_args(arguments))
    how = {name: args[name] for name in ("batch", "epochs", "rate", "steps", "backend")}
    print("| seed | | Spearman before | after | seconds a step |\n| --- | --- | --- | --- | --- |")
    found: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory() as folder:
        in_process("embedding_training.prepare", args["model"], folder, backend="tensorflow")
        for seed in args["seeds"]:
            for all_of, of_seed in zip(found, train(folder, args["data"], seed, how), strict=True):
                all_of += of_seed
    # A turn's first step may compile for a new length; medians within turns are robust to that.
    starts = range(0, len(found[0]), AT_ONCE)
    turns = [[statistics.median(x[start : start + AT_ONCE]) for start in starts] for x in found]
    ratios = np.divide(*turns)
    low, middle, high = np.percentile(ratios, (5, 50, 95))
    print(f"a step of albert_tf takes {middle:.3f} of theirs ({low:.3f} to {high:.3f} of turns)")


if __name__ == "__main__":
    main()
