"""A kind of answer: how the texts of a model are read, and what its outputs mean."""

from __future__ import annotations

import abc
import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from albert_tf.answers.rows import Row, run_rows
from albert_tf.config import AlbertConfig
from albert_tf.storage.text_files import class_of, json_member
from albert_tf.text.characters import to_unicode
from albert_tf.text.tokenization import Tokenizer
from albert_tf.types import Features

# Name prefix of the weights of a head that classifies texts, words or choices.
CLASSIFIER_HEAD = "output_"
# Upper limit of integer options that declare none: the graph computes with int32.
_MOST = 2**31 - 1
# Positions per forward pass (at least one row), so that memory doesn't grow with the texts.
POSITIONS_AT_ONCE = 4096

AnyKind = TypeVar("AnyKind", bound="Kind")


class Reading(NamedTuple):
    """One input as the model read it: its texts, their rows, and the outputs for each row.

    Outputs are as long as their row was padded to in its batch.
    """

    tokenizer: Tokenizer
    texts: Sequence[Any]
    rows: Sequence[Row]
    outputs: Sequence[Features]


def option(
    default: Any,
    help: str,
    *,
    least: float = 1,
    most: float = _MOST,
    choices: Sequence[str] = (),
    alias: str | None = None,
) -> Any:
    """Returns a field of a Kind: one of its options.

    Args:
      default: Its value if none is given.
      help: Its text in albert-export's --help; "" if it has no flag.
      least: The smallest number that is accepted.
      most: The largest one.
      choices: The texts that are accepted; all if there are none.
      alias: Another name of the flag.
    """
    metadata = {"help": help, "least": least, "most": most, "choices": choices, "alias": alias}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind(abc.ABC):
    """How the texts of a model are read, and what its outputs mean: one of KINDS.

    Its fields are its options. Types and ranges are checked here, wherever the values come from:
    flags, Python, or JSON in run.json, serving.json and page.json. So a number in a file can do no
    more harm than a flag.

    Attributes:
      max_seq_length: Maximum number of pieces per sequence, special ones included.
    """

    # Name of the kind in --task and in JSON.
    task: ClassVar[str]
    # Name of the model's class; whether Hugging Face has the model, under the same name; and the
    # name of their pipeline.
    model: ClassVar[str]
    is_hugging_face: ClassVar[bool] = True
    pipeline: ClassVar[str] = ""
    # Name prefixes of the head's weights in the release, and whether the head reads the pooler.
    heads: ClassVar[tuple[str, ...]]
    reads_pooler: ClassVar[bool] = False
    # Whether any encoder will do, whatever it was trained for.
    is_of_any_encoder: ClassVar[bool] = False
    # The title of its page; "" if there is no page for it.
    title: ClassVar[str] = ""
    # MediaPipe's class for it on phones; "" if there is none.
    mediapipe: ClassVar[str] = ""
    # Whether its last text is a list of texts; whether ids without [CLS] and [SEP] may stand for a
    # text; the name of the result that is a text's vector, "" if there is none.
    takes_many: ClassVar[bool] = False
    takes_ids: ClassVar[bool] = False
    vector: ClassVar[str] = ""
    # Whether it is scored on labelled texts: its task then has `texts` and `predictions_of`.
    is_scored: ClassVar[bool] = True
    # Name prefixes of optional weights -> the outputs that need them.
    dispensable: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # Positions per forward pass; fewer if the outputs of a position are large.
    positions_at_once: ClassVar[int] = POSITIONS_AT_ONCE

    max_seq_length: int = option(
        512, "Maximum length of a sequence in tokens, by default the model's.", least=4
    )

    def __post_init__(self) -> None:
        for name, value in self.options().items():
            check_option(type(self), name, value)

    @classmethod
    def option_fields(cls) -> dict[str, dataclasses.Field]:
        """Returns the options by name."""
        return {field.name: field for field in dataclasses.fields(cls)}

    def options(self) -> dict[str, Any]:
        """Returns the options' values by name."""
        return {name: getattr(self, name) for name in self.option_fields()}

    def to_json(self) -> dict[str, Any]:
        """Returns the kind's name and its options as JSON; options that are None are left out."""
        values = {name: value for name, value in self.options().items() if value is not None}
        lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
        return {"task": self.task, **values, **lists}

    @property
    @abc.abstractmethod
    def task_name(self) -> str:
        """albert-finetune's name of the task (the generic one, not GLUE's)."""

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the texts of one input."""
        return ("text",)

    @property
    def text_ranks(self) -> dict[str, int]:
        """Rank of a batch of each text: 1 is `<string>[N]`, 2 is `<string>[N, C]`."""
        last = self.text_names[-1]
        return {name: 1 + (self.takes_many and name == last) for name in self.text_names}

    @property
    def outputs(self) -> Mapping[str, tuple[int | None, ...] | None]:
        """The model's outputs that answers need, and their shapes.

        None in a shape is an axis of any size; None in place of a shape allows any.
        """
        return {"logits": (None, None)}

    @property
    def model_arguments(self) -> dict[str, Any]:
        """Arguments of the model's class, beside its config."""
        return {}

    @property
    def feature_settings(self) -> dict[str, Any]:
        """Options that determine the rows of examples, by their names in cached features."""
        return {"max_seq_length": self.max_seq_length}

    @property
    def least_length(self) -> int:
        """Minimum length of the model's sequences, even if all texts are shorter."""
        return 0

    def check(self, config: AlbertConfig) -> None:
        """Raises ValueError if an option exceeds what the model's config allows."""
        config.check_length(self.max_seq_length)

    def replace(self: AnyKind, **options: Any) -> AnyKind:
        """Returns the kind with other options."""
        return dataclasses.replace(self, **options)

    def prompt(self, name: str | None) -> str:
        """Returns the text that a prompt puts before a text to embed it; "" if it is None."""
        if name is not None:
            raise ValueError(f"`prompt` is {name}, but a model of the task {self.task} has none")
        return ""

    def shortened(self, vector: np.ndarray, size: int | None) -> np.ndarray:
        """Returns a text's vector with that many numbers; None keeps all."""
        if size not in (None, len(vector)):
            raise ValueError(f"dimensions must be {len(vector)}, as all these vectors have")
        return vector

    def compared(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Returns the similarities `<float>[N]` of pairs of texts, from vectors, both `[N, D]`."""
        return cosines(first, second)

    def with_threshold(self: AnyKind, threshold: float | None) -> AnyKind:
        """Returns the kind with this decision threshold, if it has one."""
        return self

    @abc.abstractmethod
    def rows(self, tokenizer: Tokenizer, *texts: Any) -> Iterator[Row]:
        """Yields the unpadded sequences of one input.

        Beside FEATURES, a row may have features that `found` needs.
        """

    @abc.abstractmethod
    def found(self, reading: Reading) -> dict[str, Any]:
        """Returns the results for one input, by the names of a SavedModel's outputs."""

    @abc.abstractmethod
    def answer(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Turns what `found` returned for one input into an answer of JSON's types."""

    @abc.abstractmethod
    def said(self, answer: Mapping[str, Any]) -> str:
        """Formats an answer for people."""

    def find(
        self,
        tokenizer: Tokenizer,
        run: Callable[[Features], Features],
        inputs: Sequence[Sequence[Any]],
    ) -> list[dict[str, Any]]:
        """Runs a model on inputs, and returns the results for each; see `found`.

        Args:
          tokenizer: The model's.
          run: Maps FEATURES, each `<int32>[B, S]` or `[B, C, S]`, to the model's outputs.
          inputs: The texts of each.
        """
        rows = [list(self.rows(tokenizer, *texts)) for texts in inputs]
        flat = [row for of_input in rows for row in of_input]
        # A generator, so that only the outputs of a batch and of one input are in memory.
        outputs = run_rows(run, flat, self.positions_at_once, self.max_seq_length)
        return [
            self.found(Reading(tokenizer, texts, of_input, [next(outputs) for _ in of_input]))
            for texts, of_input in zip(inputs, rows, strict=True)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled(Kind):
    """A kind whose model has one output for each class.

    Attributes:
      labels: Names of the classes by id.
    """

    labels: tuple[str, ...] = option(
        (), "Names of the classes in the order of their ids, separated by commas."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "labels", class_names(self.labels))

    @property
    def model_arguments(self) -> dict[str, Any]:
        return {"num_labels": len(self.labels) or 1}

    @classmethod
    def names_of(cls, labels: Any, num_outputs: int) -> tuple[str, ...]:
        """Checks names of classes against the model's number of outputs, and returns them."""
        return class_names(labels, num_outputs)


@functools.cache
def _types(cls: type[Kind]) -> dict[str, tuple[type, ...]]:
    """Returns the types that each option may have; for a tuple, not those of its elements."""
    hints = typing.get_type_hints(cls)
    return {
        name: tuple(typing.get_origin(each) or each for each in _alternatives(hints[name]))
        for name in cls.option_fields()
    }


def _alternatives(hint: Any) -> tuple[Any, ...]:
    # An option that may be None is a union with its type.
    is_union = type(None) in typing.get_args(hint)
    return typing.get_args(hint) if is_union else (hint,)


def check_option(cls: type[Kind], name: str, value: Any) -> None:
    """Raises ValueError if an option's type or value is not allowed."""
    metadata, types = cls.option_fields()[name].metadata, _types(cls)[name]
    choices, least, most = metadata["choices"], metadata["least"], metadata["most"]
    # JSON and command lines write whole numbers without a point.
    allowed = (*types, int) if float in types else types
    if type(value) not in allowed:  # Not isinstance: a bool is an int as well.
        expected = " or ".join(kind.__name__ for kind in types if kind is not type(None))
        raise ValueError(f"`{name}` must be of the type {expected}, got {str(value)[:60]!r}")
    if choices and value not in (None, *choices):
        raise ValueError(f"`{name}` must be {' or '.join(choices)}, got {value[:60]!r}")
    # NaN fails this comparison as well.
    if type(value) in (int, float) and not least <= value <= most:
        raise ValueError(f"`{name}` must be from {least} to {most}, got {str(value)[:60]}")


def checked_options(cls: type[Kind], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns those of JSON's values that are a kind's options, checked; others are ignored.

    Args:
      cls: The kind.
      values: What `to_json` returned, or a part of it.
      where: Source of the values, for messages.
    """
    found: dict[str, Any] = {}
    for name in cls.option_fields().keys() & values.keys():
        is_list = tuple in _types(cls)[name]
        # JSON knows lists, but a frozen dataclass needs tuples.
        found[name] = tuple(json_member(values, name, where, list)) if is_list else values[name]
        try:
            check_option(cls, name, found[name])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return found


def from_json(cls: type[AnyKind], values: Mapping[str, Any], where: str) -> AnyKind:
    """Returns the kind that `to_json` described; it must have all options."""
    fields = cls.option_fields()
    unknown = sorted(values.keys() - fields.keys() - {"task"})
    # An option may be left out if it is None by default.
    lacking = [n for n, field in fields.items() if field.default is not None and n not in values]
    if unknown:
        raise ValueError(
            f"{where}: unknown option {unknown[0]!r}: {cls.task} has {', '.join(fields)}"
        )
    if lacking:
        raise ValueError(f"{where} lacks {', '.join(lacking)}: export again")
    options = checked_options(cls, values, where)
    try:
        return cls(**options)
    except ValueError as error:  # Options that contradict each other.
        raise ValueError(f"{where}: {error}") from None


def class_names(labels: Any, count: int | None = None) -> tuple[str, ...]:
    """Returns the names of classes, given as names or numbers in the order of their ids.

    Args:
      labels: The names or numbers.
      count: The number of the model's classes, if it is known.
    """
    if isinstance(labels, Mapping):
        raise ValueError(
            "`labels` must be a list of names in the order of their ids, not a dictionary"
        )
    given = list(labels)
    # A missing label is None, or NaN in pandas.
    if any(label is None or label != label for label in given):
        raise ValueError(f"`labels` must be names, but one is missing: {given}")
    found = tuple(map(class_name, given))
    if count is not None and len(found) != count:
        raise ValueError(
            f"the model has {count or 'no'} classes: give {count or 'no'} labels, a name for "
            f"each, not {len(found)}"
        )
    # Names that are the same number, such as 1 and 1.0, are one class.
    if len({*map(class_of, found)} - {""}) < len(found):
        raise ValueError(
            f"`labels` must be distinct names, none empty, got {', '.join(map(repr, found))}"
        )
    return found


def class_name(label: Any) -> str:
    """Returns the name of a class that is given by its name or a number."""
    return str(to_unicode(label)) if isinstance(label, (str, bytes)) else str(label)


def softmax(logits: ArrayLike) -> np.ndarray:
    """Returns probabilities `<float64>[B, C]` of logits `<float>[B, C]`."""
    logits = np.asarray(logits, np.float64)
    # The largest exponent is 0, so that nothing overflows.
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def sigmoid(logits: ArrayLike) -> np.ndarray:
    """Returns the probabilities `<float64>` of logits `<float>` of the same shape."""
    # By tanh, because exp would overflow for large negative logits.
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(logits, np.float64)))


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the cosines `<float>[N]` of pairs of vectors `[N, D]`; NaN for vectors of zeros."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (first * second).sum(axis=1) / lengths


def strings(texts: Sequence[Any]) -> np.ndarray:
    """Returns texts, or rows of texts, as an object array, even if there are none."""
    return np.array(texts, object)
