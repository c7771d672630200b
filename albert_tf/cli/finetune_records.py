"""What fine-tuning leaves beside its checkpoints for those who use them later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from albert_tf import scripts
from albert_tf.config import AlbertConfig
from albert_tf.conversion import kinds
from albert_tf.storage import run_record
from albert_tf.storage.run_record import RunRecord, TaskRecord
from albert_tf.tasks import feature_table
from albert_tf.tasks.glue import are_two
from albert_tf.tasks.supervised import SupervisedTask
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary


def read_vocabulary(values: flags.FlagValues, config: AlbertConfig) -> Vocabulary:
    """Reads the run's vocabulary.

    Raises:
      ValueError: If none is named, or it is not the model's or that in output_dir.
    """
    if not values.spm_model_file and not values.vocab_file:
        raise ValueError(
            "no vocabulary: set --spm_model_file, or --vocab_file for a WordPiece one, or put it "
            "beside the weights of --init_checkpoint"
        )
    # The release prefers the SentencePiece model if both are named.
    path = values.spm_model_file or values.vocab_file
    words = Vocabulary.read(path, not values.spm_model_file, values.do_lower_case)
    words.check(config)
    vocabulary.check_kept(words, values.output_dir)
    return words


def check_same_task(values: flags.FlagValues, task: SupervisedTask, source: str | None) -> None:
    """Checks that weights are of the same task.

    Without training the same kind of task is enough, but not two of GLUE's; then it warns if texts
    are read otherwise than in training.

    Args:
      values: The flags.
      task: The task.
      source: The checkpoint that training would resume, or the weights that are used without;
        None if there are none.

    Raises:
      ValueError: If they are another task's, even if they would fit.
    """
    found = kinds.find(source) if source else None
    if found is None:  # The release wrote no record.
        return
    if not values.do_train:
        own = TaskRecord(**task.record(values.task_name))
        if kinds.is_another(found, own) or are_two(found.name, values.task_name):
            raise ValueError(
                f"{source} was trained for {found.name}, not for {values.task_name}: set "
                f"--task_name={found.name}, or give --init_checkpoint and an --output_dir "
                "without a model"
            )
        return
    before = (found.name, found.problem_type or task.problem_type)
    now = (values.task_name, task.problem_type)
    if before != now:
        texts = [", ".join(filter(None, each)) for each in (before, now)]
        raise ValueError(
            f"--output_dir {values.output_dir} holds a run of another task ({texts[0]} before, "
            f"{texts[1]} now): give another directory; --init_checkpoint may name this one"
        )


def is_borrowed(values: flags.FlagValues) -> bool:
    """Whether output_dir holds another task's run, as MNLI's for mismnli."""
    found = kinds.find(values.output_dir)
    return found is not None and found.name != values.task_name


def chooses_best(values: flags.FlagValues, examples: Sequence[Any]) -> bool:
    """Whether an evaluation chooses the best checkpoint of the run in output_dir.

    Not on another task's examples and, without training, not on others than the run's own: those
    may be the test set, and values of two sets don't compare.

    Args:
      values: The flags.
      examples: Those to evaluate on.
    """
    if is_borrowed(values):
        return False
    found = run_record.find_run(values.output_dir)
    own = found.data.get("dev") if found else None
    return values.do_train or own in (None, feature_table.examples_digest(examples))


def record(
    values: flags.FlagValues,
    task: SupervisedTask,
    config: AlbertConfig,
    data: Mapping[str, str],
) -> RunRecord:
    """Returns what this run is."""
    settings = values.flag_values_dict()
    task_is = TaskRecord(**task.record(values.task_name))
    return RunRecord(settings, config.to_dict(), data, task_is, scripts.command_line())
