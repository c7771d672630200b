"""A command's settings: one frozen dataclass, from which its flags and its --help are made.

Each field is a flag. Its annotation says how it is parsed: bool, int, float, str, or
tuple[str, ...] for a list separated by commas; each may be `| None`.

Example:
    >>> import dataclasses
    >>> from albert_tf.console import settings
    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class CountSettings(settings.Settings):
    ...     rows: int = settings.setting(7, "Number of rows.", interval=settings.POSITIVE)
    >>> settings.parse(CountSettings, ["count.py", "--rows=11"])
    CountSettings(rows=11)
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from absl import app, flags
from absl.flags import FlagValues

from albert_tf.console import errors

# The default of a setting that must be given.
REQUIRED = dataclasses.MISSING
# Intervals of int32, the type of TensorFlow's shapes and of SentencePiece's settings.
POSITIVE, NATURAL = "[1, 2147483647]", "[0, 2147483647]"
_INT32_MAX = 2**31 - 1
# Our flags -> their names in other libraries, where absl sees no resemblance.
_ELSEWHERE = {
    "num_train_epochs": "epochs num_epochs n_epochs max_epochs",
    "num_train_steps": "epochs num_epochs max_steps num_steps steps num_training_steps",
    "train_step": "max_steps num_steps steps num_training_steps num_train_steps",
    "learning_rate": "lr",
    "weight_decay_rate": "weight_decay",
    "train_batch_size": "batch_size per_device_train_batch_size bs",
    "eval_batch_size": "per_device_eval_batch_size",
    "max_seq_length": "max_length max_len seq_len seq_length sequence_length",
    "random_seed": "seed",
    "init_checkpoint": "model model_name model_name_or_path pretrained checkpoint",
    "albert_config_file": "config config_name bert_config_file",
    "train_file": "data dataset training_file",
    "eval_file": "validation_file dev_file",
    "predict_file": "test_file",
    "input_file": "data dataset train_file corpus",
    "precision": "fp16 bf16 mixed_precision dtype",
    "save_checkpoints_steps": "save_steps",
    "keep_checkpoint_max": "save_total_limit",
}

AnySettings = TypeVar("AnySettings", bound="Settings")


def setting(
    default: Any,
    help: str,
    *,
    group: str = "Settings",
    interval: str | None = None,
    choices: Collection[str] = (),
    alias: str | None = None,
    per_command: bool = False,
    repeated: bool = False,
    rare: bool = False,
) -> Any:
    """Returns a field of a Settings class.

    Args:
      default: Its value if it isn't given; REQUIRED if it must be.
      help: Sentences that say what it does, its unit, and the reason for its default.
      group: The heading under which --help lists it.
      interval: The accepted numbers, such as "(0, 1]" (0 < x <= 1), never NaN. By default
        integers are accepted up to 2**31 - 1.
      choices: The accepted texts; all if there are none.
      alias: Another name of the flag.
      per_command: Whether a later command ignores the value in the run's record: it says what
        this command does, or on which machine.
      repeated: Whether a list's flag is given once for each element, instead of with commas.
      rare: Whether --help leaves it out; --helpfull lists it.
    """
    # The field's metadata keeps everything but the default, for define_flags and --help.
    metadata = {
        "help": help,
        "group": group,
        "interval": interval,
        "choices": tuple(choices),
        "alias": alias,
        "per_command": per_command,
        "repeated": repeated,
        "rare": rare,
    }
    return dataclasses.field(default=default, metadata=metadata)


def with_default(
    base: type[Settings], name: str, default: Any, help: str = "", **changes: Any
) -> Any:
    """Returns a base class's field with another default; `help` ends its help text.

    `changes` are other arguments of `setting`, such as `group`.
    """
    # The new field inherits interval, choices and alias, so that two commands can't drift apart.
    (found,) = (field for field in base.flags() if field.name == name)
    changes["help"] = f"{found.metadata['help']} {help}".rstrip()
    return dataclasses.field(default=default, metadata={**found.metadata, **changes})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a command: a subclass has them as fields.

    Its `__post_init__` refuses contradictions by one-line ValueErrors that name fields in
    backquotes; the command shows these as flags.

    Attributes:
      given: The names of the fields whose values were given.
      headings: The groups of --help in their order; by default that of the fields.
    """

    given: frozenset[str] = dataclasses.field(default=frozenset(), repr=False, compare=False)
    headings: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls: type[AnySettings], **values: Any) -> AnySettings:
        """Returns settings with values that count as given."""
        return cls(**values, given=frozenset(values))

    @classmethod
    def flags(cls) -> list[dataclasses.Field]:
        """Returns the fields that are flags."""
        return [field for field in dataclasses.fields(cls) if "help" in field.metadata]

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of the flags."""
        return [_flag(field) for field in cls.flags()]

    @classmethod
    def implied(cls, values: FlagValues) -> list[str]:
        """Returns the flags that the given ones imply, such as those of a recipe."""
        return []

    def record(self) -> dict[str, Any]:
        """Returns the values as plain JSON, for `following`."""
        values = {field.name: getattr(self, field.name) for field in self.flags()}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}

    def following(self: AnySettings, recorded: Mapping[str, Any]) -> AnySettings:
        """Returns these settings with a run's recorded values in place of those not given.

        Settings that are `per_command` stay as they are.
        """
        # JSON has no tuples: a recorded list becomes one again.
        of_the_run = {f.name for f in self.flags() if not f.metadata["per_command"]}
        taken: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in recorded.items()
            if name in of_the_run - self.given
        }
        return dataclasses.replace(self, **taken)


def run_script(
    cls: type[AnySettings], main: Callable[[AnySettings], None], doc: str | None
) -> None:
    """Runs a command with the process's command line; --help shows `doc` and the flags."""
    define_flags(cls, flags.FLAGS)
    sys.modules["__main__"].__doc__ = doc  # --helpfull begins with it.
    app.define_help_flags()
    # Replace absl's --help, which lists the flags in one column.
    for name, short_name in (("help", "?"), ("helpshort", None)):
        flag = _HelpFlag(name, short_name, lambda: help_text(cls, doc or ""))
        flags.DEFINE_flag(flag, flags.FLAGS, app.__name__)
    # absl parses before it calls main, so the settings wait here.
    parsed = []

    def parse_command_line(argv: Sequence[str]) -> list[str]:
        parsed.append(parse(cls, argv, flags.FLAGS))
        return list(argv[:1])

    app.run(lambda _: main(parsed[0]), flags_parser=parse_command_line)


def parse(
    cls: type[AnySettings], argv: Sequence[str], values: FlagValues | None = None
) -> AnySettings:
    """Parses a command line; an invalid one ends the process with one line and exit code 1.

    Args:
      cls: The settings.
      argv: The command line, with the script's name first.
      values: absl's flags, among them those of the settings; by default new ones.
    """
    # Tests and benchmarks parse a command line without this process's flags.
    if values is None:
        values = FlagValues()
        define_flags(cls, values)
        flags.DEFINE_flag(flags.Flag(flags.ArgumentParser(), None, "flagfile", None, ""), values)
    try:
        rest = values(argv)
        if implied := cls.implied(values):  # The last value wins: the one given.
            rest = values([argv[0], *implied, *argv[1:]])
        # A setting is given by its name or its alias, even if it has the default's value.
        given = {
            field.name: values[_flag(field)].value
            for field in cls.flags()
            if any(values[each].present for each in (_flag(field), field.metadata["alias"]) if each)
        }
        missing = [f for f in cls.flags() if f.default is REQUIRED and given.get(f.name) is None]
        if missing:
            raise flags.Error("; ".join(f"--{_flag(field)} must be given" for field in missing))
    except UnicodeDecodeError as error:
        sys.exit(
            f"error: a file that --flagfile names is not {error.encoding} text ({error.reason}): "
            f"save it as {error.encoding}"
        )
    except flags.Error as error:
        # absl suggests names that look alike; add those that other libraries use.
        if isinstance(error, flags.UnrecognizedFlagError):
            name = error.flagname.replace("-", "_")
            meant = [each for each in cls.names() if name in _ELSEWHERE.get(each, "").split()]
            error = flags.UnrecognizedFlagError(name, suggestions=meant) if meant else error
        text = "; ".join(str(error).splitlines())
        sys.exit(f"error: {errors.printable(text)} (--help lists the flags)")
    # A boolean flag takes no second word: --do_train false leaves `false` over.
    if len(rest) > 1:
        text = errors.printable(" ".join(rest[1:]))
        if rest[1].lower() in ("true", "false"):
            text += f": write --FLAG={rest[1]}"
        sys.exit(f"error: unexpected arguments: {text} (--help lists the flags)")
    # __post_init__ refuses contradictions.
    with errors.in_one_line(flags=cls.names()):
        return cls.of(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})


def _flag(field: dataclasses.Field) -> str:
    """Returns a flag's name: that of its field without the underscore after a Python keyword."""
    return field.name.rstrip("_")


def define_flags(cls: type[Settings], values: FlagValues) -> None:
    """Defines the settings' flags in `values`."""
    types = typing.get_type_hints(cls)
    for field in cls.flags():
        value_type = _value_type(types[field.name])
        default: Any = None if field.default is REQUIRED else field.default
        default = list(default) if isinstance(default, tuple) else default
        choices, interval = field.metadata["choices"], field.metadata["interval"]
        # --helpfull shows the defining module as a heading: let that be the group.
        more = {"flag_values": values, "module_name": field.metadata["group"]}
        arguments: tuple[str, Any, str] = (_flag(field), default, field.metadata["help"])
        if value_type is bool:
            flags.DEFINE_boolean(*arguments, **more)
        elif field.metadata["repeated"]:
            flags.DEFINE_multi_string(*arguments, **more)
        elif value_type is tuple:
            flags.DEFINE_list(*arguments, **more)
        elif choices:
            flags.DEFINE_enum(_flag(field), default, choices, field.metadata["help"], **more)
        elif value_type is str:
            flags.DEFINE_string(*arguments, **more)
        else:
            parser = _parser(value_type, interval)
            flags.DEFINE(parser, *arguments, serializer=flags.ArgumentSerializer(), **more)
        # An alias is a flag of its own in absl, which sets the other one.
        if field.metadata["alias"]:
            flags.DEFINE_alias(field.metadata["alias"], _flag(field), **more)


def _value_type(annotation: Any) -> type:
    """Returns the type of a flag's values: bool, int, float, str or tuple."""
    members = [each for each in typing.get_args(annotation) if each is not type(None)]
    if typing.get_origin(annotation) is tuple:
        return tuple
    return _value_type(members[0]) if members else annotation


def _parser(value_type: type, interval: str | None) -> flags.ArgumentParser:
    if value_type is int:
        return _IntegerParser(interval or f"(-inf, {_INT32_MAX}]")
    return _FloatParser(interval) if interval else flags.FloatParser()


class _IntegerParser(flags.IntegerParser):
    """Checks the maximum by itself: absl's message would name both bounds."""

    def __init__(self, interval: str) -> None:
        low, high = (float(end) for end in interval[1:-1].split(","))
        super().__init__(int(low) if low > -float("inf") else None)
        self._maximum = high

    def convert(self, argument: int | str) -> int:
        value = super().convert(argument)
        if value > self._maximum:
            raise ValueError(f"more than the maximum, {int(self._maximum):,}")
        return value


class _FloatParser(flags.FloatParser):
    """Checks an interval. absl's own bounds are inclusive, and it accepts NaN."""

    def __init__(self, interval: str) -> None:
        super().__init__()
        self._low, self._high = map(float, interval[1:-1].split(","))
        self._low_is_open, self._high_is_open = interval[0] == "(", interval[-1] == ")"
        self.syntactic_help = f"a number in {interval}"

    def is_outside_bounds(self, val: float) -> bool:
        # NaN is neither above nor below anything, so it is outside.
        above = self._low < val or (val == self._low and not self._low_is_open)
        below = val < self._high or (val == self._high and not self._high_is_open)
        return not (above and below)


class _HelpFlag(flags.BooleanFlag):
    """Prints --help: the command's own flags, by groups."""

    def __init__(self, name: str, short_name: str | None, text: Callable[[], str]) -> None:
        super().__init__(name, False, "show this help", short_name, allow_override=True)
        self._text = text

    def parse(self, argument: Any) -> None:
        if self._parse(argument):
            errors.print_to_reader(self._text())
            sys.exit(1)  # absl's own exit code.


def help_text(cls: type[Settings], doc: str) -> str:
    """Returns --help's text: what the command does, and its flags by group, except rare ones."""
    # Define the flags anew, because FLAGS may hold other modules' as well.
    values = FlagValues()
    define_flags(cls, values)
    fields = [field for field in cls.flags() if not field.metadata["rare"]]
    used = [field.metadata["group"] for field in fields]
    headings = [*(heading for heading in cls.headings if heading in used), *used]
    lines = [doc.rstrip()]
    for heading in dict.fromkeys(headings):
        lines.append(f"\n{heading}:")
        for field in fields:
            if field.metadata["group"] == heading:
                lines += _help_of(field, values[_flag(field)])
    return "\n".join([*lines, "\nTry --helpfull to get a list of all flags."])


def _help_of(field: dataclasses.Field, flag: flags.Flag) -> list[str]:
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
    alias, choices = field.metadata["alias"], field.metadata["choices"]
    text = field.metadata["help"] + (f" Also --{alias}." if alias else "")
    # The second line of a flag: its default, and what it accepts.
    notes = []
    if field.default is REQUIRED:
        notes.append("must be given")
    elif flag.default not in (None, [], ""):
        notes.append(f"default: {flag.default_as_str[1:-1]}")
    if choices:
        notes.append(f"one of {', '.join(choices)}")
    elif isinstance(flag.parser, (_IntegerParser, _FloatParser)):
        notes.append(flag.parser.syntactic_help)
    lines = [f"{name}: {text}", *([f"({'; '.join(notes)})"] if notes else [])]
    return [
        flags.text_wrap(line, indent="    ", firstline_indent="    " if i else "  ")
        for i, line in enumerate(lines)
    ]
