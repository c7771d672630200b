"""configs/recipes: each parses, fits its task, and holds the numbers of the paper's table.

Not tested here: whether a recipe reaches its score.
"""

import csv
import operator
import pathlib

import pytest

from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.console import settings

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "recipes"
PUBLISHED = ROOT / "research/experiments/published/fine_tuning.csv"


def _published() -> dict[str, tuple[float | None, ...]]:
    """Returns table 14 by recipe, with None where a recipe leaves dropout to the config."""
    rows = [row[1:] for row in csv.reader(PUBLISHED.read_text().splitlines()[1:])]
    found = {}
    for task, *numbers in rows:
        rate, batch, dropout, *rest = map(float, numbers)
        found[task.lower().replace(" ", "_")] = (rate, batch, dropout or None, *rest)
    # The release's code has no dropout in this head.
    found["squad_v1"] = (*found["squad_v1"][:3], 0.0, *found["squad_v1"][4:])
    return found


NUMBERS = ("learning_rate", "train_batch_size", "hidden_dropout_prob", "dropout_prob")
NUMBERS += ("train_step", "warmup_step", "max_seq_length")
# Recipe -> the values of NUMBERS.
TABLE = {**_published(), "race_v2": (1e-5, 32, 0.0, 0.1, 12000, 1000, 512)}
WITHOUT_TRAINING = {"mismnli", "ax"}
OF_CHINESE = ("learning_rate", "train_batch_size", "num_train_epochs", "save_checkpoints_steps")
OF_CHINESE += ("text_column", "text_pair_column")
# From the scripts of albert_zh.
CHINESE = {
    "tnews": (2e-5, 16, 3, 300, "sentence", None),
    "afqmc": (2e-5, 16, 3, 300, "sentence1", "sentence2"),
    "lcqmc": (1e-4, 64, 5, 1000, "sentence1", "sentence2"),
}


def parsed(name: str) -> FinetuningSettings:
    flag_file = f"--flagfile={FOLDER / name}.flags"
    return settings.parse(FinetuningSettings, ["run_finetune.py", flag_file, "--output_dir=out"])


def test_there_is_a_recipe_for_each_task():
    names = {path.stem for path in FOLDER.glob("*.flags")}
    assert names == {*TABLE, *WITHOUT_TRAINING, *CHINESE}
    for name, values in zip(WITHOUT_TRAINING, map(parsed, WITHOUT_TRAINING), strict=True):
        assert values.task_name == name and not values.do_train and values.do_predict


@pytest.mark.parametrize("name", TABLE)
def test_a_recipe_holds_the_numbers_of_the_table(name):
    values = parsed(name)
    expected = name if "squad" in name else name.removesuffix("_v1").removesuffix("_v2")
    assert values.task_name == expected
    assert values.do_train and values.do_eval and values.do_predict
    assert values.num_train_epochs is None and values.warmup_proportion is None
    assert values.hidden_dropout_prob == values.attention_probs_dropout_prob
    assert operator.attrgetter(*NUMBERS)(values) == TABLE[name]


@pytest.mark.parametrize("name", CHINESE)
def test_a_recipe_holds_the_numbers_of_albert_zh(name):
    values = parsed(name)
    assert values.task_name == "classification" and values.label_column == "label"
    assert values.do_train and values.do_eval and values.do_predict
    assert (values.max_seq_length, values.warmup_proportion, values.dropout_prob) == (128, 0.1, 0.1)
    assert values.optimizer == "adamw"
    assert operator.attrgetter(*OF_CHINESE)(values) == CHINESE[name]
