"""What fine-tuning leaves beside its checkpoints for those who use them later."""

from __future__ import annotations

from absl import flags

from albert_tf import scripts
from albert_tf.conversion.run_record import RunRecord
from albert_tf.tasks.supervised import SupervisedTask
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary


def check_vocabulary(values: flags.FlagValues) -> Vocabulary:
    """Reads the run's vocabulary, and compares it with the one in output_dir.

    Raises:
      ValueError: If they differ.
    """
    words = Vocabulary.read(
        values.spm_model_file or values.vocab_file, not values.spm_model_file, values.do_lower_case
    )
    vocabulary.check_kept(words, values.output_dir)
    return words


def write(
    values: flags.FlagValues, task: SupervisedTask, words: Vocabulary, initial: str | None
) -> None:
    """Writes the vocabulary and what the run is, and from which initial weights it starts."""
    vocabulary.keep(words, values.output_dir)
    command = scripts.command_line()
    record = RunRecord(values.task_name, task.problem_type, initial or "", command)
    record.write(values.output_dir)
