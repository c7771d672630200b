"""What fine-tuning leaves beside its checkpoints for those who use them later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags, logging

from albert_tf import scripts
from albert_tf.cli import checks, finetune_run_flags
from albert_tf.config import DROPOUT_FIELDS, AlbertConfig
from albert_tf.conversion import run_record
from albert_tf.conversion.run_record import RunRecord
from albert_tf.tasks import feature_table
from albert_tf.tasks.glue import are_two
from albert_tf.tasks.supervised import SupervisedTask
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary

# Flags that shape a run's weights; the dropout of the model is its config's.
_SHAPING = (
    *("optimizer", "train_batch_size", "random_seed", "class_weights", "dropout_prob"),
    *("teacher", "distillation_weight", "temperature", "static_lengths", "precision"),
)

# What `reading` has of how answers are chosen, after the texts are read.
_OF_ANSWERS = ("max_answer_length", "n_best_size", "start_n_top", "end_n_top")
_NAMES = {"pairs": "pairs (--text_pair_column)"}


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
    found = run_record.find(source) if source else None
    if found is None:  # Earlier versions, and the release, wrote no record.
        return
    if not values.do_train:
        is_another = found.is_for_another(task.model_class.__name__, task.problem_type)
        if is_another or are_two(found.task_name, values.task_name):
            raise ValueError(
                f"{source} was trained for {found.task_name}, not for {values.task_name}: set "
                f"--task_name={found.task_name}, or give --init_checkpoint and an --output_dir "
                "without a model"
            )
        _warn_of_reading(source, found.serving, task.reading)
        return
    before = (found.task_name, found.problem_type or task.problem_type)
    now = (values.task_name, task.problem_type)
    if before != now:
        texts = [", ".join(filter(None, each)) for each in (before, now)]
        raise ValueError(
            f"--output_dir {values.output_dir} holds a run of another task ({texts[0]} before, "
            f"{texts[1]} now): give another directory; --init_checkpoint may name this one"
        )


def _warn_of_reading(source: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Warns of flags that read texts otherwise than weights were trained, if there are any.

    A larger max_seq_length only cuts off less.
    """
    given, longest = dict(now), before.get("max_seq_length")
    if isinstance(longest, int):
        given["max_seq_length"] = min(longest, now["max_seq_length"])
    of_texts = [
        {_NAMES.get(name, name): value for name, value in each.items() if name not in _OF_ANSWERS}
        for each in (before, given)
    ]
    if changed := _differences(*of_texts):
        logging.warning(
            "%s was trained with %s: give the same flags, or it reads texts otherwise than in "
            "training",
            source,
            "; ".join(changed),
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns what differs, in words; nothing is known of what earlier versions did not write."""
    names = {**before, **now} if before else {}
    pairs = {name: (before.get(name), now.get(name)) for name in names}
    return [f"{name} {a}, not {b}" for name, (a, b) in pairs.items() if a != b]


def is_borrowed(values: flags.FlagValues) -> bool:
    """Whether output_dir holds another task's run, as MNLI's for mismnli."""
    found = run_record.find(values.output_dir)
    return found is not None and found.task_name != values.task_name


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
    found = run_record.find(values.output_dir)
    own = found.data.get("dev") if found else None
    return values.do_train or own in (None, feature_table.examples_digest(examples))


def write(values: flags.FlagValues, words: Vocabulary, now: RunRecord, resumes: bool) -> None:
    """Writes the vocabulary and what the run is.

    A run that resumes keeps its record, and is warned if it has begun with something else.

    Args:
      values: The flags.
      words: The vocabulary.
      now: What the run is.
      resumes: Whether the run is in output_dir.
    """
    vocabulary.keep(words, values.output_dir)
    before = run_record.find(values.output_dir) if resumes else None
    if before is None or not before.command:
        now.write(values.output_dir)
        return
    pairs = {
        "init_checkpoint": (before.init_checkpoint or "none", now.init_checkpoint),
        "train_data": (before.train_data, now.train_data),
        "learning_rate": (before.learning_rate, now.learning_rate),
    }
    changed = [f"{name} {a}, not {b}" for name, (a, b) in pairs.items() if a and b and a != b]
    changed += _differences(before.serving, now.serving)
    changed += _differences(before.shaping, now.shaping)
    edited = [name for name, each in now.data.items() if before.data.get(name, each) != each]
    changed += [f"other {name} examples" for name in edited]
    checks.warn_of_changes(values.output_dir, changed)


def shaping(values: flags.FlagValues, config: AlbertConfig, num_train_steps: int) -> dict[str, Any]:
    """Returns what shapes a run's weights besides its initial weights, data, rate and `reading`."""
    num_warmup_steps = finetune_run_flags.num_warmup_steps(values, num_train_steps)
    return {
        **{name: getattr(values, name) for name in _SHAPING},
        **{name: getattr(config, name) for name in DROPOUT_FIELDS},
        **{"train_step": num_train_steps, "warmup_step": num_warmup_steps},
    }


def record(values: flags.FlagValues, task: SupervisedTask, initial: str | None) -> RunRecord:
    """Returns what this run is, given the initial weights that it starts from."""
    return RunRecord(
        values.task_name,
        task.problem_type,
        initial or "",
        scripts.command_line(),
        train_data=(values.train_file or values.data_dir or "") if values.do_train else "",
        learning_rate=str(values.learning_rate) if values.do_train else "",
        serving=task.reading,
        architecture=task.model_class.__name__,
        served_as=task.served_as,
    )
