"""AlbertModel: embeddings -> E to H -> encoder -> pooler; its inputs and output shapes."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import keras
import numpy as np
from keras import KerasTensor, ops

from albert_tf.config import AlbertConfig, ConfigSource
from albert_tf.model import dropout, layers
from albert_tf.model.encoder import Encoder
from albert_tf.types import Array

_Model = TypeVar("_Model", bound="ConfiguredModel")

# Other libraries' names of inputs, and ours, if there is one: Hugging Face's, KerasHub's, TF-Hub's.
_OURS = {
    "attention_mask": "input_mask",
    "padding_mask": "input_mask",
    "token_type_ids": "segment_ids",
    "input_type_ids": "segment_ids",
    "token_ids": "input_ids",
    "input_word_ids": "input_ids",
    "position_ids": None,
    "inputs_embeds": None,
    "head_mask": None,
}
_MEANINGS = {
    "masked_lm_positions": "the positions to predict",
    "p_mask": "1 where no answer can start or end",
}


class ConfiguredModel(keras.Model):
    """Base class of the models: built on construction, and rebuilt from its config when loaded.

    Args:
      config: The AlbertConfig; or its file, the name of a model that comes with the package, or
        its dictionary (as stored in .keras files).
      recompute: Whether the backward pass recomputes the inside of each block instead of
        storing it: only the outputs of blocks then take memory.
      **kwargs: Passed to keras.Model; `dtype="mixed_bfloat16"` computes in bfloat16.
    """

    # Whether any output of the model depends on the pooler.
    reads_pooler = True
    # The inputs that the model takes, by name, with their axes; and those that it can't do without.
    input_axes: ClassVar[Mapping[str, str]] = {
        "input_ids": "B, S",
        "input_mask": "B, S",
        "segment_ids": "B, S",
        "cls_positions": "B, K",
    }
    needed_inputs: ClassVar[tuple[str, ...]] = ("input_ids",)
    # What `from_weights` calls: conversion/loading.py's function. registration.py sets it, for
    # this folder lies below that one, and imports nothing of it.
    builder: ClassVar[Callable[..., Any]]
    built: bool

    def __init__(
        self,
        config: ConfigSource,
        recompute: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(config, dict):
            config = AlbertConfig.from_dict(config)
        elif isinstance(config, (str, os.PathLike)):
            config = AlbertConfig.from_json_file(config)
        self.config = config
        self.recompute = recompute

    @classmethod
    def from_weights(cls: type[_Model], path: str | os.PathLike[str], **arguments: Any) -> _Model:
        """Builds the model from the config beside stored weights, and fills it with them.

        Args:
          path: A directory, checkpoint prefix or file in any layout that `load_weights` reads, or
            hf://OWNER/NAME on the Hugging Face Hub.
          **arguments: Arguments of the class besides `config`. `num_labels` may be left out if the
            weights have a classifier. A head that isn't stored is randomly initialised.

        Example:
          >>> model = AlbertModel.from_weights("hf://albert/albert-base-v2")  # doctest: +SKIP
        """
        return cls.builder(cls, path, **arguments)

    def symbolic_inputs(self) -> dict[str, keras.KerasTensor]:
        """Returns the model's inputs by name, of any batch and length, for a functional model."""
        inputs = {}
        for name in dict.fromkeys(("input_ids", "input_mask", "segment_ids", *self.needed_inputs)):
            shape = (None,) * _rank(self.input_axes[name])
            inputs[name] = keras.Input(batch_shape=shape, dtype="int32", name=name)
        return inputs

    def build_all(self) -> None:
        """Creates all weights; what Keras exports then has the names and shapes of the inputs."""
        self.build({name: each.shape for name, each in self.symbolic_inputs().items()})

    def check_inputs(self, inputs: Any) -> None:
        """Checks inputs that would otherwise be ignored silently or fail deep inside the model."""
        if not isinstance(inputs, Mapping):
            # Keras' export also tries a single tensor, and passes over a TypeError alone.
            raise TypeError(
                "expected a dictionary of inputs with `input_ids`, such as a Preprocessor makes of "
                f"texts, not {type(inputs).__name__}"
            )
        # A batch may hold its labels. But a mask of another name lets padding be attended to.
        usual = ("input_ids", "input_mask", "segment_ids")
        is_complete = all(inputs.get(name) is not None for name in usual)
        wrong = [
            f"{name} ({_OURS[name]} here)" if _OURS.get(name) else name
            for name in inputs
            if name not in self.input_axes
            and (not is_complete or name in _OURS or _is_misspelt(name, self.input_axes))
        ]
        if wrong:
            raise ValueError(
                f"expected inputs among {', '.join(self.input_axes)}, got {', '.join(wrong)}: "
                "rename them, or leave them out"
            )
        for name, axes in self.input_axes.items():
            shape = getattr(inputs.get(name), "shape", None)
            if name in self.needed_inputs and inputs.get(name) is None:
                meaning = f" ({_MEANINGS[name]})" if name in _MEANINGS else ""
                raise ValueError(
                    f"expected {name} <int32>[{axes}]{meaning} among the inputs, got "
                    f"{', '.join(inputs)}: add it"
                )
            # TensorFlow may not know the rank.
            known = shape is not None and getattr(shape, "rank", 0) is not None
            if known and len(shape) != _rank(axes):
                raise ValueError(
                    f"expected {name} <int32>[{axes}], got the shape {tuple(shape)}: give it "
                    "these axes"
                )

    def compute_output_spec(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and dtypes of the outputs, by the `output_spec` beside each `call`.

        JAX traces no call of unknown batch and length.
        """
        if not self._is_ours():
            return super().compute_output_spec(inputs, *args, **kwargs)
        self.check_inputs(inputs)
        return self.output_spec(inputs, *args, **kwargs)

    @property
    def input_dtype(self) -> str:
        """The type that Keras gives floats among the inputs, and the inputs of what it exports."""
        return "int32" if self._is_ours() else super().input_dtype

    def _is_ours(self) -> bool:
        """Whether `call` is not one's own: what that takes and returns only its class knows."""
        calls = next(each for each in type(self).__mro__ if "call" in vars(each))
        return "output_spec" in vars(calls)

    def export(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Writes a model that takes features by name; see keras.Model.export, and its formats.

        It answers what the model returns, except the list `all_encoder_layers`.
        """
        backend = keras.backend.backend()
        if backend != "tensorflow":
            raise ValueError(
                f"a SavedModel is made on TensorFlow, but Keras runs on {backend}: save the model, "
                "load it on TensorFlow, and export it there"
            )
        model = self._exported()
        model(model.input)  # Keras' export to ONNX wants that.
        model.export(os.fspath(filepath), *args, **kwargs)

    def _exported(self) -> keras.Model:
        """Returns the model without the list of its outputs, which a signature can't have."""
        inputs = self.symbolic_inputs()
        outputs = self(inputs)
        if isinstance(outputs, dict):
            outputs = {name: v for name, v in outputs.items() if not isinstance(v, list)}
        return keras.Model(inputs, outputs)

    @property
    def _default_save_signature(self) -> Any:
        """What tf.saved_model.save asks a Keras model for, and each that is part of another."""
        if keras.backend.backend() != "tensorflow":
            return None  # There Keras has no such attribute, and reads it when it saves a model.
        import tensorflow as tf

        model = self._exported()
        specs = {name: tf.TensorSpec(x.shape, x.dtype, name) for name, x in model.input.items()}
        return tf.function(lambda inputs: model(inputs), [specs], autograph=False)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_ours():  # What `call` raises Keras hides among lines of its own.
            if isinstance(inputs, dict):
                listed = {k: np.asarray(v) for k, v in inputs.items() if isinstance(v, list)}
                inputs = {**inputs, **listed}
            self.check_inputs(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "Keras' quantize() changes none of ALBERT's layers: albert-export makes a model in 8 "
            "bits, in the format onnx_int8 or tflite_int8"
        )

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._check_loss()
        self._check_data(x)
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._check_loss()
        self._check_data(x)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_data(x)
        return super().predict(x, *args, **kwargs)

    def _check_loss(self) -> None:
        compiled = getattr(self, "loss", None)
        if self._is_ours() and any(map(_takes_probabilities, keras.tree.flatten(compiled))):
            raise ValueError(
                f"{type(self).__name__} returns logits, but its loss takes probabilities: compile "
                "with keras.losses.SparseCategoricalCrossentropy(from_logits=True) or its like"
            )

    def _check_data(self, x: Any) -> None:
        if self._is_ours() and isinstance(x, (str, list, tuple)):
            self.check_inputs(x)
        check_ids(x, self.config)

    def _get_save_spec(self, dynamic_batch: bool = True) -> Any:
        """What TFLite's converter asks for when it could not take the model as it is."""
        raise ValueError(
            f"TFLite's converter can't take {type(self).__name__}, of whose outputs one is a list: "
            "use `export(path, format='litert')` of Keras 3.13, which leaves that out"
        )

    def get_config(self) -> dict[str, Any]:
        config = self.config.to_dict()
        arguments = {**super().get_config(), "config": config, "recompute": self.recompute}
        frozen = [path for path, layer in _layers_in(self) if not layer.trainable]
        return {**arguments, "frozen": frozen} if frozen else arguments

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        frozen = config.get("frozen", ())
        arguments = {name: value for name, value in config.items() if name != "frozen"}
        model = super().from_config(arguments, custom_objects)
        # From the outside in: a layer passes it on to those in it.
        for path, layer in _layers_in(model) if frozen else ():
            if layer.trainable == (path in frozen):
                layer.trainable = path not in frozen
        return model


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertModel(ConfiguredModel):
    """The ALBERT encoder.

    Called on a dict of `input_ids` `<int32>[B, S]` and, optionally, `input_mask` (1 = keep;
    default: all ones) and `segment_ids` (default: zeros), it returns a dict of

    - `sequence_output` `<float>[B, S, H]`,
    - `pooled_output` `<float>[B, H]`,
    - `all_encoder_layers`, a list of `<float>[B, S, H]`, one for each block applied,
    - `embedding_output` `<float>[B, S, E]`,
    - `gathered_output` `<float>[B, P, H]`, `sequence_output` at `positions`, if the call names
      any.

    Padded positions are computed like any other; the mask only keeps keys from being attended to.

    If the inputs have `cls_positions` `<int32>[B, K]`, rows are packed: each holds up to K
    examples, one after the other. `cls_positions` says where each example begins, ascending from
    0; empty slots are 0. Each example then gets the same numbers as it would alone: it attends
    only to itself, its positions count from its [CLS], and `pooled_output` is
    `<float>[B, K, H]`, with a copy of the first example's in empty slots.

    Args: see ConfiguredModel.

    Source: albert/modeling.py, AlbertModel.

    Example:
      >>> import numpy as np
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> model = albert_tf.AlbertModel(config)
      >>> outputs = model({"input_ids": np.array([[2, 7, 8, 3]])})
      >>> tuple(outputs["sequence_output"].shape), tuple(outputs["pooled_output"].shape)
      ((1, 4, 12), (1, 12))
    """

    def __init__(
        self,
        config: ConfigSource,
        recompute: bool = False,
        name: str = "albert",
        **kwargs: Any,
    ) -> None:
        super().__init__(config, recompute, name=name, **kwargs)
        policy = self.dtype_policy
        self.embeddings = layers.Embeddings(self.config, name="embeddings", dtype=policy)
        self.encoder = Encoder(self.config, recompute, name="encoder", dtype=policy)
        self.pooler = layers.Pooler(self.config, name="pooler", dtype=policy)
        config = self.config
        if config.hidden_dropout_prob or config.attention_probs_dropout_prob:
            self.seed_generator = keras.random.SeedGenerator()
        else:
            self.seed_generator = None
        self.build_all()

    @property
    def output_shape(self) -> tuple[int | None, ...]:
        """The shape of `sequence_output`, for summary()."""
        return self.encoder.output_shape

    def build(self, input_shape: object = None) -> None:
        if not self.built:
            config = self.config
            self.embeddings.build((None, None))
            self.encoder.build((None, None, config.embedding_size))
            self.pooler.build((None, None, config.hidden_size))
            self.built = True

    def call(
        self,
        inputs: dict[str, Array],
        training: bool | None = None,
        dropout_seed: Array = None,
        positions: Array = None,
    ) -> dict[str, Any]:
        """Encodes a batch.

        Args:
          inputs: See the class.
          training: Whether to apply dropout.
          dropout_seed: `<int>[2]` that determines all dropout masks of this call; by default
            drawn from the model's own generator.
          positions: `<int32>[B, P]`. A graph that reads only `gathered_output` and
            `pooled_output` computes the last block only at these positions and at [CLS].
        """
        self.check_inputs(inputs)
        check_ids(inputs, self.config)
        input_ids, input_mask, segment_ids = read_inputs(inputs)
        # A seed, which is what makes dropout, only in training.
        if not training or self.seed_generator is None:
            dropout_seed = None
        elif dropout_seed is None:
            dropout_seed = dropout.draw_seed(self.seed_generator)

        # The positions at which the last block is needed: [CLS] of each example, and those named.
        is_packed = inputs.get("cls_positions") is not None
        if is_packed:
            wanted = firsts = ops.cast(inputs["cls_positions"], "int32")
            starts = layers.example_starts(firsts, ops.shape(input_ids)[1])
        else:
            wanted = firsts = ops.zeros_like(input_ids[:, 0])[:, None]
            starts = None
        if positions is not None:
            wanted = ops.concatenate([firsts, ops.cast(positions, firsts.dtype)], axis=1)

        # Pieces -> vectors of size E -> blocks of size H -> one vector for each example.
        embedding_output = self.embeddings(input_ids, segment_ids, starts, seed=dropout_seed)
        outputs, gathered = self.encoder(
            embedding_output, input_mask, wanted, starts, seed=dropout_seed
        )
        slots = ops.shape(firsts)[1]
        pooled_output = self.pooler(gathered[:, :slots])
        result = {
            "sequence_output": outputs[-1],
            "pooled_output": pooled_output if is_packed else pooled_output[:, 0],
            "all_encoder_layers": outputs,
            "embedding_output": embedding_output,
        }
        if positions is not None:
            result["gathered_output"] = gathered[:, slots:]
        return result

    def output_spec(
        self,
        inputs: Mapping[str, Any],
        training: bool | None = None,
        dropout_seed: Any = None,
        positions: Any = None,
    ) -> dict[str, Any]:
        config = self.config
        batch, length = inputs["input_ids"].shape

        def spec(*shape: int | None) -> KerasTensor:
            return KerasTensor(shape, self.compute_dtype)

        result = {
            "sequence_output": spec(batch, length, config.hidden_size),
            "pooled_output": spec(batch, *packed_axis(inputs), config.hidden_size),
            "all_encoder_layers": [
                spec(batch, length, config.hidden_size) for _ in range(config.num_blocks)
            ],
            "embedding_output": spec(batch, length, config.embedding_size),
        }
        if positions is not None:
            result["gathered_output"] = spec(batch, positions.shape[1], config.hidden_size)
        return result


def _takes_probabilities(loss: Any) -> bool:
    """Whether a loss, or what names one for Keras, is a cross entropy of probabilities."""
    loss = keras.losses.get(loss)
    if isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", None) is False
    parameter = inspect.signature(loss).parameters.get("from_logits") if loss else None
    return parameter is not None and parameter.default is False


def _rank(axes: str) -> int:
    return axes.count(",") + 1


def _is_misspelt(name: str, names: Iterable[str]) -> bool:
    return bool(difflib.get_close_matches(name.lower(), names, 1, 0.8))


def _layers_in(layer: keras.layers.Layer, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the layers in a layer by path, which the layer's own name is no part of."""
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        yield prefix + inner.name, inner
        yield from _layers_in(inner, f"{prefix}{inner.name}/")


# --- inputs -----------------------------------------------------------------------------------


def check_ids(inputs: Any, config: AlbertConfig) -> None:
    """Checks ids that are at hand: -1 would be read as the last piece, segment 2 as none.

    Can't see those in a dataset, or in a compiled function.
    """
    if not isinstance(inputs, Mapping):
        return
    for name, count in (("input_ids", config.vocab_size), ("segment_ids", config.type_vocab_size)):
        try:
            ids = np.asarray(inputs.get(name, 0))
        except (NotImplementedError, TypeError, ValueError):  # It has no values yet.
            continue
        if ids.size and ids.dtype.kind in "iuf" and not 0 <= ids.min() <= ids.max() < count:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ValueError(f"{name} must be from 0 to {count - 1}, but one is {wrong}")


def read_inputs(inputs: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Returns ids, mask and segments `<int32>[B, S]`; the last two may be left out."""
    # Already integers, except when fit builds a model under MirroredStrategy: it passes floats.
    input_ids = ops.cast(inputs["input_ids"], "int32")
    input_mask, segment_ids = inputs.get("input_mask"), inputs.get("segment_ids")
    if input_mask is None:
        input_mask = ops.ones_like(input_ids)
    if segment_ids is None:
        segment_ids = ops.zeros_like(input_ids)
    return input_ids, input_mask, ops.cast(segment_ids, "int32")


def packed_axis(inputs: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Returns the axis of examples that packed rows have."""
    packed = inputs.get("cls_positions")
    return () if packed is None else packed.shape[1:]
