"""Models and recipes by name, and from a clone by path."""

from __future__ import annotations

import functools
import pathlib

import pytest
from absl import flags

import albert_tf
from albert_tf import config, scripts
from albert_tf.cli import finetune_flags, pretrain_flags, recipes

ROOT = pathlib.Path(__file__).parents[1]


def parsed(script: str, *arguments: str) -> flags.FlagValues:
    """Returns the flags of pretraining or finetuning, as the script reads them."""
    values = flags.FlagValues()
    module = pretrain_flags if script == "pretraining" else finetune_flags
    module.define_flags(values)
    flags.DEFINE_flag(flags.Flag(flags.ArgumentParser(), None, "flagfile", None, ""), values)
    expand = functools.partial(recipes.expand, script)
    scripts.parse_in_one_line(values, ["script", *arguments], expand)
    return values


def given(values: flags.FlagValues) -> dict[str, object]:
    """Returns the values of all flags that were given, but for those that name a flag file."""
    names = [name for name in values if values[name].present and "recipe" not in name]
    return {name: values[name].value for name in names if name != "flagfile"}


def test_names_are_those_of_the_files_in_a_clone():
    models = {path.stem: path.read_bytes() for path in (ROOT / "configs").glob("*.json")}
    assert len(models) == 11
    found = config.shipped_models()
    assert {name: pathlib.Path(path).read_bytes() for name, path in found.items()} == models
    flag_files = {path.stem for path in (ROOT / "configs/recipes").glob("*.flags")}
    assert set(config.shipped_recipes("finetuning")) == flag_files
    assert "paper" in config.shipped_recipes("pretraining")


def test_a_config_by_name(tmp_path, monkeypatch):
    expected = albert_tf.AlbertConfig.from_json_file(ROOT / "configs/albert_large_v2.json")
    monkeypatch.chdir(tmp_path)
    assert albert_tf.AlbertConfig.from_json_file("albert_large_v2") == expected
    assert albert_tf.AlbertConfig.from_json_file(pathlib.Path("albert_large_v2")) == expected
    with pytest.raises(FileNotFoundError, match="^ALBERT config large .*: known names are"):
        albert_tf.AlbertConfig.from_json_file("large")
    with pytest.raises(FileNotFoundError, match=r"^ALBERT config large\.json does not exist$"):
        albert_tf.AlbertConfig.from_json_file("large.json")


def test_a_run_in_a_directory_of_the_models_name_goes_on(tmp_path, monkeypatch):
    """As that of --albert_config_file=albert_tiny --output_dir=albert_tiny."""
    monkeypatch.chdir(tmp_path)
    expected = albert_tf.AlbertConfig.from_json_file("albert_tiny")
    (tmp_path / "albert_tiny").mkdir()
    assert albert_tf.AlbertConfig.from_json_file("albert_tiny") == expected


def test_a_path_that_exists_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "albert_large_v2").write_text(albert_tf.AlbertConfig(31).to_json())
    assert albert_tf.AlbertConfig.from_json_file("albert_large_v2").vocab_size == 31


@pytest.mark.parametrize("argument", ["--recipe=rte", "-recipe rte", "--flagfile=own.flags"])
def test_a_recipe_is_its_flag_file(tmp_path, monkeypatch, argument):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.flags").write_text("# Mine.\n--recipe=rte\n")
    expected = given(parsed("finetuning", f"--flagfile={ROOT}/configs/recipes/rte.flags"))
    assert expected["task_name"] == "rte" and len(expected) > 9
    assert given(parsed("finetuning", *argument.split())) == expected


@pytest.mark.parametrize("order", [1, -1])
def test_the_command_line_wins(order):
    arguments = ["--recipe=rte", "--learning_rate=0.5", "--nodo_predict"][::order]
    values = parsed("finetuning", *arguments)
    assert (values.learning_rate, values.do_predict, values.train_step) == (0.5, False, 800)


@pytest.mark.parametrize(
    ("recipe", "flag", "value", "other"),
    [
        ("mnli", "num_train_epochs", 3, "train_step"),
        ("mnli", "warmup_proportion", 0.1, "warmup_step"),
        ("tnews", "train_step", 1000, "num_train_epochs"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_flag_that_says_the_same_in_another_unit_wins(recipe, flag, value, other, order):
    assert parsed("finetuning", f"--recipe={recipe}")[other].present
    values = parsed("finetuning", *[f"--recipe={recipe}", f"--{flag}={value}"][::order])
    assert values[flag].value == value and not values[other].present
    finetune_flags.set_task_defaults(values)
    assert values.learning_rate == (2e-5 if recipe == "tnews" else 3e-5)


def test_a_recipe_of_pretraining():
    values = parsed(
        "pretraining", "--recipe=paper", "--albert_config_file=albert_base_v1", "--output_dir=out",
        "--input_file=records", "--num_train_steps=7",
    )  # fmt: skip
    found = given(values)
    assert (found["train_batch_size"], found["learning_rate"]) == (4096, 0.00176)
    assert (found["max_seq_length"], found["num_train_steps"]) == (512, 7)


@pytest.mark.parametrize(
    ("script", "argument"),
    [
        ("finetuning", "--recipe=colla"),
        ("finetuning", "--recipe=../recipes/cola"),
        ("finetuning", "--recipe="),
        ("pretraining", "--recipe=cola"),
    ],
)
def test_an_unknown_recipe_is_one_line_that_lists_the_known(script, argument):
    with pytest.raises(SystemExit) as ended:
        parsed(script, argument)
    known = ", ".join(config.shipped_recipes(script))
    name = argument.removeprefix("--recipe=")
    assert ended.value.code == (
        f"error: there is no recipe {name!r}: expected one of {known} (--help lists the flags)"
    )
