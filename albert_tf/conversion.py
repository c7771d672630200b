"""Names of weights here and elsewhere, and the strict loading that rests on them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import keras
import numpy as np
from absl import logging

from albert_tf import checkpoint

_BLOCK = "bert/encoder/transformer/group_{0}/inner_group_{1}"

# Our variable path (after the model's own name) -> the release's variable name. {0}, {1} are the
# numbers of the group and of the inner group. Two-dimensional weights have the same layout.
TF1_NAMES: tuple[tuple[str, str], ...] = (
    ("embeddings/word_embeddings", "bert/embeddings/word_embeddings"),
    ("embeddings/token_type_embeddings", "bert/embeddings/token_type_embeddings"),
    ("embeddings/position_embeddings", "bert/embeddings/position_embeddings"),
    ("embeddings/LayerNorm_*", "bert/embeddings/LayerNorm/*"),
    ("encoder/embedding_hidden_mapping_in_*", "bert/encoder/embedding_hidden_mapping_in/*"),
    ("encoder/attention_{0}_{1}/query_*", f"{_BLOCK}/attention_1/self/query/*"),
    ("encoder/attention_{0}_{1}/key_*", f"{_BLOCK}/attention_1/self/key/*"),
    ("encoder/attention_{0}_{1}/value_*", f"{_BLOCK}/attention_1/self/value/*"),
    ("encoder/attention_{0}_{1}/output_*", f"{_BLOCK}/attention_1/output/dense/*"),
    ("encoder/attention_{0}_{1}/LayerNorm_*", f"{_BLOCK}/LayerNorm/*"),
    ("encoder/ffn_{0}_{1}/intermediate_*", f"{_BLOCK}/ffn_1/intermediate/dense/*"),
    ("encoder/ffn_{0}_{1}/output_*", f"{_BLOCK}/ffn_1/intermediate/output/dense/*"),
    ("encoder/ffn_{0}_{1}/LayerNorm_1_*", f"{_BLOCK}/LayerNorm_1/*"),
    ("pooler/*", "bert/pooler/dense/*"),
    ("predictions/transform_LayerNorm_*", "cls/predictions/transform/LayerNorm/*"),
    ("predictions/transform_*", "cls/predictions/transform/dense/*"),
    ("predictions/output_bias", "cls/predictions/output_bias"),
    ("seq_relationship/output_weights", "cls/seq_relationship/output_weights"),
    ("seq_relationship/output_bias", "cls/seq_relationship/output_bias"),
    ("classifier/output_weights", "output_weights"),
    ("classifier/output_bias", "output_bias"),
    ("span/output_weights", "cls/squad/output_weights"),
    ("span/output_bias", "cls/squad/output_bias"),
    ("conditional_span/start_*", "start_logits/dense/*"),
    ("conditional_span/end_0_*", "end_logits/dense_0/*"),
    ("conditional_span/end_LayerNorm_*", "end_logits/LayerNorm/*"),
    ("conditional_span/end_1_*", "end_logits/dense_1/*"),
    ("answerability/dense_0_*", "answer_class/dense_0/*"),
    ("answerability/dense_1_*", "answer_class/dense_1/*"),
)


def _pattern(path: str) -> re.Pattern[str]:
    path = path.replace("{0}", r"(?P<group>\d+)").replace("{1}", r"(?P<inner>\d+)")
    return re.compile("(?:.*/)?" + path.replace("*", "(?P<part>kernel|bias|gamma|beta)"))


_RULES = tuple((_pattern(path), name) for path, name in TF1_NAMES)
_NOT_WEIGHTS = re.compile(r"(^|/)(global_step|adam_m|adam_v)$")


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What loading a checkpoint did, by name.

    Attributes:
      loaded: Paths of the model's variables that were filled.
      missing: Paths of the model's variables that the checkpoint does not hold; unchanged.
      unused: Names in the checkpoint that the model has no variable for.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{len(self.loaded)} variables loaded"
        for label, names in (("missing", self.missing), ("unused", self.unused)):
            if names:
                text += f"; {label}: {', '.join(names)}"
        return text


def tf1_name(path: str) -> str:
    """Returns the release's name of a variable.

    Args:
      path: keras' path of the variable. One that the table does not know keeps its path.

    Returns:
      The name in a checkpoint.
    """
    for pattern, name in _RULES:
        match = pattern.fullmatch(path)
        if match:
            groups = match.groupdict()
            name = name.format(groups.get("group"), groups.get("inner"))
            return name.replace("*", groups.get("part") or "")
    return path


def named_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns a model's weights by their name in a checkpoint.

    Args:
      model: A built model.

    Returns:
      Variables by name.

    Raises:
      ValueError: Two variables would have one name.
    """
    named: dict[str, keras.Variable] = {}
    for variable in model.weights:
        name = tf1_name(variable.path)
        if name in named:
            raise ValueError(
                f"{named[name].path} and {variable.path} would both be saved as {name}: give the "
                "layers different names"
            )
        named[name] = variable
    return named


def load_weights(
    model: keras.Model, path: str, *, expand_group0: bool = False, strict: bool = True
) -> LoadReport:
    """Fills a model from a checkpoint of the release, or one of our own.

    The encoder must fit to the last variable. Heads come and go between pre-training and
    fine-tuning: those that only one side has are reported, and logged. Optimizer moments and the
    step are passed over.

    Args:
      model: A built model.
      path: A checkpoint prefix, or a directory with checkpoints.
      expand_group0: Whether groups that the checkpoint lacks are filled from its group_0.
      strict: Whether a difference in the encoder is an error. Shapes always are.

    Returns:
      What was loaded, missing and unused.

    Raises:
      FileNotFoundError: There is no such checkpoint.
      ValueError: It is damaged, or does not fit; the message names every variable, and the model
        is unchanged.

    Source: albert/modeling.py, get_assignment_map_from_checkpoint.
    Differs: the release loads what happens to match and says nothing of the rest.
    """
    values = {
        name: value
        for name, value in checkpoint.read(path).items()
        if not _NOT_WEIGHTS.search(name)
    }
    named = named_weights(model)
    sources = {name: _source(name, values, expand_group0) for name in named}
    _check_shapes(path, named, sources, values)

    missing = [name for name, source in sources.items() if source is None]
    unused = sorted(set(values) - set(sources.values()))
    if strict:
        _check_encoder(path, missing, unused, loaded=len(named) - len(missing))
    for name, source in sources.items():
        if source is not None:
            named[name].assign(values[source])
    report = LoadReport(
        loaded=tuple(named[name].path for name in named if sources[name] is not None),
        missing=tuple(named[name].path for name in missing),
        unused=tuple(unused),
    )
    logging.info("%s: %s", path, report)
    return report


def _source(name: str, values: dict[str, Any], expand_group0: bool) -> str | None:
    if name in values:
        return name
    from_group0 = re.sub(r"/group_\d+/", "/group_0/", name)
    return from_group0 if expand_group0 and from_group0 in values else None


def _check_shapes(
    path: str,
    named: dict[str, keras.Variable],
    sources: dict[str, str | None],
    values: dict[str, np.ndarray],
) -> None:
    wrong = [
        f"{name} {list(values[source].shape)} in the checkpoint, {list(named[name].shape)} in "
        "the model"
        for name, source in sources.items()
        if source is not None and tuple(values[source].shape) != tuple(named[name].shape)
    ]
    if wrong:
        raise ValueError(
            f"checkpoint {path} is of another shape than the model ({'; '.join(wrong)}): use the "
            "albert_config.json that belongs to it"
        )


def _check_encoder(path: str, missing: list[str], unused: list[str], loaded: int) -> None:
    differences = []
    for label, names in (("lacks", missing), ("has, and the model not,", unused)):
        names = [name for name in names if name.startswith("bert/")]
        if names:
            differences.append(f"it {label} {', '.join(names)}")
    if not loaded:
        differences.append("it shares no variable with the model")
    if differences:
        raise ValueError(
            f"checkpoint {path} does not fit the model: {'; '.join(differences)}; use the "
            "albert_config.json that belongs to it"
        )
