"""Settings: the flags that are made of a dataclass, what was given, a run's record."""

import dataclasses

import pytest
from absl import flags

from albert_tf.cli.convert import ConversionSettings
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.cli.inspect import COMMANDS
from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.console import settings
from albert_tf.console.settings import NATURAL, POSITIVE, REQUIRED, Settings, setting
from albert_tf.serving.settings import ExportSettings, PredictionSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example(Settings):
    headings = ("Numbers", "Texts")

    name: str = setting(REQUIRED, "A name.", group="Texts")
    mode: str | None = setting(None, "A mode.", group="Texts", choices=["a", "b"])
    words: tuple[str, ...] = setting((), "Words.", group="Texts")
    in_: str | None = setting(None, "Where.", group="Texts", per_command=True)
    size: int = setting(7, "A size.", group="Numbers", interval=POSITIVE, alias="num_size")
    seed: int | None = setting(None, "A seed.", group="Numbers", interval="[0, 4294967295]")
    any_number: int = setting(0, "Any number.", group="Numbers", interval="(-inf, inf)")
    rate: float = setting(0.5, "A rate.", group="Numbers", interval="[0, 1)")
    old: int = setting(1, "Of old.", group="Numbers", rare=True)
    fast: bool = setting(True, "Fast.", group="Numbers")

    def __post_init__(self) -> None:
        if self.mode == "a" and self.fast:
            raise ValueError("`mode=a` is not `fast`: leave one of them out")


def parse(*arguments: str) -> Example:
    return settings.parse(Example, ["script.py", *arguments])


def test_values_are_of_the_annotations_and_what_was_given_is_known():
    given = ["--name=x", "--mode", "b", "--words=p, q", "--in=y", "--num_size=3", "--nofast"]
    found = parse(*given)
    assert found == Example(name="x", mode="b", words=("p", "q"), in_="y", size=3, fast=False)
    assert found.given == {"name", "mode", "words", "in_", "size", "fast"}
    assert parse("--name=x", "--any_number=99999999999").any_number == 99999999999
    assert Example.of(name="x", size=7).given == {"name", "size"}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--size=0", "flag --size=0: 0 is not a positive integer"),
        ("--size=2147483648", "flag --size=2147483648: more than the maximum, 2,147,483,647"),
        ("--seed=4294967296", "flag --seed=4294967296: more than the maximum, 4,294,967,295"),
        ("--rate=1", r"flag --rate=1: 1.0 is not a number in \[0, 1\)"),
        ("--rate=-0.1", r"flag --rate=-0.1: -0.1 is not a number in \[0, 1\)"),
        ("--rate=nan", r"flag --rate=nan: nan is not a number in \[0, 1\)"),
        ("--mode=c", "flag --mode=c: value should be one of <a|b>"),
        ("--mode=a", "--mode=a is not --fast: leave one of them out"),
        ("--nothing", "Unknown command line flag 'nothing'"),
        ("x", "unexpected arguments: x"),
        ("false", "unexpected arguments: false: write --FLAG=false"),
    ],
)
def test_what_is_wrong_is_one_line(argument, message):
    with pytest.raises(SystemExit, match=f"^error: {message}") as ended:
        parse("--name=x", argument)
    assert "\n" not in ended.value.code


@pytest.mark.parametrize(
    ("cls", "given", "meant"),
    [
        (FinetuningSettings, "--num-epochs=3", "num_train_epochs"),
        (FinetuningSettings, "--num_train_steps=3", "train_step"),
        (FinetuningSettings, "--learning_rat=3", "learning_rate"),
        (PretrainingSettings, "--epochs=3", "num_train_steps"),
        (PretrainingSettings, "--fp16", "precision"),
    ],
)
def test_a_flag_of_another_library_is_told_ours(cls, given, meant):
    with pytest.raises(SystemExit, match=rf"^error: Unknown .*\. Did you mean: {meant} \?"):
        settings.parse(cls, ["script.py", given])


def test_bounds_may_be_met_and_names_elsewhere_are_those_of_flags():
    names = {*FinetuningSettings.names(), *PretrainingSettings.names()}
    assert {*settings._ELSEWHERE} <= names
    found = parse("--name=x", "--size=2147483647", "--seed=4294967295", "--rate=0")
    assert (found.size, found.seed, found.rate) == (2147483647, 4294967295, 0.0)
    assert NATURAL.startswith("[0,")


def test_a_later_command_follows_the_record_except_for_what_it_is_given():
    begun = parse("--name=x", "--words=p,q", "--in=here", "--size=3", "--mode=b", "--nofast")
    later = parse("--name=y", "--size=5", "--rate=0.25").following(begun.record())
    assert later == Example(name="y", words=("p", "q"), size=5, mode="b", rate=0.25, fast=False)
    assert later.in_ is None  # It belongs to the command that gave it.
    with pytest.raises(ValueError, match="^`mode=a` is not `fast`"):
        parse("--name=y", "--fast").following({"mode": "a"})


def test_help_lists_groups_bounds_and_defaults():
    text = settings.help_text(Example, "Does it.\n")
    assert text.startswith("Does it.\n\nNumbers:\n  --size: A size. Also --num_size.\n")
    assert "    (default: 7; a positive integer)\n" in text and "Texts:\n  --name: A" in text
    assert "    (must be given)\n" in text and "    (one of a, b)\n  --words: Words.\n" in text
    assert "  --[no]fast: Fast.\n    (default: true)\n" in text and "  --in: Where.\n" in text
    # A rare flag can be parsed, but is not listed.
    assert parse("--name=x", "--old=3").old == 3 and "old" in Example.names()
    assert "--old" not in text


def test_a_flag_file_is_read_and_the_command_line_wins(tmp_path):
    (tmp_path / "own.flags").write_text("# Mine.\n--size=3\n--rate=0.25\n")
    found = parse("--name=x", f"--flagfile={tmp_path}/own.flags", "--size=4")
    assert (found.size, found.rate) == (4, 0.25) and {"size", "rate"} < found.given


def test_a_base_class_gets_another_default_and_the_reason_for_it():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class More(Example):
        size: int = settings.with_default(Example, "size", 9, "9 is more.", group="Texts")

    values = flags.FlagValues()
    settings.define_flags(More, values)
    assert (values["size"].default, values["size"].help) == (9, "A size. 9 is more.")
    assert More.of(name="x").size == 9 and More.names() == Example.names()


OTHERS = [ConversionSettings, ExportSettings, PredictionSettings]


@pytest.mark.parametrize("cls", [*OTHERS, *(cls for _, cls in COMMANDS.values())])
def test_each_help_is_a_sentence(cls):
    for field in cls.flags():
        assert field.metadata["help"][0].isalpha() and field.metadata["help"].endswith(".")
