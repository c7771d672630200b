"""ALBERT's encoder in NumPy and float64: the states between its layers, and what they attend to."""

import numpy as np

from albert_tf.conversion import named_weights


def _norm(x, weights, name):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def run(model, features, layers):
    """Returns states `[layers + 1, B, S, H]` and probabilities `[layers, B, N, S, S]`.

    The model must have one block, E other than H, and gelu.
    """
    weights = {
        name.removeprefix("bert/"): v.numpy().astype("float64")
        for name, v in named_weights(model).items()
    }
    block = "encoder/transformer/group_0/inner_group_0"

    def dense(x, name):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    def heads(x):
        shape = (*x.shape[:2], model.config.num_attention_heads, -1)
        return x.reshape(shape).transpose(0, 2, 1, 3)

    ids, segments = features["input_ids"], features["segment_ids"]
    x = weights["embeddings/word_embeddings"][ids]
    x = x + weights["embeddings/token_type_embeddings"][segments]
    x = x + weights["embeddings/position_embeddings"][: ids.shape[1]]
    x = _norm(x, weights, "embeddings/LayerNorm")
    x = dense(x, "encoder/embedding_hidden_mapping_in")
    states, probabilities = [x], []
    for _ in range(layers):
        query, key, value = (
            heads(dense(x, f"{block}/attention_1/self/{n}")) for n in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(query.shape[-1])
        scores -= 10000.0 * (1 - features["input_mask"])[:, None, None]
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        context = (probs @ value).transpose(0, 2, 1, 3).reshape(x.shape)
        attended = dense(context, f"{block}/attention_1/output/dense")
        x = _norm(x + attended, weights, f"{block}/LayerNorm")
        inner = _gelu(dense(x, f"{block}/ffn_1/intermediate/dense"))
        transformed = dense(inner, f"{block}/ffn_1/intermediate/output/dense")
        x = _norm(x + transformed, weights, f"{block}/LayerNorm_1")
        states.append(x)
        probabilities.append(probs)
    return np.stack(states), np.stack(probabilities)
