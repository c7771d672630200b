"""The shapes of all weights that a model can have, by the release's names, from its config alone.

Counting them takes no memory, so that a config of any size can be refused before a model is built.

Example:
    >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
    >>> parts(config)["pooler"].shapes()
    {'bert/pooler/dense/kernel': (12, 12), 'bert/pooler/dense/bias': (12,)}
"""

from __future__ import annotations

import dataclasses
import math

from albert_tf.config import AlbertConfig

Shape = tuple[int, ...]

# The encoder's parts; all others are heads.
ENCODER = ("piece embeddings", "other embeddings", "E to H", "attention", "feed-forward", "pooler")
# {0} is the number of the group and {1} that of the inner group, as in conversion/names.py.
_BLOCK = "bert/encoder/transformer/group_{0}/inner_group_{1}"


@dataclasses.dataclass(frozen=True)
class Part:
    """Weights that belong together; attention and feed-forward parts repeat for each block."""

    templates: dict[str, Shape]
    num_groups: int = 1
    inner_group_num: int = 1

    def shapes(self) -> dict[str, Shape]:
        """Returns the shape of each weight by the release's name."""
        return {
            template.format(group, inner): shape
            for group in range(self.num_groups)
            for inner in range(self.inner_group_num)
            for template, shape in self.templates.items()
        }

    def count(self) -> int:
        """Returns the number of parameters, in time that doesn't depend on the config's sizes."""
        return self.num_groups * self.inner_group_num * sum(map(math.prod, self.templates.values()))


def parts(config: AlbertConfig, num_labels: int = 0, dense_units: int = 0) -> dict[str, Part]:
    """Returns the parts of the encoder and of every head, by name.

    The classifier has `num_labels` classes, the dense layer of vectors `dense_units` outputs.
    """
    e, h, i = config.embedding_size, config.hidden_size, config.intermediate_size
    inner = config.inner_group_num
    # Names are those of the release's checkpoints; a dense kernel is [inputs, outputs].
    attention = [
        _dense(f"{_BLOCK}/attention_1/{name}", h, h)
        for name in ("self/query", "self/key", "self/value", "output/dense")
    ]
    ffn = f"{_BLOCK}/ffn_1/intermediate"
    return {
        "piece embeddings": _part({"bert/embeddings/word_embeddings": (config.vocab_size, e)}),
        "other embeddings": _part(
            {"bert/embeddings/token_type_embeddings": (config.type_vocab_size, e)},
            {"bert/embeddings/position_embeddings": (config.max_position_embeddings, e)},
            _norm("bert/embeddings/LayerNorm", e),
        ),
        # The release has no projection between equal widths.
        "E to H": _part(_dense("bert/encoder/embedding_hidden_mapping_in", e, h) if e != h else {}),
        "attention": _part(
            *attention, _norm(f"{_BLOCK}/LayerNorm", h), blocks=(config.num_attention_groups, inner)
        ),
        "feed-forward": _part(
            _dense(f"{ffn}/dense", h, i),
            _dense(f"{ffn}/output/dense", i, h),
            _norm(f"{_BLOCK}/LayerNorm_1", h),
            blocks=(config.num_ffn_groups, inner),
        ),
        "pooler": _part(_dense("bert/pooler/dense", h, h)),
        # The masked-LM head's output matrix is the piece embeddings.
        "masked LM head": _part(
            _dense("cls/predictions/transform/dense", h, e),
            _norm("cls/predictions/transform/LayerNorm", e),
            {"cls/predictions/output_bias": (config.vocab_size,)},
        ),
        "sentence order head": _part(_classes("cls/seq_relationship/output_", 2, h)),
        "classifier": _part(_classes("output_", num_labels, h)),
        "span": _part(_classes("cls/squad/output_", 2, h)),
        "conditional span": _part(
            _dense("start_logits/dense", h, 1),
            _dense("end_logits/dense_0", 2 * h, h),
            _norm("end_logits/LayerNorm", h),
            _dense("end_logits/dense_1", h, 1),
        ),
        # The release's last layer of this head has no bias.
        "answerability": _part(
            _dense("answer_class/dense_0", 2 * h, h), {"answer_class/dense_1/kernel": (h, 1)}
        ),
        "dense layer of vectors": _part(_dense("embedding/dense", h, dense_units)),
    }


def _part(*weights: dict[str, Shape], blocks: tuple[int, int] = (1, 1)) -> Part:
    return Part({name: shape for each in weights for name, shape in each.items()}, *blocks)


def _dense(name: str, inputs: int, outputs: int) -> dict[str, Shape]:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def _norm(name: str, size: int) -> dict[str, Shape]:
    return {f"{name}/gamma": (size,), f"{name}/beta": (size,)}


def _classes(prefix: str, outputs: int, inputs: int) -> dict[str, Shape]:
    """The release stores a classifier's matrix with a row for each class."""
    return {f"{prefix}weights": (outputs, inputs), f"{prefix}bias": (outputs,)}
