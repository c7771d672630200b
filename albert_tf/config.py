"""AlbertConfig, a model's hyper-parameters; and the configs and recipes of the package."""

from __future__ import annotations

import dataclasses
import json
import numbers
import os
import pathlib
import sys
from collections.abc import Collection, Sequence
from typing import Any

from albert_tf.storage import files, text_files

# Name of the config file beside a model's weights.
CONFIG_FILE = "albert_config.json"
DROPOUT_FIELDS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
# The release's value, for every layer norm.
LAYER_NORM_EPSILON = 1e-12
HIDDEN_ACTS = ("gelu", "relu", "tanh", "linear")
# No trained model comes near this; much deeper ones could not even be built.
_MOST_LAYERS = 4096
# Strategies of cross-layer parameter sharing.
PARAMETER_SHARING = ("all", "attention", "ffn", "none")
# Keys of released configs that never affected the graph, with the only value each may have.
# `...` allows any value: the BERT pooler keys of some Chinese configs.
_LEGACY_KEYS: dict[str, Any] = {
    "net_structure_type": 0,
    "layers_to_keep": [],
    "gap_size": 0,
    "num_memory_blocks": 0,
    "ln_type": "postln",
    "directionality": "bidi",
    "pooler_fc_size": ...,
    "pooler_num_attention_heads": ...,
    "pooler_num_fc_layers": ...,
    "pooler_size_per_head": ...,
    "pooler_type": "first_token_transform",
}


@dataclasses.dataclass(frozen=True)
class AlbertConfig:
    """The hyper-parameters of an ALBERT encoder.

    Field names and defaults are the release's: a key that a file lacks has xxlarge's value.

    Attributes:
      vocab_size: Pieces in the vocabulary.
      embedding_size: Width E of the embedding tables. Below H, it makes the paper's factorized
        embedding parameterization: V x E, then E x H, in place of V x H.
      hidden_size: Width H of the encoder.
      num_hidden_layers: Number of times the encoder applies a group of blocks.
      num_hidden_groups: Groups of layers; the layers of one group share their weights.
      num_attention_heads: Number of heads, a divisor of `hidden_size`.
      intermediate_size: Inner width of the feed-forward sublayer.
      inner_group_num: Blocks within a group, applied one after the other.
      down_scale_factor: Kept for old files; the release reads it and never uses it.
      hidden_act: One of "gelu" (tanh approximation), "relu", "tanh", "linear".
      hidden_dropout_prob: Dropout of embeddings and of each sublayer's output.
      attention_probs_dropout_prob: Dropout of attention probabilities.
      max_position_embeddings: Rows of the position table, hence the maximum sequence length.
      type_vocab_size: Rows of the token-type table.
      initializer_range: Standard deviation of the truncated normal initialiser.
      parameter_sharing: Cross-layer parameter sharing: which sublayers are shared between the
        layers of a group. "all", "attention", "ffn" or "none", the paper's four strategies.

    Source: albert/modeling.py, AlbertConfig; paper section 3.1 and table 4.
    Differs: unknown keys are rejected; `parameter_sharing` is new.

    Example:
      >>> config = AlbertConfig.from_json_file("albert_base_v2")
      >>> config.num_hidden_layers, config.num_hidden_groups, config.hidden_size
      (12, 1, 768)
      >>> tiny = AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> AlbertConfig.from_dict(tiny.to_dict()) == tiny
      True
    """

    vocab_size: int
    embedding_size: int = 128
    hidden_size: int = 4096
    num_hidden_layers: int = 12
    num_hidden_groups: int = 1
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    inner_group_num: int = 1
    down_scale_factor: int = 1
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    parameter_sharing: str = "all"

    def __post_init__(self) -> None:
        # Types and ranges first: the checks below compute with the values.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                _require(_is_int(value) and value > 0, field.name, "a positive integer", value)
                _require(value < 1 << 31, field.name, "below 2**31", value)
            elif field.type == "float":
                _require(_is_finite(value), field.name, "a finite number", value)
        heads, layers, sharing = self.num_attention_heads, self.num_hidden_layers, PARAMETER_SHARING
        is_rate, few_layers = "a probability in [0, 1)", f"at most {_MOST_LAYERS}"
        a_multiple = f"a multiple of num_attention_heads ({heads})"
        no_more = f"at most num_hidden_layers ({layers})"
        # Then each field's own constraints: a row has its name, its validity and what is expected.
        for name, is_valid, expected in (
            ("hidden_dropout_prob", 0 <= self.hidden_dropout_prob < 1, is_rate),
            ("attention_probs_dropout_prob", 0 <= self.attention_probs_dropout_prob < 1, is_rate),
            ("initializer_range", self.initializer_range > 0, "> 0"),
            ("hidden_act", self.hidden_act in HIDDEN_ACTS, f"one of {HIDDEN_ACTS}"),
            ("parameter_sharing", self.parameter_sharing in sharing, f"one of {sharing}"),
            ("hidden_size", self.hidden_size % heads == 0, a_multiple),
            ("num_hidden_layers", layers <= _MOST_LAYERS, few_layers),
            ("inner_group_num", self.inner_group_num <= _MOST_LAYERS, few_layers),
            ("num_hidden_groups", self.num_hidden_groups <= layers, no_more),
        ):
            _require(is_valid, name, expected, getattr(self, name))

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "") -> AlbertConfig:
        """Makes a config from the keys of an albert_config.json.

        Args:
          values: Values by field name. The release's legacy keys are dropped; a value that differs
            from the one in all released files is an error.
          where: Their location, for error messages.
        """
        # Prefix every message with the location, in one place.
        if where:
            try:
                return cls.from_dict(values)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
        # Unknown keys are refused: a typo would otherwise leave a default in place.
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known - set(_LEGACY_KEYS))
        if unknown:
            raise ValueError(
                f"unknown ALBERT config keys {unknown}: remove them or correct their spelling; "
                f"known keys are {sorted(known)}"
            )
        # A legacy key has no effect here: another value would be silently ignored.
        for key, allowed in _LEGACY_KEYS.items():
            value = values.get(key, allowed)
            _require(allowed is ... or value == allowed, key, f"{allowed!r} or left out", value)
        if "vocab_size" not in values:
            raise ValueError("ALBERT config key vocab_size is missing: give the vocabulary's size")
        return cls(**{key: value for key, value in values.items() if key in known})

    @classmethod
    def from_json_file(cls, path: str | os.PathLike[str]) -> AlbertConfig:
        """Reads an albert_config.json; see `from_dict` for what is accepted.

        Args:
          path: The file, also gs://. If there is no such file: the name of a model that comes with
            the package, for example "albert_base_v2".
        """
        path, known = os.fspath(path), shipped_models()
        # A directory of that name may be the output_dir of a run of the model.
        if path in known and not os.path.isfile(path):
            path = known[path]
        # A bare word that is no file was probably meant as a model's name.
        elif pathlib.PurePath(path).stem == path and not os.path.exists(path):
            raise FileNotFoundError(
                f"ALBERT config {path} does not exist, nor is it the name of a model: "
                f"known names are {', '.join(known)}"
            )
        name = f"ALBERT config {path}"
        files.check_file(path, name)
        values = text_files.parse_json_object(files.read_bytes(path, files.SMALL_BYTES), name)
        return cls.from_dict(values, path)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields by name; `from_dict` takes them back."""
        values = dataclasses.asdict(self)
        if self.parameter_sharing == "all":
            # The release's reader does not know this key.
            del values["parameter_sharing"]
        return values

    def differences(self, other: AlbertConfig, ignored: Collection[str]) -> list[str]:
        """Returns the names of the fields that differ from `other`, except the ignored ones."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ignored]
        return [name for name in names if getattr(self, name) != getattr(other, name)]

    def to_json(self) -> str:
        """Returns the text of an albert_config.json."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def check_length(self, max_seq_length: int, whose: str = "the config's") -> None:
        """Checks that rows fit in the position table; `whose` names its owner in error messages."""
        limit = self.max_position_embeddings
        if not 4 <= max_seq_length <= limit:
            raise ValueError(
                f"`max_seq_length` must be from 4 to {limit} ({whose} max_position_embeddings), "
                f"got {max_seq_length}"
            )

    def attention_group(self, layer: int) -> int:
        """Returns the index of the attention group that a layer uses; both count from 0."""
        return self._group(layer, "attention")

    def ffn_group(self, layer: int) -> int:
        """Returns the index of the feed-forward group that a layer uses; both count from 0."""
        return self._group(layer, "ffn")

    def _shares(self, part: str) -> bool:
        """Whether the layers of a group share one sublayer, "attention" or "ffn"."""
        return self.parameter_sharing in ("all", part)

    def _group(self, layer: int, part: str) -> int:
        # A sublayer that is not shared has as many groups as there are layers.
        if not self._shares(part):
            return layer
        # The release's own floating-point expression: it rounds down at, say, layer 15 of 22
        # with 22 groups, and its checkpoints must be run as they were trained.
        return int(layer / self.num_hidden_layers * self.num_hidden_groups)

    @property
    def num_blocks(self) -> int:
        """Number of blocks that are applied one after the other."""
        return self.num_hidden_layers * self.inner_group_num

    @property
    def num_attention_groups(self) -> int:
        """Number of distinct attention groups, each of `inner_group_num` sublayers."""
        return self.num_hidden_groups if self._shares("attention") else self.num_hidden_layers

    @property
    def num_ffn_groups(self) -> int:
        """Number of distinct feed-forward groups, each of `inner_group_num` sublayers."""
        return self.num_hidden_groups if self._shares("ffn") else self.num_hidden_layers

    @property
    def fits_any_depth(self) -> bool:
        """Whether all layers share all their weights, which then fit a model of any depth."""
        return self.num_attention_groups == self.num_ffn_groups == 1

    def smaller_depths(self, name: str, given: Sequence[int | str]) -> tuple[int, ...]:
        """Returns the depths that a setting lists, checked to be less than the model's depth."""
        if given and not self.fits_any_depth:
            raise ValueError(f"`{name}` needs layers that share all weights: leave it out")
        depths = [int(each) if str(each).isdecimal() else 0 for each in given]
        are_smaller = all(0 < each < self.num_hidden_layers for each in depths)
        if not are_smaller or len({*depths}) < len(depths):
            raise ValueError(
                f"`{name}` must be different numbers from 1 to {self.num_hidden_layers - 1}, one "
                f"less than the model's layers, got {','.join(map(str, given))}"
            )
        return tuple(depths)


# A config, its file, the name of a shipped model, or its dictionary, as stored in .keras files.
ConfigSource = AlbertConfig | str | os.PathLike[str] | dict[str, Any]


def check_integer(name: str, value: Any, least: int) -> None:
    """Raises ValueError unless an argument is an integer of at least `least`."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < least:
        raise ValueError(f"`{name}` must be an integer of at least {least}, not {value!r}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    # An integer may be too large to become a float.
    return (_is_int(value) or isinstance(value, float)) and abs(value) <= sys.float_info.max


def _require(condition: bool, name: str, expected: str, received: Any) -> None:
    if not condition:
        raise ValueError(f"ALBERT config key {name} must be {expected}, not {received!r}")


_FOLDER = pathlib.Path(__file__).parent / "configs"


def shipped_models() -> dict[str, str]:
    """Returns the paths of the models' albert_config.json, by model name."""
    return _files(_FOLDER, ".json")


def shipped_recipes(script: str) -> dict[str, str]:
    """Returns the paths of the flag files of a script (pretraining or finetuning), by name."""
    folder = _FOLDER / "recipes"
    return _files(folder / "pretraining" if script == "pretraining" else folder, ".flags")


def _files(folder: pathlib.Path, suffix: str) -> dict[str, str]:
    return {path.stem: str(path) for path in sorted(folder.glob(f"*{suffix}"))}
