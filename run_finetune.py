"""Fine-tunes ALBERT on a task, evaluates it and predicts: GLUE, RACE, SQuAD 1.1 and 2.0.

Its flags are in finetune_flags.py.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import app, flags, logging

import finetune_flags
from albert_tf import (
    checkpoint,
    conversion,
    distribution,
    evaluation,
    optimization,
    running,
)
from albert_tf.config import AlbertConfig
from albert_tf.conversion.vocabulary import Vocabulary
from albert_tf.supervised_run import Split, SupervisedRun, write_predictions
from albert_tf.tasks import feature_cache
from albert_tf.tasks.classification import SequenceClassificationTask
from albert_tf.tasks.glue import GLUE_TASKS, read_glue
from albert_tf.tasks.supervised import ModelOptions, SupervisedTask
from albert_tf.tokenization import Tokenizer
from albert_tf.training import NonFiniteLossError, Trainer

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(finetune_flags)

# A split -> the flag of what needs it, and that of its batch size.
SPLITS = {
    "train": ("do_train", "train_batch_size"),
    "dev": ("do_eval", "eval_batch_size"),
    "test": ("do_predict", "predict_batch_size"),
}

Reader = Callable[[str], list[Any]]


def check_weights() -> None:
    """Checks that there are weights to start from.

    Raises:
      ValueError: There are none, and nobody asked for noise.
    """
    if not finetune_flags.initial_weights() and not FLAGS.from_scratch and not _newest():
        raise ValueError(
            f"no weights to start from: --output_dir {FLAGS.output_dir} holds no checkpoint; set "
            "--init_checkpoint, or --from_scratch to train from noise"
        )
    if FLAGS.from_scratch and not FLAGS.do_train and not _newest():
        raise ValueError("--from_scratch without --do_train would evaluate noise")


def _newest() -> str | None:
    return checkpoint.latest(FLAGS.output_dir) or checkpoint.best(FLAGS.output_dir)


def load_config() -> AlbertConfig:
    """Reads the model's config: as named, of the run that goes on, or beside the weights."""
    if FLAGS.albert_config_file:
        return running.read_config(FLAGS.albert_config_file)
    beside = os.path.join(FLAGS.output_dir, running.CONFIG_FILE)
    if _newest() and tf.io.gfile.exists(beside):
        return running.read_config(beside)
    if not finetune_flags.initial_weights():
        raise ValueError("no config: set --albert_config_file")
    return conversion.load_config(finetune_flags.initial_weights())


def load_tokenizer(config: AlbertConfig) -> Tokenizer:
    """Reads the vocabulary, which must be the model's."""
    # The release prefers the SentencePiece model where both are named.
    path = FLAGS.spm_model_file or FLAGS.vocab_file
    vocabulary = Vocabulary.read(path, not FLAGS.spm_model_file, FLAGS.do_lower_case)
    vocabulary.check(config)
    return vocabulary.tokenizer


def make_task(config: AlbertConfig | None) -> tuple[SupervisedTask, Reader]:
    """Returns the task, and what reads the examples of a split.

    Args:
      config: The model's; None if only files of predictions are read.
    """
    options = tokenizer = None
    if config:
        dtype = "mixed_bfloat16" if FLAGS.precision == "bfloat16" else "float32"
        options = ModelOptions(config, FLAGS.dropout_prob, dtype, FLAGS.recompute)
        tokenizer = load_tokenizer(config)
    common = (options, tokenizer, FLAGS.max_seq_length)
    name = FLAGS.task_name
    if name in GLUE_TASKS:
        row = GLUE_TASKS[name]
        file = f"{row.submission or row.folder}.tsv"
        task = SequenceClassificationTask(*common, row.labels, row.key_metric, file, (0.0, 5.0))
        return task, functools.partial(read_glue, name, _folder())
    raise ValueError(f"--task_name {name!r} is none of {', '.join(GLUE_TASKS)}")


def _folder() -> str:
    if not FLAGS.data_dir:
        raise ValueError(f"--task_name={FLAGS.task_name} reads files in --data_dir: set that too")
    return FLAGS.data_dir


def read_splits(read: Reader) -> dict[str, list[Any]]:
    """Reads the examples of the splits that are needed."""
    return {split: read(split) for split, (flag, _) in SPLITS.items() if FLAGS[flag].value}


def make_splits(task: SupervisedTask, examples: dict[str, list[Any]]) -> dict[str, Split]:
    """Makes the features of examples, or finds them made."""
    folder = FLAGS.cached_dir or os.path.join(FLAGS.output_dir, "features")
    splits = {}
    for name, (_, batch_size) in SPLITS.items():
        if name in examples:
            is_training = name == "train"
            features = feature_cache.load_or_make(
                examples[name],
                functools.partial(task.rows, is_training=is_training),
                {**task.settings, "is_training": is_training},
                os.path.join(folder, f"{FLAGS.task_name}_{name}"),
            )
            lengths = (FLAGS.max_seq_length,)
            splits[name] = Split(examples[name], features, FLAGS[batch_size].value, lengths)
    return splits


def create_strategy() -> tf.distribute.Strategy:
    """Chooses the devices, which must be able to share the batches."""
    strategy = distribution.create_strategy(
        FLAGS.use_tpu,
        FLAGS.tpu_name,
        FLAGS.tpu_zone,
        FLAGS.gcp_project,
        FLAGS.master,
        FLAGS.num_tpu_cores,
    )
    if FLAGS.do_train:
        running.check_train_batch_size(
            FLAGS.train_batch_size, FLAGS.gradient_accumulation_steps, strategy
        )
    for name in ("eval_batch_size", "predict_batch_size"):
        running.check_batch_size(name, FLAGS[name].value, strategy)
    return strategy


def prepare() -> tuple[SupervisedRun, int]:
    """Checks everything, and returns a run with its first weights, and its last step."""
    check_weights()
    config = load_config()
    running.check_positions(config, FLAGS.max_seq_length)
    running.check_same_model(config, FLAGS.output_dir)
    # Before any other TensorFlow operation: workers can be connected only then.
    strategy = create_strategy()
    task, read = make_task(config)
    examples = read_splits(read)
    chief = distribution.is_chief(strategy)
    if chief:
        running.make_output_dir(FLAGS.output_dir)
    splits = make_splits(task, examples)
    num_train_steps = _num_train_steps(len(examples["train"])) if FLAGS.do_train else 0
    rates = (config.hidden_dropout_prob, config.attention_probs_dropout_prob, FLAGS.dropout_prob)
    logging.info(
        "%s; dropout: hidden %g, attention %g, head %g", running.describe(strategy), *rates
    )
    trainer = Trainer(
        task,
        strategy,
        FLAGS.output_dir,
        functools.partial(_make_optimizer, num_train_steps) if FLAGS.do_train else None,
        seed=FLAGS.random_seed,
        jit_compile=FLAGS.jit_compile and not FLAGS.use_tpu,
        accumulation_steps=FLAGS.gradient_accumulation_steps,
    )
    if FLAGS.do_train:
        start = trainer.initialise(finetune_flags.initial_weights())
        if chief:
            if start != "resume":
                evaluation.forget(FLAGS.output_dir)
            running.write_config(config, FLAGS.output_dir)
    return SupervisedRun(task, trainer, splits, finetune_flags.initial_weights()), num_train_steps


def _num_train_steps(num_examples: int) -> int:
    if FLAGS.num_train_epochs is None:
        return FLAGS.train_step
    return max(1, int(num_examples / FLAGS.train_batch_size * FLAGS.num_train_epochs))


def _make_optimizer(num_train_steps: int) -> Any:
    share = FLAGS.warmup_proportion
    num_warmup_steps = FLAGS.warmup_step if share is None else int(share * num_train_steps)
    return optimization.create_optimizer(
        FLAGS.learning_rate,
        num_train_steps,
        num_warmup_steps,
        FLAGS.optimizer,
        sum_over_replicas=False,
    )


def do_steps(run: SupervisedRun, num_train_steps: int) -> None:
    """Trains, evaluates and predicts, as the flags say."""
    if FLAGS.do_train:
        finished = run.train(
            num_train_steps,
            FLAGS.random_seed,
            steps_per_loop=FLAGS.iterations_per_loop,
            save_steps=FLAGS.save_checkpoints_steps,
            keep_max=FLAGS.keep_checkpoint_max,
        )
        if not finished:
            return
    if FLAGS.do_eval and not run.evaluate_saved() and not FLAGS.do_train:
        run.evaluate_best()
    if FLAGS.do_predict:
        run.predict_best()


def combine() -> None:
    """Averages the predictions of several output directories."""
    task, read = make_task(None)
    examples = read_splits(read)
    found = {split: task.average(FLAGS.ensemble_dirs, split, examples[split]) for split in examples}
    running.make_output_dir(FLAGS.output_dir)
    source = f"the ensemble of {', '.join(FLAGS.ensemble_dirs)}"
    for split, predictions in found.items():
        write_predictions(task, FLAGS.output_dir, source, split, examples[split], predictions)


def main(argv: Sequence[str]) -> None:
    """Does what the flags say."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.INFO)
    finetune_flags.set_task_defaults()
    try:
        finetune_flags.check_flags()
        if FLAGS.ensemble_dirs:
            combine()
            return
        run, num_train_steps = prepare()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    try:
        do_steps(run, num_train_steps)
    except (ValueError, NonFiniteLossError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    app.run(main)
