"""ConfiguredModel, the base of all models: construction from a config, checks, saving."""

from __future__ import annotations

import difflib
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import keras
import numpy as np

from albert_tf.config import AlbertConfig, ConfigSource

_Model = TypeVar("_Model", bound="ConfiguredModel")

# Names of inputs in Hugging Face's library, KerasHub and TF-Hub, and ours if there is one.
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
# Losses of a number from 0 to 1 for each class.
_OF_PROBABILITIES = (
    keras.losses.BinaryCrossentropy,
    keras.losses.BinaryFocalCrossentropy,
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
)


class ConfiguredModel(keras.Model):
    """Base class of the models: built on construction, and rebuilt from its config when loaded.

    Args:
      config: The AlbertConfig; or its file, the name of a model in the package, or a dictionary
        (as stored in .keras files).
      recompute: Whether the backward pass recomputes the inside of each block, so that only the
        outputs of blocks take memory.
      **kwargs: Passed to keras.Model; `dtype="mixed_bfloat16"` computes in bfloat16.
    """

    # Whether any output of the model depends on the pooler.
    reads_pooler = True
    # Maps each input of the model to its axes; and the inputs that every call needs.
    input_axes: ClassVar[Mapping[str, str]] = {
        "input_ids": "B, S",
        "input_mask": "B, S",
        "segment_ids": "B, S",
        "cls_positions": "B, K",
    }
    needed_inputs: ClassVar[tuple[str, ...]] = ("input_ids",)
    built: bool

    def __init__(self, config: ConfigSource, recompute: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if isinstance(config, dict):
            config = AlbertConfig.from_dict(config)
        elif isinstance(config, (str, os.PathLike)):
            config = AlbertConfig.from_json_file(config)
        self.config = config
        self.recompute = recompute

    @classmethod
    def from_weights(cls: type[_Model], path: str | os.PathLike[str], **arguments: Any) -> _Model:
        """Builds the model from the config beside stored weights, and loads the weights.

        For example `AlbertModel.from_weights("hf://albert/albert-base-v2")`.

        Args:
          path: A directory, checkpoint prefix or file in any layout that `load_weights` reads, or
            hf://OWNER/NAME on the Hugging Face Hub.
          **arguments: Arguments of the class besides `config`. `num_labels` may be left out if the
            weights have a classifier. A head that isn't stored is randomly initialised.
        """
        from albert_tf.conversion import loading  # It imports this folder.

        return loading.from_weights(cls, path, **arguments)

    def symbolic_inputs(self) -> dict[str, keras.KerasTensor]:
        """Returns the model's inputs by name, of any batch and length, for a functional model."""
        inputs = {}
        for name in dict.fromkeys(("input_ids", "input_mask", "segment_ids", *self.needed_inputs)):
            shape = (None,) * _rank(self.input_axes[name])
            inputs[name] = keras.Input(batch_shape=shape, dtype="int32", name=name)
        return inputs

    def build_all(self) -> None:
        """Creates all weights, with the inputs' names and shapes, which Keras exports."""
        self.build({name: each.shape for name, each in self.symbolic_inputs().items()})

    def check_inputs(self, inputs: Any) -> None:
        """Refuses inputs that the model would ignore silently or fail on deep inside."""
        if not isinstance(inputs, Mapping):
            # A TypeError, because Keras' export also tries a single tensor and ignores only that.
            raise TypeError(
                "expected a dictionary of inputs with `input_ids`, such as a Preprocessor makes of "
                f"texts, not {type(inputs).__name__}"
            )
        # A batch may hold labels. But if the mask has a wrong name, padding is attended to.
        # So other names pass only if all usual inputs are there and they resemble none of them.
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
        # Each needed input is there, and each has its rank.
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
        self._check_values(inputs)

    def _check_values(self, inputs: Mapping[str, Any]) -> None:
        """Refuses values that would be cut, or select another row, or none.

        Masks are 1 and 0, or 0 and far below, to be added to scores.
        """
        shape = getattr(inputs.get("input_ids"), "shape", None)
        is_known = shape is not None and getattr(shape, "rank", 0) is not None
        counts = {"input_ids": self.config.vocab_size, "segment_ids": self.config.type_vocab_size}
        for name in self.input_axes.keys() & inputs.keys():
            if name.endswith("_mask"):
                _check_range(name, inputs[name], -np.inf, 1)
            elif (count := counts.get(name, shape[-1] if is_known else None)) is not None:
                _check_range(name, inputs[name], 0, count - 1)  # Others are positions.

    def compute_output_spec(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes and dtypes of the outputs, from the `output_spec` beside each `call`.

        Keras would trace `call`, which JAX can't with an unknown batch size and length.
        """
        if not self._is_ours():
            return super().compute_output_spec(inputs, *args, **kwargs)
        return self.output_spec(inputs, *args, **kwargs)

    @property
    def input_dtype(self) -> str:
        """The dtype to which Keras casts float inputs, also of exported models."""
        return "int32" if self._is_ours() else super().input_dtype

    def _is_ours(self) -> bool:
        """Whether `call` is this library's; a user's subclass may take and return other things."""
        # The first class with a `call` of its own decides, whatever its base classes have.
        calls = next(each for each in type(self).__mro__ if "call" in vars(each))
        return "output_spec" in vars(calls)

    def export(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Exports a model that takes features by name; see keras.Model.export for formats.

        It returns the model's outputs, except the list `all_encoder_layers`.
        """
        backend = keras.backend.backend()
        if backend != "tensorflow":
            raise ValueError(
                f"a SavedModel is made on TensorFlow, but Keras runs on {backend}: save the model, "
                "load it on TensorFlow, and export it there"
            )
        model = self._exported()
        model(model.input)  # Keras' export to ONNX needs a call.
        model.export(os.fspath(filepath), *args, **kwargs)

    def _exported(self) -> keras.Model:
        """Returns the model without its outputs that are lists, which no signature can have."""
        inputs = self.symbolic_inputs()
        outputs = self(inputs)
        if isinstance(outputs, dict):
            outputs = {name: v for name, v in outputs.items() if not isinstance(v, list)}
        return keras.Model(inputs, outputs)

    @property
    def _default_save_signature(self) -> Any:
        """The function that tf.saved_model.save writes, also for a model inside another."""
        if keras.backend.backend() != "tensorflow":
            return None  # On other backends, Keras reads this property when it saves a model.
        import tensorflow as tf

        model = self._exported()
        specs = {name: tf.TensorSpec(x.shape, x.dtype, name) for name, x in model.input.items()}
        return tf.function(lambda inputs: model(inputs), [specs], autograph=False)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_ours():  # Check here: Keras would bury an error from `call` in a long message.
            if isinstance(inputs, dict):
                listed = {k: np.asarray(v) for k, v in inputs.items() if isinstance(v, list)}
                inputs = {**inputs, **listed}
            self.check_inputs(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._checked(super().fit, x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._checked(super().evaluate, x, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return self._checked(super().predict, x, *args, **kwargs)

    def train_on_batch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return self._checked(super().train_on_batch, x, *args, **kwargs)

    def test_on_batch(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return self._checked(super().test_on_batch, x, *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        return self._checked(super().predict_on_batch, x)

    def _checked(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a method of Keras on data that are checked: a compiled step can't refuse any."""
        call = inspect.signature(run).bind(*args, **kwargs)
        given, refusals = call.arguments, []
        has_loss = "y" in inspect.signature(run).parameters
        if "_use_cached_eval_dataset" in kwargs:
            return run(*args, **kwargs)  # `fit` evaluates its validation data, which are checked.

        def check(*batch: Any) -> None:
            inputs, labels, _ = keras.utils.unpack_x_y_sample_weight(batch)
            try:
                self._check_batch(inputs, labels if has_loss else None)
            except (TypeError, ValueError) as error:
                refusals.append(error)
                raise

        if has_loss:
            self._check_loss()
        self._check_callbacks(given.get("callbacks"))
        given["x"] = _checked_data(check, given["x"], given.get("y"))
        if (validation := given.get("validation_data")) is not None:
            parts = validation if isinstance(validation, (tuple, list)) else (validation,)
            given["validation_data"] = (_checked_data(check, *parts), *parts[1:])
        try:
            return run(*call.args, **call.kwargs)
        except Exception:
            if keras.backend.backend() == "jax":
                self.jax_state_sync()  # Gives the variables their values back.
            # TensorFlow buries an error of a dataset or a generator in one of its graph.
            if refusals:
                raise refusals[0] from None
            raise

    def _get_jax_state(self, *args: Any, **wanted: bool) -> tuple[Any, ...]:
        # On JAX Keras takes the values out of the variables before it draws the first batch, and
        # keeps them after the step only. Without these, an error in that batch would lose them.
        state = super()._get_jax_state(*args, **wanted)
        if wanted.pop("purge_model_variables", False):
            self._jax_state = dict(zip(wanted, state, strict=True))
        return state

    def _check_loss(self) -> None:
        compiled = getattr(self, "loss", None)
        if self._is_ours() and any(map(_takes_probabilities, keras.tree.flatten(compiled))):
            raise ValueError(
                f"{type(self).__name__} returns logits, but its loss takes probabilities: compile "
                "with keras.losses.SparseCategoricalCrossentropy(from_logits=True) or its like"
            )

    def _check_callbacks(self, callbacks: Any) -> None:
        """Refuses to set the rate of a schedule, where Keras would fail after an epoch."""
        setters = keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler
        for each in keras.tree.flatten(getattr(callbacks, "callbacks", callbacks)):
            if isinstance(each, setters):
                try:
                    self.optimizer.learning_rate = self.optimizer.learning_rate
                except TypeError:
                    raise ValueError(
                        f"{type(each).__name__} sets `learning_rate`, but that of the compiled "
                        "optimizer is a schedule, as create_optimizer makes it: give a number, as "
                        "albert_tf.optimization.AdamW(2e-5), or leave the callback out"
                    ) from None

    def _check_batch(self, inputs: Any, labels: Any) -> None:
        # A subclass with a `call` of its own may take other things, and return them.
        if not self._is_ours():
            return self._check_values(inputs) if isinstance(inputs, Mapping) else None
        self.check_inputs(inputs)
        losses = getattr(self, "loss", None)
        if labels is None or losses is None:
            return None
        # Match outputs, losses and labels by name, as Keras does, or in order.
        arrays = {name: x if hasattr(x, "shape") else np.asarray(x) for name, x in inputs.items()}
        outputs = self.output_spec(arrays)
        if not isinstance(outputs, Mapping):
            outputs = {"": outputs}
            losses, labels = ({"": keras.tree.flatten(each)[0]} for each in (losses, labels))
        elif not isinstance(losses, Mapping):
            losses = dict.fromkeys(outputs, losses)
        if not isinstance(labels, Mapping):
            labels = dict(zip(sorted(losses), keras.tree.flatten(labels), strict=False))
        for name in losses.keys() & labels.keys() & outputs.keys():
            what = f"labels of {name}" if name else "labels"
            _check_labels(what, labels[name], losses[name], outputs[name].shape[-1])
        return None

    def get_config(self) -> dict[str, Any]:
        # Keras stores no `trainable` of layers inside a model.
        config = self.config.to_dict()
        arguments = {**super().get_config(), "config": config, "recompute": self.recompute}
        frozen = [path for path, layer in _layers_in(self) if not layer.trainable]
        return {**arguments, "frozen": frozen} if frozen else arguments

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        frozen = config.get("frozen", ())
        arguments = {name: value for name, value in config.items() if name != "frozen"}
        model = super().from_config(arguments, custom_objects)
        # From the outside in, because a layer passes `trainable` on to its sublayers.
        for path, layer in _layers_in(model) if frozen else ():
            if layer.trainable == (path in frozen):
                layer.trainable = path not in frozen
        return model


def _takes_probabilities(loss: Any) -> bool:
    """Whether a loss, or Keras' name of one, is a cross entropy of probabilities."""
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
    """Yields all layers inside a layer, with their paths below it."""
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        yield prefix + inner.name, inner
        yield from _layers_in(inner, f"{prefix}{inner.name}/")


# --- values of batches -------------------------------------------------------------------------


def _check_labels(what: str, labels: Any, loss: Any, count: int) -> None:
    """Refuses labels that cost nothing, or what no label should, by backend and device."""
    loss = keras.losses.get(loss)
    is_function = getattr(loss, "func", None) is keras.losses.sparse_categorical_crossentropy
    if is_function or isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
        ignored = getattr(loss, "keywords", vars(loss)).get("ignore_class")
        if ignored is not None and (labels := _values(labels)) is not None:
            labels = labels[labels != ignored]
        advice = ": count classes from 0; other labels need a loss with `ignore_class`"
        _check_range(what, labels, 0, count - 1, advice)
    elif isinstance(loss, _OF_PROBABILITIES):
        _check_range(what, labels, 0, 1, " for this loss", whole="")


def _check_range(
    what: str, given: Any, least: float, most: int, advice: str = "", whole: str = "whole numbers "
) -> None:
    if (values := _values(given)) is None:
        return
    wrong = [x for x in (values.min(), values.max()) if not least <= x <= most]  # Or NaN.
    if not wrong and whole and values.dtype.kind == "f":
        wrong = [*values[values != np.trunc(values)][:1]]
    if wrong:
        bounds = f"up to {most}" if least == -np.inf else f"from {least} to {most}"
        raise ValueError(f"{what} must be {whole}{bounds}, but one is {wrong[0]}{advice}")


def _values(given: Any) -> np.ndarray | None:
    """Returns numbers; None for texts, and for a symbolic tensor, which has no values."""
    try:
        values = np.asarray(given)
    except (NotImplementedError, TypeError, ValueError):
        return None
    values = values.astype("float32") if values.dtype.kind == "V" else values  # bfloat16.
    return values if values.dtype.kind in "biuf" and values.size else None


def _checked_data(check: Callable[..., None], x: Any, *others: Any) -> Any:
    """Returns `x` for Keras such that each batch passes `check` when it is drawn, arrays now."""

    def passed(batch: Any) -> Any:
        check(*batch) if isinstance(batch, (tuple, list)) else check(batch)
        return batch

    if isinstance(x, keras.utils.PyDataset):
        return _CheckedDataset(x, passed)
    if isinstance(x, types.GeneratorType):
        return (passed(batch) for batch in x)
    if hasattr(x, "element_spec") and hasattr(x, "map"):  # A tf.data.Dataset.
        return x.map(lambda *batch: _checked_in_graph(check, batch))
    # Given texts, Keras would only say "Invalid dtype: str". A Series and an array have shapes.
    if isinstance(x, (Mapping, str, list, tuple)) or hasattr(x, "shape"):
        check(x, *others)
    return x


def _checked_in_graph(check: Callable[..., None], batch: tuple[Any, ...]) -> Any:
    """Adds an operation to tf.data's graph that checks its batches in Python."""
    import tensorflow as tf

    # Ragged and sparse tensors are no inputs.
    flat = [x if isinstance(x, tf.Tensor) else tf.constant("") for x in tf.nest.flatten(batch)]
    tf.numpy_function(lambda *values: check(*tf.nest.pack_sequence_as(batch, values)), flat, [])
    return batch if len(batch) > 1 else batch[0]


class _CheckedDataset(keras.utils.PyDataset):
    def __init__(self, dataset: keras.utils.PyDataset, passed: Callable[[Any], Any]) -> None:
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset, self._passed = dataset, passed
        self.on_epoch_begin, self.on_epoch_end = dataset.on_epoch_begin, dataset.on_epoch_end

    @property
    def num_batches(self) -> int | None:
        return self._dataset.num_batches

    def __getitem__(self, index: int) -> Any:
        return self._passed(self._dataset[index])
