"""configs/recipes: each parses, fits its task, and holds the numbers of the paper's table.

Can't see: whether a recipe reaches its score.
"""

from __future__ import annotations

import pathlib

import pytest
from absl import flags

from albert_tf.cli import finetune_checks, finetune_flags

FOLDER = pathlib.Path(__file__).parents[2] / "configs" / "recipes"
# arXiv 1909.11942, table 14: rate, batch, dropout, head's dropout, steps, warm-up, length. None
# where the recipe leaves it to the config or the task; see the recipes.
TABLE = {
    "cola": (1e-5, 16, None, 0.1, 5336, 320, 512),
    "sts-b": (2e-5, 16, None, 0.1, 3598, 214, 512),
    "sst-2": (1e-5, 32, None, 0.1, 20935, 1256, 512),
    "mnli": (3e-5, 128, None, 0.1, 10000, 1000, 512),
    "qnli": (1e-5, 32, None, 0.1, 33112, 1986, 512),
    "qqp": (5e-5, 128, 0.1, 0.1, 14000, 1000, 512),
    "rte": (3e-5, 32, 0.1, 0.1, 800, 200, 512),
    "mrpc": (2e-5, 32, None, 0.1, 800, 200, 512),
    "wnli": (2e-5, 16, 0.1, 0.1, 2000, 250, 512),
    "squad_v1": (5e-5, 48, None, 0.0, 3649, 365, 384),
    "squad_v2": (3e-5, 48, None, 0.1, 8144, 814, 512),
    "race_v1": (2e-5, 32, 0.1, 0.1, 12000, 1000, 512),
    "race_v2": (1e-5, 32, 0.0, 0.1, 12000, 1000, 512),
}
WITHOUT_TRAINING = {"mismnli", "ax"}
# The scripts of albert_zh: rate, batch, epochs, steps between checkpoints; columns.
CHINESE = {
    "tnews": (2e-5, 16, 3, 300, "sentence", None),
    "afqmc": (2e-5, 16, 3, 300, "sentence1", "sentence2"),
    "lcqmc": (1e-4, 64, 5, 1000, "sentence1", "sentence2"),
}


def parsed(name: str, *more: str) -> flags.FlagValues:
    values = flags.FlagValues()
    finetune_flags.define_flags(values)
    flags.DEFINE_flag(flags.Flag(flags.ArgumentParser(), None, "flagfile", None, ""), values)
    # Not the process' own FLAGS: absl reads flag files for any FlagValues.
    values(["run_finetune.py", f"--flagfile={FOLDER / name}.flags", *more])
    finetune_flags.set_task_defaults(values)
    return values


def test_there_is_a_recipe_for_each_task():
    names = {path.stem for path in FOLDER.glob("*.flags")}
    assert names == {*TABLE, *WITHOUT_TRAINING, *CHINESE}


@pytest.mark.parametrize("name", TABLE)
def test_a_recipe_holds_the_numbers_of_the_table(name):
    values = parsed(name)
    assert values.task_name == name.removesuffix("_v1").removesuffix("_v2") or "squad" in name
    assert values.do_train and values.do_eval and values.do_predict
    assert values.num_train_epochs is None and values.warmup_proportion is None
    assert values.hidden_dropout_prob == values.attention_probs_dropout_prob
    assert (
        values.learning_rate,
        values.train_batch_size,
        values.hidden_dropout_prob,
        values.dropout_prob,
        values.train_step,
        values.warmup_step,
        values.max_seq_length,
    ) == TABLE[name]
    finetune_checks.check_flags(parsed(name, "--output_dir=out", "--init_checkpoint=x"))


@pytest.mark.parametrize("name", CHINESE)
def test_a_recipe_holds_the_numbers_of_albert_zh(name):
    values = parsed(name)
    assert values.task_name == "classification" and values.label_column == "label"
    assert values.do_train and values.do_eval and values.do_predict
    assert (values.max_seq_length, values.warmup_proportion, values.dropout_prob) == (128, 0.1, 0.1)
    assert values.optimizer == "adamw"
    assert (
        values.learning_rate,
        values.train_batch_size,
        values.num_train_epochs,
        values.save_checkpoints_steps,
        values.text_column,
        values.text_pair_column,
    ) == CHINESE[name]
    finetune_checks.check_flags(parsed(name, "--output_dir=out", "--init_checkpoint=x"))


@pytest.mark.parametrize("name", sorted(WITHOUT_TRAINING))
def test_what_has_no_training_set_is_not_trained_on(name):
    values = parsed(name)
    assert values.task_name == name and not values.do_train and values.do_predict
