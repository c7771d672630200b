"""Vectors of texts: similar for similar texts, to compare or to search them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.answers import rows as rows_of
from albert_tf.answers.kind import Kind, Reading, cosines, option
from albert_tf.answers.rows import Row
from albert_tf.config import AlbertConfig
from albert_tf.text.tokenization import Tokenizer

# How a text's vector is computed from its pieces' vectors; "mean_sqrt" divides their sum by the
# square root of their number.
POOLINGS = ("mean", "cls", "max", "mean_sqrt")
ACTIVATIONS = ("tanh", "linear", "relu")
# Similarities of two batches of vectors, one number for each pair; larger is more similar.
SIMILARITIES: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": cosines,
    "dot": lambda a, b: (a * b).sum(axis=1),
    "euclidean": lambda a, b: -np.linalg.norm(a - b, axis=1),
    "manhattan": lambda a, b: -np.abs(a - b).sum(axis=1),
}
# The options that are arguments of the model.
ARGUMENTS = ("pooling", "dense_units", "dense_activation", "dimensions", "normalize")
PROMPTS = ("query", "document")
# How many numbers of a vector people are shown.
_SHOWN = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(Kind):
    """Embeds texts. Its options are what sentence-transformers calls modules and prompts.

    Attributes:
      pooling: One of POOLINGS.
      dense_units: Outputs of a dense layer after the pooling; None: there is no such layer.
      dense_activation: The activation of that layer, one of ACTIVATIONS.
      dimensions: How many of the vector's first numbers are kept; None keeps all.
      normalize: Whether vectors are then scaled to length 1.
      similarity: One of SIMILARITIES, by which two texts are compared.
      query_prompt: Text to put before a search query.
      document_prompt: Text to put before a text that is to be found.
      default_prompt: Which of these precedes each text; None: neither, unless one is asked for.
    """

    task, task_name = "embed", "embedding"
    model = "AlbertForEmbedding"
    is_hugging_face = False
    pipeline = "sentence-similarity"
    heads = ("embedding/",)
    is_of_any_encoder = True
    title = "Compare two texts"
    mediapipe = "TextEmbedder"
    vector = "embedding"
    takes_ids = True
    is_scored = False

    pooling: str = option(
        "mean", "How the vectors of a text's pieces become one.", choices=POOLINGS
    )
    dense_units: int | None = option(None, "")
    dense_activation: str = option("tanh", "", choices=ACTIVATIONS)
    dimensions: int | None = option(None, "Keep only so many numbers of a vector, the first ones.")
    normalize: bool = option(False, "Give all vectors the length 1.")
    similarity: str = option("cosine", "How two texts are compared.", choices=[*SIMILARITIES])
    query_prompt: str = option("", "Text to put before each question that is searched for.")
    document_prompt: str = option("", "Text to put before each text that is to be found.")
    default_prompt: str | None = option(
        None, "Which prompt precedes every text; none: what each request asks for.", choices=PROMPTS
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.default_prompt and not self.prefix:
            name = self.default_prompt
            raise ValueError(f"`default_prompt` is {name}, but `{name}_prompt` is empty: set it")

    def check(self, config: AlbertConfig) -> None:
        super().check(config)
        self.width(config)

    def width(self, config: AlbertConfig) -> int:
        """Returns how many numbers the vectors of a model have."""
        width = self.dense_units or config.hidden_size
        if self.dimensions and self.dimensions > width:
            raise ValueError(f"`dimensions` must be from 1 to {width}, got {self.dimensions}")
        return self.dimensions or width

    @property
    def outputs(self) -> Mapping[str, tuple[int | None, ...] | None]:
        size = self.dimensions or self.dense_units
        return {"embedding": (None, size) if size else None}

    @property
    def model_arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ARGUMENTS}

    def prompt(self, name: str | None) -> str:
        """Returns the text to add for one of PROMPTS; "" for the default, which the model adds."""
        if name is None:
            return ""
        if name not in PROMPTS:
            raise ValueError(f"`prompt` must be {' or '.join(PROMPTS)}, got {name!r}")
        if self.default_prompt not in (None, name):
            raise ValueError(
                f"`prompt` is {name}, but the model puts its {self.default_prompt} prompt before "
                "each text: export with `default_prompt=none`"
            )
        return "" if self.default_prompt else getattr(self, f"{name}_prompt")

    @property
    def prefix(self) -> str:
        """The text that the model itself puts before each text."""
        return getattr(self, f"{self.default_prompt}_prompt") if self.default_prompt else ""

    def shortened(self, vector: np.ndarray, size: int | None) -> np.ndarray:
        if size is None or size == len(vector):
            return vector
        if type(size) is not int or not 0 < size < len(vector):
            raise ValueError(f"dimensions must be from 1 to {len(vector)}, got {size!r:.40}")
        found = vector[:size]
        return found / max(np.linalg.norm(found), 1e-12) if self.normalize else found

    def compared(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return SIMILARITIES[self.similarity](first, second)

    def all_compared(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Returns the similarity of each vector `[N, D]` to each of the others, `<float>[N, M]`."""
        if self.similarity == "cosine":
            first, second = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (first, second))
        if self.similarity in ("cosine", "dot"):
            return first @ second.T
        return np.stack([self.compared(each[None], second) for each in first])

    def rows(self, tokenizer: Tokenizer, text: str | Sequence[int]) -> Iterator[Row]:
        """Yields one row; the default prompt is put before a text, but not before ids."""
        most = self.max_seq_length - 2
        ids = tokenizer.encode(self.prefix + text, most) if isinstance(text, str) else text
        yield rows_of.join_ids(tokenizer, ids[:most])

    def found(self, reading: Reading) -> dict[str, Any]:
        (row,), (output,) = reading.rows, reading.outputs
        return {**output, "tokens": np.int32(len(row["input_ids"]))}

    def answer(self, found: Mapping[str, Any]) -> dict[str, Any]:
        return {"embedding": found["embedding"].tolist()}

    def said(self, answer: Mapping[str, Any]) -> str:
        vector = answer["embedding"]
        more = f" ... ({len(vector)} numbers)" if len(vector) > _SHOWN else ""
        return " ".join(f"{number:.4f}" for number in vector[:_SHOWN]) + more
