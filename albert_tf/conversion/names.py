"""Tables of weight names: ours, and other libraries', each beside the release's.

In a table {0} is the number of the group, {1} the number of the inner group, and * a part of a
layer: kernel, bias, gamma or beta.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from albert_tf.answers.fill import Fill
from albert_tf.answers.kind import CLASSIFIER_HEAD as CLASSIFIER_HEAD
from albert_tf.answers.kinds import KINDS

# Prefixes of the release's names, for the encoder, its pooler, and the heads.
ENCODER = "bert/"
POOLER = "bert/pooler/"
MASKED_LM_HEAD, SENTENCE_ORDER_HEAD = Fill.heads
HEADS = tuple(dict.fromkeys(head for kind in KINDS for head in kind.heads))
# Prefix of the optimizer's variables that belong to no weight, in our checkpoints.
OPTIMIZER = "optimizer/"
# The weights with a row or a number for each piece.
WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
OUTPUT_BIAS = "cls/predictions/output_bias"
# The head of a classifier of texts or of words: a row for each class.
CLASSIFIER_BIAS = "output_bias"
CLASSIFIER = ("output_weights", CLASSIFIER_BIAS)

_BLOCK = "bert/encoder/transformer/group_{0}/inner_group_{1}"
_ATTENTION, _FFN = f"{_BLOCK}/attention_1", f"{_BLOCK}/ffn_1/intermediate"
_MAPPING = "bert/encoder/embedding_hidden_mapping_in"
_PARTS = {"dense": ("kernel", "bias"), "norm": ("gamma", "beta")}

# Our variable path (after the model's own name) -> the release's name. The rows of a layer are in
# the order in which it creates its weights, which is how .keras and .weights.h5 files number them.
TF1_NAMES: tuple[tuple[str, str], ...] = (
    ("embeddings/word_embeddings", "bert/embeddings/word_embeddings"),
    ("embeddings/token_type_embeddings", "bert/embeddings/token_type_embeddings"),
    ("embeddings/position_embeddings", "bert/embeddings/position_embeddings"),
    ("embeddings/LayerNorm_*", "bert/embeddings/LayerNorm/*"),
    ("encoder/embedding_hidden_mapping_in_*", "bert/encoder/embedding_hidden_mapping_in/*"),
    ("encoder/attention_{0}_{1}/query_*", f"{_ATTENTION}/self/query/*"),
    ("encoder/attention_{0}_{1}/key_*", f"{_ATTENTION}/self/key/*"),
    ("encoder/attention_{0}_{1}/value_*", f"{_ATTENTION}/self/value/*"),
    ("encoder/attention_{0}_{1}/output_*", f"{_ATTENTION}/output/dense/*"),
    ("encoder/attention_{0}_{1}/LayerNorm_*", f"{_BLOCK}/LayerNorm/*"),
    ("encoder/ffn_{0}_{1}/intermediate_*", f"{_FFN}/dense/*"),
    ("encoder/ffn_{0}_{1}/output_*", f"{_FFN}/output/dense/*"),
    ("encoder/ffn_{0}_{1}/LayerNorm_1_*", f"{_BLOCK}/LayerNorm_1/*"),
    ("pooler/*", "bert/pooler/dense/*"),
    ("predictions/transform_*", "cls/predictions/transform/dense/*"),
    ("predictions/transform_LayerNorm_*", "cls/predictions/transform/LayerNorm/*"),
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
    ("embedding_dense/*", "embedding/dense/*"),
)

# The dense layer of a model that embeds texts.
DENSE_BIAS = "embedding/dense/bias"
DENSE = ("embedding/dense/kernel", DENSE_BIAS)

# The release's name -> Hugging Face's. Their matrices are the release's kernels transposed.
_HF_BLOCK = "albert.encoder.albert_layer_groups.{0}.albert_layers.{1}"
_HF_LAYERS = (
    ("norm", "bert/embeddings/LayerNorm", "albert.embeddings.LayerNorm"),
    ("dense", _MAPPING, "albert.encoder.embedding_hidden_mapping_in"),
    ("dense", f"{_ATTENTION}/self/query", f"{_HF_BLOCK}.attention.query"),
    ("dense", f"{_ATTENTION}/self/key", f"{_HF_BLOCK}.attention.key"),
    ("dense", f"{_ATTENTION}/self/value", f"{_HF_BLOCK}.attention.value"),
    ("dense", f"{_ATTENTION}/output/dense", f"{_HF_BLOCK}.attention.dense"),
    ("norm", f"{_BLOCK}/LayerNorm", f"{_HF_BLOCK}.attention.LayerNorm"),
    ("dense", f"{_FFN}/dense", f"{_HF_BLOCK}.ffn"),
    ("dense", f"{_FFN}/output/dense", f"{_HF_BLOCK}.ffn_output"),
    ("norm", f"{_BLOCK}/LayerNorm_1", f"{_HF_BLOCK}.full_layer_layer_norm"),
    ("dense", "bert/pooler/dense", "albert.pooler"),
    ("dense", "cls/predictions/transform/dense", "predictions.dense"),
    ("norm", "cls/predictions/transform/LayerNorm", "predictions.LayerNorm"),
)
HUGGING_FACE_NAMES: tuple[tuple[str, str], ...] = (
    ("bert/embeddings/word_embeddings", "albert.embeddings.word_embeddings.weight"),
    ("bert/embeddings/token_type_embeddings", "albert.embeddings.token_type_embeddings.weight"),
    ("bert/embeddings/position_embeddings", "albert.embeddings.position_embeddings.weight"),
    *(
        (f"{release}/{part}", f"{theirs}.{name}")
        for layer, release, theirs in _HF_LAYERS
        for part, name in zip(_PARTS[layer], ("weight", "bias"), strict=True)
    ),
    ("cls/predictions/output_bias", "predictions.bias"),
    ("cls/seq_relationship/output_weights", "sop_classifier.classifier.weight"),
    ("cls/seq_relationship/output_bias", "sop_classifier.classifier.bias"),
    ("output_weights", "classifier.weight"),
    ("output_bias", "classifier.bias"),
    ("cls/squad/output_weights", "qa_outputs.weight"),
    ("cls/squad/output_bias", "qa_outputs.bias"),
)

# The release's name -> the dataset in KerasHub's HDF5 files, with group and inner group in
# place of the block's number.
_KH_BLOCK = "layers/transformer_encoder_{0}_{1}"
_KH_ATTENTION = f"{_KH_BLOCK}/_self_attention_layer"


def _datasets(*layers: tuple[str, str, str]) -> list[tuple[str, str]]:
    return [
        (f"{release}/{part}", f"{theirs}/vars/{i}")
        for layer, release, theirs in layers
        for i, part in enumerate(_PARTS[layer])
    ]


KERAS_HUB_BACKBONE_NAMES: tuple[tuple[str, str], ...] = (
    ("bert/embeddings/word_embeddings", "layers/reversible_embedding/vars/0"),
    ("bert/embeddings/token_type_embeddings", "layers/embedding/vars/0"),
    ("bert/embeddings/position_embeddings", "layers/position_embedding/vars/0"),
    *_datasets(
        ("norm", "bert/embeddings/LayerNorm", "layers/layer_normalization"),
        ("dense", _MAPPING, "layers/dense"),
        ("dense", f"{_ATTENTION}/self/query", f"{_KH_ATTENTION}/query_dense"),
        ("dense", f"{_ATTENTION}/self/key", f"{_KH_ATTENTION}/key_dense"),
        ("dense", f"{_ATTENTION}/self/value", f"{_KH_ATTENTION}/value_dense"),
        ("dense", f"{_ATTENTION}/output/dense", f"{_KH_ATTENTION}/output_dense"),
        ("norm", f"{_BLOCK}/LayerNorm", f"{_KH_ATTENTION}_norm"),
        ("dense", f"{_FFN}/dense", f"{_KH_BLOCK}/_feedforward_intermediate_dense"),
        ("dense", f"{_FFN}/output/dense", f"{_KH_BLOCK}/_feedforward_output_dense"),
        ("norm", f"{_BLOCK}/LayerNorm_1", f"{_KH_BLOCK}/_feedforward_layer_norm"),
        ("dense", "bert/pooler/dense", "layers/dense_1"),
    ),
)
_KH_HEAD = "layers/masked_lm_head"
KERAS_HUB_MASKED_LM_NAMES: tuple[tuple[str, str], ...] = (
    *_datasets(
        ("dense", "cls/predictions/transform/dense", f"{_KH_HEAD}/_intermediate_dense"),
        ("norm", "cls/predictions/transform/LayerNorm", f"{_KH_HEAD}/_intermediate_layer_norm"),
    ),
    ("cls/predictions/output_bias", f"{_KH_HEAD}/vars/0"),
)
# Their matrix is the transpose of the release's.
KERAS_HUB_CLASSIFIER_NAMES: tuple[tuple[str, str], ...] = (
    ("output_weights", "layers/dense/vars/0"),
    ("output_bias", "layers/dense/vars/1"),
)

# The release's name -> the variable in TF-Hub's TF2 modules, which the Model Garden exported: an
# encoder with one group.
_ONE_BLOCK = _BLOCK.format(0, 0)
_GARDEN_LAYERS = (
    ("bert/embeddings/LayerNorm", "embeddings/layer_norm"),
    ("bert/encoder/embedding_hidden_mapping_in", "embedding_projection"),
    (f"{_ONE_BLOCK}/attention_1/self/query", "transformer/self_attention/query"),
    (f"{_ONE_BLOCK}/attention_1/self/key", "transformer/self_attention/key"),
    (f"{_ONE_BLOCK}/attention_1/self/value", "transformer/self_attention/value"),
    (f"{_ONE_BLOCK}/attention_1/output/dense", "transformer/self_attention/attention_output"),
    (f"{_ONE_BLOCK}/LayerNorm", "transformer/self_attention_layer_norm"),
    (f"{_ONE_BLOCK}/ffn_1/intermediate/dense", "transformer/intermediate"),
    (f"{_ONE_BLOCK}/ffn_1/intermediate/output/dense", "transformer/output"),
    (f"{_ONE_BLOCK}/LayerNorm_1", "transformer/output_layer_norm"),
    ("bert/pooler/dense", "pooler_transform"),
)
MODEL_GARDEN_NAMES: tuple[tuple[str, str], ...] = (
    ("bert/embeddings/word_embeddings", "word_embeddings/embeddings"),
    ("bert/embeddings/token_type_embeddings", "type_embeddings/embeddings"),
    ("bert/embeddings/position_embeddings", "position_embedding/embeddings"),
    *((f"{release}/*", f"{theirs}/*") for release, theirs in _GARDEN_LAYERS),
)


# The release's name -> brightmart/albert_zh's: BERT's names, for a single shared layer.
ALBERT_ZH_LAYER = "bert/encoder/layer_shared"
ALBERT_ZH_NAMES: tuple[tuple[str, str], ...] = (
    *(
        (f"{_ONE_BLOCK}/attention_1/self/{part}/*", f"{ALBERT_ZH_LAYER}/attention/self/{part}/*")
        for part in ("query", "key", "value")
    ),
    (f"{_ONE_BLOCK}/attention_1/output/dense/*", f"{ALBERT_ZH_LAYER}/attention/output/dense/*"),
    (f"{_ONE_BLOCK}/LayerNorm/*", f"{ALBERT_ZH_LAYER}/attention/output/LayerNorm/*"),
    (f"{_ONE_BLOCK}/ffn_1/intermediate/dense/*", f"{ALBERT_ZH_LAYER}/intermediate/dense/*"),
    (f"{_ONE_BLOCK}/ffn_1/intermediate/output/dense/*", f"{ALBERT_ZH_LAYER}/output/dense/*"),
    (f"{_ONE_BLOCK}/LayerNorm_1/*", f"{ALBERT_ZH_LAYER}/output/LayerNorm/*"),
)


class Renaming:
    """Translates names by a table, both ways.

    Args:
      rows: Pairs of templates; see the module.
      prefix: Pattern of a prefix that names of the first column may have; it is dropped.
    """

    def __init__(self, rows: Iterable[tuple[str, str]], prefix: str = "") -> None:
        rows = tuple(rows)
        self._forward = tuple((_pattern(first, prefix), second) for first, second in rows)
        self._backward = tuple((_pattern(second), first) for first, second in rows)

    def forward(self, name: str) -> str | None:
        """Returns the second column's name for one of the first column, or None."""
        return _translate(name, self._forward)

    def backward(self, name: str) -> str | None:
        """Returns the first column's name for one of the second column, or None."""
        return _translate(name, self._backward)


def _pattern(template: str, prefix: str = "") -> re.Pattern[str]:
    text = re.escape(template).replace(r"\{0\}", r"(?P<group>\d+)")
    text = text.replace(r"\{1\}", r"(?P<inner>\d+)")
    return re.compile(prefix + text.replace(r"\*", "(?P<part>kernel|bias|gamma|beta)"))


def _translate(name: str, rules: Iterable[tuple[re.Pattern[str], str]]) -> str | None:
    for pattern, template in rules:
        match = pattern.fullmatch(name)
        if match:
            found = match.groupdict()
            template = template.format(found.get("group"), found.get("inner"))
            return template.replace("*", found.get("part") or "")
    return None


_OURS = Renaming(TF1_NAMES, prefix="(?:.*/)?")


def tf1_name(path: str) -> str:
    """Returns the release's name for a variable's Keras path, or the path if the table lacks it."""
    return _OURS.forward(path) or path


def weights_of_layer(layer: str) -> tuple[str, ...]:
    """Returns the release's names of a layer's weights, in the order in which it creates them.

    Args:
      layer: The layer's own name, for example "pooler" or "attention_0_1". Other libraries' layers
        have no weights in the release.
    """
    names = []
    for path, _ in TF1_NAMES:
        template = path.rpartition("/")[0].rpartition("/")[2]
        match = _pattern(template).fullmatch(layer)
        if match:
            found = match.groupdict()
            path = path.format(found.get("group"), found.get("inner"))
            parts = _PARTS["norm" if "LayerNorm" in path else "dense"] if "*" in path else ("",)
            names += [tf1_name(path.replace("*", part)) for part in parts]
    return tuple(names)
