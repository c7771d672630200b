"""ConfiguredModel, the base of all models: construction from a config, checks, saving."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, cast

import keras
import numpy as np

from albert_tf.config import AlbertConfig, ConfigSource
from albert_tf.model.batches import (
    LARGEST,
    BatchCheck,
    Limit,
    Sizes,
    check_array,
    label_limits,
    shape_of,
)

_Model = TypeVar("_Model", bound="ConfiguredModel")
_Method = TypeVar("_Method", bound=Callable[..., Any])

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
    "cls_positions": None,  # Packed rows, which some models don't take.
}
_MEANINGS = {
    "masked_lm_positions": "the positions to predict",
    "p_mask": "1 where no answer can start or end",
}
# In a mask that is added to scores, values up to this one exclude a position.
_FAR_BELOW = -100


def _on_checked_data(method: _Method) -> _Method:
    """Returns a method of keras.Model that checks its data first, since a compiled step can't."""
    signature = inspect.signature(method)
    has_loss = "y" in signature.parameters

    @functools.wraps(method)
    def run(model: ConfiguredModel, *args: Any, **kwargs: Any) -> Any:
        if "_use_cached_eval_dataset" in kwargs:  # `fit` has checked its validation data.
            return method(model, *args, **kwargs)
        call = signature.bind(model, *args, **kwargs)
        given = call.arguments
        model._check_training(has_loss, given)
        check = BatchCheck(model._training_limits if has_loss else model._limits)
        given["x"] = check.data(*map(given.get, ("x", "y", "sample_weight")))
        if (validation := given.get("validation_data")) is not None:
            parts = validation if isinstance(validation, (tuple, list)) else (validation,)
            given["validation_data"] = (check.data(*parts), *parts[1:])
        try:
            return method(*call.args, **call.kwargs)
        except Exception:
            if keras.backend.backend() == "jax":
                model.jax_state_sync()  # Gives the variables their values back.
            # TensorFlow buries an error from a dataset or a generator in one about its graph.
            if check.refusals:
                raise check.refusals[0] from None
            raise

    return cast(_Method, run)


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
    # Maps each input of the model to its axes; every call needs the `needed_inputs` among them.
    input_axes: ClassVar[Mapping[str, str]] = {
        "input_ids": "B, S",
        "input_mask": "B, S",
        "segment_ids": "B, S",
        "cls_positions": "B, K",
        "depths": "B, D",
        "depth": "",
    }
    # The first axes of labels.
    label_axes = "B"
    # Whether outputs have a number for each class.
    has_classes = True
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

    fit = _on_checked_data(keras.Model.fit)
    evaluate = _on_checked_data(keras.Model.evaluate)
    predict = _on_checked_data(keras.Model.predict)
    train_on_batch = _on_checked_data(keras.Model.train_on_batch)
    test_on_batch = _on_checked_data(keras.Model.test_on_batch)
    predict_on_batch = _on_checked_data(keras.Model.predict_on_batch)

    def check_inputs(self, inputs: Any) -> None:
        """Refuses inputs that the model would ignore silently or fail on deep inside."""
        self._check_names(inputs)
        self._sizes(inputs).check()
        for limit in self._input_limits(inputs):
            limit.check()

    def _check_names(self, inputs: Any) -> None:
        """Refuses names and axes that are not those of the model's inputs."""
        if not isinstance(inputs, Mapping):
            # A TypeError, because Keras' export also tries a single tensor and ignores only that.
            raise TypeError(
                "expected a dictionary of inputs with `input_ids`, such as a Preprocessor makes of "
                f"texts, not {type(inputs).__name__}"
            )
        # A batch may hold labels. But if the mask has a wrong name, padding is attended to.
        # So other names pass only if all usual inputs are there and they resemble none of them.
        close_to = functools.partial(difflib.get_close_matches, n=1, cutoff=0.8)
        usual = ("input_ids", "input_mask", "segment_ids")
        is_complete = all(inputs.get(name) is not None for name in usual)
        wrong = [
            f"{name} ({_OURS[name]} here)" if _OURS.get(name) else name
            for name in inputs
            if name not in self.input_axes
            and (not is_complete or name in _OURS or close_to(name.lower(), self.input_axes))
        ]
        if wrong:
            raise ValueError(
                f"expected inputs among {', '.join(self.input_axes)}, got {', '.join(wrong)}: "
                "rename them, or leave them out"
            )
        # Each needed input is there, and each has its rank.
        for name, axes in self.axes_of(inputs).items():
            if inputs.get(name) is not None:
                check_array(name, inputs[name])
            shape = shape_of(inputs.get(name))
            if name in self.needed_inputs and inputs.get(name) is None:
                meaning = f" ({_MEANINGS[name]})" if name in _MEANINGS else ""
                raise ValueError(
                    f"expected {name} <int32>[{axes}]{meaning} among the inputs, got "
                    f"{', '.join(inputs)}: add it"
                )
            if shape is not None and len(shape) != _rank(axes):
                raise ValueError(
                    f"expected {name} <int32>[{axes}], got the shape {shape}: give it these axes"
                )

    def axes_of(self, inputs: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns `input_axes`; for models whose inputs vary in rank, the axes of these inputs."""
        return self.input_axes

    def _sizes(self, inputs: Mapping[str, Any]) -> Sizes:
        axes = self.axes_of(inputs).items()
        return Sizes({name: (inputs[name], x) for name, x in axes if inputs.get(name) is not None})

    def _input_limits(self, inputs: Mapping[str, Any]) -> Iterator[Limit]:
        """Yields limits; values beyond them would be cut, or select another row or none."""
        config, shape = self.config, shape_of(inputs.get("input_ids"))
        counts = {"input_ids": config.vocab_size, "segment_ids": config.type_vocab_size}
        layers = config.num_hidden_layers
        counts |= {"input_mask": 2, "p_mask": 2, "depths": layers, "depth": layers + 1}
        far_below = f": give 1 and 0, or 0 and {_FAR_BELOW} or less"
        for name in self.input_axes:
            if inputs.get(name) is None:
                continue
            # Positions are limited by the row's length. A mask may be one that is added to scores.
            count = counts.get(name, shape[-1] if shape else None)
            more = (_is_far_below, far_below) if name == "input_mask" else ()
            least = 1 if name in ("depths", "depth") else 0
            yield Limit(name, inputs[name], least, count and count - 1, True, *more)

    def _limits(self, inputs: Any, *_: Any) -> Iterator[Limit | Sizes]:
        """Yields the limits of a batch's inputs."""
        if self._is_ours():
            self._check_names(inputs)
            yield self._sizes(inputs)
        # A subclass with a `call` of its own may take other things than a dictionary.
        if isinstance(inputs, Mapping):
            yield from self._input_limits(inputs)

    def _training_limits(
        self, inputs: Any, labels: Any = None, weights: Any = None, *_: Any
    ) -> Iterator[Limit | Sizes]:
        """Yields the limits of a batch's inputs, of labels by their losses, and of weights."""
        yield from self._limits(inputs)
        losses = getattr(self, "loss", None)
        if losses is None or not self._is_ours():
            return
        # Match outputs, losses and labels by name, as Keras does, or in order.
        outputs = self.output_spec(inputs)
        given = keras.tree.flatten(labels)
        if not isinstance(outputs, Mapping):
            outputs, losses = {"": outputs}, {"": keras.tree.flatten(losses)[0]}
            labels = {"": given[0] if len(given) == 1 else labels}
        elif isinstance(losses, (list, tuple)):
            losses = dict(zip(sorted(outputs), losses, strict=False))
        elif not isinstance(losses, Mapping):
            losses = dict.fromkeys(outputs, losses)
        if not isinstance(labels, Mapping):
            labels = dict(zip(sorted(losses), given, strict=False))
        arrays = {"input_ids": (inputs["input_ids"], self.axes_of(inputs)["input_ids"])}
        for name in sorted(losses.keys() & outputs.keys()):
            what = f"labels of {name}" if name else "labels"
            check_array(what, labels.get(name))
            arrays[what] = labels[name], self.label_axes
            yield Sizes(arrays)
            given = what, labels[name], losses[name], outputs[name]
            yield from label_limits(*given, self.has_classes)
        for each in keras.tree.flatten(weights) if weights is not None else ():
            check_array("sample_weight", each)
            axes = "B" if shape_of(each)[1:] == (1,) else self.label_axes
            yield Sizes({**arrays, "sample_weight": (each, axes)})
            yield Limit("sample_weight", each, 0, LARGEST, whole=False)

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
        """Returns the model without the outputs that are lists, which a signature can't have."""
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

    def _get_jax_state(self, *args: Any, **wanted: bool) -> tuple[Any, ...]:
        # On JAX, Keras takes the values out of the variables before it draws the first batch, but
        # stores them only after the step. Unless kept here, an error in that batch would lose them.
        state = super()._get_jax_state(*args, **wanted)
        if wanted.pop("purge_model_variables", False):
            self._jax_state = dict(zip(wanted, state, strict=True))
        return state

    def _check_training(self, has_loss: bool, given: Mapping[str, Any]) -> None:
        """Refuses a loss that doesn't take logits, and what Keras would not do as intended."""
        callbacks, class_weight = given.get("callbacks"), given.get("class_weight")
        losses = keras.tree.flatten(getattr(self, "loss", None)) if has_loss else ()
        if self._is_ours() and any(map(_takes_probabilities, losses)):
            raise ValueError(
                f"{type(self).__name__} returns logits, but its loss takes probabilities: compile "
                "with keras.losses.SparseCategoricalCrossentropy(from_logits=True) or its like"
            )
        is_compared = any(getattr(loss, "compares_examples", False) for loss in losses)
        if is_compared and _has_single_pairs(given["x"], given.get("batch_size")):
            raise ValueError(
                "expected batches of at least two pairs, which this loss compares with each other, "
                "got one pair: raise `batch_size`, or give negatives as further texts"
            )
        # Keras takes the largest label of a row for its class, and does not look at the weights.
        if class_weight is not None and self.label_axes != "B":
            raise ValueError(
                "`class_weight` is for labels of rows, but this model's are of positions: give "
                f"`sample_weight` <float>[{self.label_axes}]"
            )
        weights = class_weight.values() if isinstance(class_weight, Mapping) else ()
        if class_weight is not None and not (weights and all(0 <= x < np.inf for x in weights)):
            raise ValueError(
                "expected `class_weight` as a dictionary from each class to a finite number from "
                f"0, got {class_weight!r}: leave it out, or give these"
            )
        setters = keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler
        for each in keras.tree.flatten(getattr(callbacks, "callbacks", callbacks)):
            if isinstance(each, setters):
                try:  # Keras would fail after an epoch.
                    self.optimizer.learning_rate = self.optimizer.learning_rate
                except TypeError:
                    raise ValueError(
                        f"{type(each).__name__} sets `learning_rate`, but that of the compiled "
                        "optimizer is a schedule, as create_optimizer makes it: give a number, as "
                        "albert_tf.optimization.AdamW(2e-5), or leave the callback out"
                    ) from None

    def get_config(self) -> dict[str, Any]:
        # Keras doesn't store `trainable` of the layers inside a model.
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


def _has_single_pairs(x: Any, batch_size: int | None) -> bool:
    """Whether batches have one row of two texts, as far as known before drawing them."""
    first = x[0] if isinstance(x, keras.utils.PyDataset) else getattr(x, "element_spec", x)
    inputs = first[0] if isinstance(first, tuple) else first
    shape = shape_of(inputs.get("input_ids")) if isinstance(inputs, Mapping) else None
    return shape is not None and shape[1] == 2 and 1 in (shape[0], batch_size)


def _is_far_below(values: Any) -> Any:
    return values <= _FAR_BELOW


def _rank(axes: str) -> int:
    return len(axes.split(", ")) if axes else 0


def _layers_in(layer: keras.layers.Layer, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields all layers inside a layer, with their paths below it."""
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        yield prefix + inner.name, inner
        yield from _layers_in(inner, f"{prefix}{inner.name}/")
