"""Converts models to TFLite and ONNX, and measures the conversion's error."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from albert_tf.config import LAYER_NORM_EPSILON, AlbertConfig
from albert_tf.console import tensorflow_logs
from albert_tf.serving import vectors
from albert_tf.serving.exported_files import runtime_loader
from albert_tf.serving.graphs.base import ServedModel
from albert_tf.serving.settings import FORMATS
from albert_tf.storage import files
from albert_tf.text import vocabulary
from albert_tf.types import Features

_OPSET = 17
# Random sequences on which a converted model is compared with the original: their number, and
# their lengths as shares of the maximum.
_PROBE_ROWS = 2
_PROBE_LENGTHS = (0.125, 0.5)
_NO_SCORE = -1e29
# Prefix of tensors' names in a converted model, and its replacement.
_BEGINNING, _MODEL = re.compile(r"^StatefulPartitionedCall/albert_for\w+/"), "model/"


class Drift(NamedTuple):
    """How far a converted model's outputs are from the original's, on random sequences."""

    largest: float  # The maximum absolute difference.
    spread: float  # The standard deviation of the original's outputs.

    def __str__(self) -> str:
        return (
            f"outputs differ by up to {self.largest:.2g} from the model's, whose standard "
            f"deviation is {self.spread:.2g}"
        )


def save(served: ServedModel, directory: str | os.PathLike[str], file_format: str) -> Drift:
    """Converts a model's `features` signature, and writes it with what exported_files.load needs.

    The file takes `input_ids`, `input_mask` and `segment_ids`, of any batch size and length, and
    returns `served.numbers`. It neither turns texts into features nor numbers into answers.

    Args:
      served: The model.
      directory: Empty or new; it appears once everything is written.
      file_format: "tflite" or "onnx" (float32); "tflite_int8" or "onnx_int8" (dynamic range: 8-bit
        weights, and activations where they are multiplied). ONNX needs tf2onnx and onnxruntime.
    """
    with files.whole_directory(os.fspath(directory)) as temporary:
        drift = write(served, temporary, file_format)
        vectors.write(os.path.join(temporary, FORMATS[file_format]))
    return drift


def write(served: ServedModel, directory: str, file_format: str) -> Drift:
    """Writes the same files as `save`, but no test vectors, into an existing directory."""
    is_onnx = file_format.startswith("onnx")
    load = runtime_loader(is_onnx)
    # Layers that share weights become a loop if the number of layers is an input, and also in
    # TFLite, which would otherwise store a copy of the weights for each layer.
    specs, layers = served.feature_specs(), served.config.num_hidden_layers
    at_depths: list[Features] = [
        {"depth": np.array(depth, np.int32)} for depth in (layers, *served.depths)
    ]
    if served.depths:
        specs["depth"] = tf.TensorSpec([], tf.int32, "depth")
    in_loop = {} if is_onnx or not served.config.fits_any_depth else at_depths[0]
    # Convert only the numeric part; features and answers are up to other programs.
    function = tf.function(
        lambda **features: served.numbers({**in_loop, **features}), autograph=False
    ).get_concrete_function(**specs)
    content = (to_onnx if is_onnx else to_tflite)(function, file_format.endswith("_int8"))
    # Measure before anything is written, at each depth.
    run, sizes = load(content).run, (served.config, served.kind.max_seq_length, served.feature_rank)
    inputs = at_depths if served.depths else [{}]
    drift = max(measure_drift(served.numbers, run, *sizes, further) for further in inputs)
    files.replace(os.path.join(directory, FORMATS[file_format]), content)
    # Int8 ONNX models scale activations per batch: an example's numbers depend on its batch.
    served.describe(directory, is_quantized=file_format == "onnx_int8")
    vocabulary.copy(served.vocabulary, directory)
    return drift


def to_tflite(function: Any, is_int8: bool) -> bytes:
    """Converts a concrete function of named features to TFLite, with the same named outputs."""
    # The converter neither includes nor quantises weights that are variables.
    frozen = convert_variables_to_constants_v2(function)

    # The frozen function returns a list: give the outputs their names back.
    def named(**features: tf.Tensor) -> Features:
        return tf.nest.pack_sequence_as(function.structured_outputs, frozen(**features))

    specs = function.structured_input_signature[1]
    signature = tf.function(named, autograph=False).get_concrete_function(**specs)
    # An empty module will do, since the weights are constants by now.
    with tempfile.TemporaryDirectory() as directory:
        # Layers of fixed size may have custom gradients, which can't be saved when frozen.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(tf.Module(), directory, signatures=signature, options=options)
        converter = tf.lite.TFLiteConverter.from_saved_model(directory)
        if is_int8:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return converter.convert()


def to_onnx(function: Any, is_int8: bool) -> bytes:
    """Converts a concrete function of named features, `[B, S]` or `[B, C, S]`, to ONNX."""
    import tf2onnx

    specs = function.structured_input_signature[1]
    # tf2onnx passes inputs by position: fix an order, and map them back to names.
    names, signature = zip(*sorted(specs.items()), strict=True)
    with tensorflow_logs.only_warnings():
        model, _ = tf2onnx.convert.from_function(
            tf.function(
                lambda *values: function(**dict(zip(names, values, strict=True))), autograph=False
            ),
            input_signature=signature,
            opset=_OPSET,
        )
    # tf2onnx only numbers the axes of variable size: name them.
    axes = ("batch", "length") if len(signature[0].shape) == 2 else ("batch", "choices", "length")
    for tensor in (*model.graph.input, *model.graph.output):
        for size, axis in zip(tensor.type.tensor_type.shape.dim, axes, strict=False):
            if not size.HasField("dim_value"):
                size.dim_param = axis
    # Simplify the graph first: the quantiser does not see weights that pass through a loop.
    fuse_layer_norms(model.graph)
    _capture_invariants(model.graph)
    # The word embedding table is stored twice: find both before quantising makes them differ.
    tables = _stored_twice(model.graph)
    if is_int8:
        model = _quantised(model)
    # Then make the file smaller: compute weights that repeat others from these.
    for table, transposed in tables:
        _store_once(model.graph, table, transposed, is_int8)
    _slice_columns(model.graph)
    _shorten_names(model.graph)
    return model.SerializeToString()


def fuse_layer_norms(graph: Any) -> None:
    """Fuses the operations of layer norms into ONNX's own, except for the addition of beta.

    Args:
      graph: An `onnx.GraphProto`, changed in place with the bodies of its loops.
    """
    from onnx import helper

    # The node that made each tensor, to walk from a product back to its factors.
    made = {name: node for node in graph.node for name in node.output}
    for i, node in enumerate(graph.node):
        # The body of a loop is a graph of its own.
        for attribute in node.attribute:
            if attribute.HasField("g"):
                fuse_layer_norms(attribute.g)
        if found := _inputs(node, made):
            fused = helper.make_node(
                "LayerNormalization", found, node.output, axis=-1, epsilon=LAYER_NORM_EPSILON
            )
            graph.node[i].CopyFrom(fused)
    # The nodes that computed mean and deviation are unused now.
    _remove_unused(graph)


def _inputs(node: Any, made: dict[str, Any]) -> tuple[str, str] | None:
    """Returns x and gamma of `(x - mean) * (1 / deviation * gamma)` as in layers.layer_norm."""
    if node.op_type != "Mul":
        return None
    # The factors may stand in either order.
    for centred, scale in (node.input, reversed(node.input)):
        if _operation(centred, made) == "Sub" and _operation(scale, made) == "Mul":
            inverse, gamma = made[scale].input
            if _operation(inverse, made) == "Reciprocal":
                return made[centred].input[0], gamma
    return None


def _operation(name: str, made: dict[str, Any]) -> str:
    return made[name].op_type if name in made else ""


def _capture_invariants(graph: Any) -> None:
    """Lets a loop's body read weights, which no iteration changes, from the graph around it.

    tf2onnx passes them from iteration to iteration. onnxruntime would then copy them each time, and
    could not prepare them when it loads the model; its quantizer would not see them.
    """
    for node in graph.node:
        if node.op_type != "Loop":
            continue
        (body,) = (each.g for each in node.attribute)
        # The loop and its body take two inputs before these, the number of iterations and a
        # condition; the body returns the condition first.
        for i in reversed(range(len(node.input) - 2)):
            outer, inner = node.input[2 + i], body.input[2 + i].name
            # The body returns this input unchanged, so it is a weight: read the outer one.
            if body.output[1 + i].name == inner:
                names = {inner: outer, node.output[i]: outer}
                for user in (*body.node, *graph.node):
                    user.input[:] = [names.get(name, name) for name in user.input]
                del body.input[2 + i], body.output[1 + i], node.input[2 + i], node.output[i]


def _remove_unused(graph: Any) -> None:
    """Removes unused nodes and weights: onnxruntime would compute them, or warn about them."""
    wanted, kept = {each.name for each in graph.output}, []
    for node in reversed(graph.node):  # Users come after what they use.
        if wanted & set(node.output):
            kept.append(node)
            wanted.update(_taken(node))
    weights = [each for each in graph.initializer if each.name in wanted]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(weights)


def _taken(node: Any) -> Iterator[str]:
    """Yields the names of all inputs of a node, also within its loops."""
    yield from node.input
    for attribute in node.attribute:
        yield from (each.name for each in attribute.g.output)
        for inner in attribute.g.node:
            yield from _taken(inner)


def _stored_twice(graph: Any) -> list[tuple[str, str]]:
    """Returns tables that Gather reads, each with its stored transpose: the word embeddings."""
    from onnx import numpy_helper

    weights = {w.name: numpy_helper.to_array(w) for w in graph.initializer if len(w.dims) == 2}
    taken = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    # Compare values: the conversion gave the transpose a name of its own.
    return [
        (name, other)
        for name in weights.keys() & taken
        for other, values in weights.items()
        if np.array_equal(weights[name], values.T)
    ]


def _store_once(graph: Any, table: str, transposed: str, is_int8: bool) -> None:
    """Removes the transpose from the file; it is computed when the model is loaded."""
    from onnx import TensorProto, helper, numpy_helper

    # The quantiser names its tensors after the weight, with these suffixes.
    scale = f"{transposed}_scale"
    if is_int8:
        table, transposed = f"{table}_quantized", f"{transposed}_quantized"
    stored = {each.name: each for each in graph.initializer}
    # Keep the transpose's values: in int8 they have one scale per piece.
    values = np.ascontiguousarray(numpy_helper.to_array(stored[transposed]).T)
    stored[table].CopyFrom(numpy_helper.from_array(values, table))
    graph.initializer.remove(stored[transposed])
    if is_int8:
        # Scale each row by the scale of its piece, as for logits, not by one scale for the table.
        (take,) = (node for node in graph.node if table in node.input)
        # The node after the lookup applies the single scale: replace it.
        (place,) = (i for i, node in enumerate(graph.node) if take.output[0] in node.input)
        (found,) = graph.node[place].output
        graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last_axis"))
        scaled = [
            helper.make_node("Cast", take.output, [f"{found}_whole"], to=TensorProto.FLOAT),
            helper.make_node("Gather", [scale, take.input[1]], [f"{found}_scales"]),
            helper.make_node("Unsqueeze", [f"{found}_scales", "last_axis"], [f"{found}_column"]),
            helper.make_node("Mul", [f"{found}_whole", f"{found}_column"], [found]),
        ]
        del graph.node[place]
        # Inserted last to first at the same place, they end up in order.
        for node in reversed(scaled):
            graph.node.insert(place, node)
    # Put it first, because a node must come after what it uses.
    graph.node.insert(0, helper.make_node("Transpose", [table], [transposed], perm=[1, 0]))
    _remove_unused(graph)


def _slice_columns(graph: Any) -> None:
    """Removes weights that are columns of another weight, and slices them from there.

    The last layer computes a query for [CLS] only, so its query weights are a separate tensor.
    """
    from onnx import helper, numpy_helper

    weights = {w.name: numpy_helper.to_array(w) for w in graph.initializer if len(w.dims) == 2}
    for name, part in weights.items():
        for other, whole in weights.items():
            width = part.shape[1]
            if whole.dtype != part.dtype or len(whole) != len(part) or whole.shape[1] <= width:
                continue
            # Compare only where the first row has the part's first number.
            begins = np.flatnonzero(whole[0] == part[0, 0])
            found = [i for i in begins if np.array_equal(whole[:, i : i + width], part)]
            if found:
                # Slice takes its bounds as tensors, not as attributes.
                ends = {"begins": found[0], "ends": found[0] + width, "axes": 1}
                inputs = [f"{name}_{which}" for which in ends]
                for which, value in zip(inputs, ends.values(), strict=True):
                    graph.initializer.append(numpy_helper.from_array(np.array([value]), which))
                graph.initializer.remove(next(w for w in graph.initializer if w.name == name))
                graph.node.insert(0, helper.make_node("Slice", [other, *inputs], [name]))
                break


def _shorten_names(graph: Any) -> None:
    """Shortens tensor names, drops node names and shapes: together a tenth of a small file."""
    del graph.value_info[:]
    for each in (*graph.input, *graph.output, *graph.initializer):
        each.name = _BEGINNING.sub(_MODEL, each.name)
    for node in graph.node:
        node.ClearField("name")  # Its outputs have names.
        for names in (node.input, node.output):
            names[:] = [_BEGINNING.sub(_MODEL, name) for name in names]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _shorten_names(attribute.g)


def _quantised(model: Any) -> Any:
    import onnx
    from onnxruntime import quantization

    before = logging.root.manager.disable
    # Hide its advice to optimise the graph first, which changes nothing here.
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.onnx")
            quantization.quantize_dynamic(
                model,
                path,
                per_channel=True,
                weight_type=quantization.QuantType.QInt8,
                # 7 bits: products of 8 bits saturate on x86 processors without VNNI.
                reduce_range=True,
                # The layers of deep models are a loop, whose body is a subgraph.
                extra_options={"EnableSubgraph": True},
            )
            return onnx.load(path)
    finally:
        logging.disable(before)


def measure_drift(
    numbers: Callable[[Features], Features],
    run: Callable[[Features], Features],
    config: AlbertConfig,
    longest: int,
    rank: int,
    further: Features | None = None,
) -> Drift:
    """Compares a converted model with the original on random sequences.

    Args:
      numbers: Maps features of tensors to the original's outputs.
      run: Maps features of arrays to the converted one's.
      config: The model's.
      longest: Maximum length of a sequence.
      rank: The features' rank.
      further: Further inputs that are not sequences, such as a depth.
    """
    random = np.random.default_rng(0)
    largest, values = 0.0, []
    # Compare short and longer sequences of random pieces in two segments.
    for share in _PROBE_LENGTHS:
        shape = [_PROBE_ROWS] * (rank - 1) + [max(8, int(longest * share))]
        mask = np.ones(shape, np.int32)
        # Padding goes into the last row only, so that rows with and without it are compared.
        mask[-1, ..., max(8, shape[-1] * 3 // 4) :] = 0
        features = {
            "input_ids": random.integers(0, config.vocab_size, shape, np.int32),
            "input_mask": mask,
            "segment_ids": np.broadcast_to(np.arange(shape[-1]) >= shape[-1] // 2, shape).astype(
                np.int32
            ),
            **(further or {}),
        }
        # Both get the same features, the original on its own runtime.
        expected = numbers({name: tf.constant(value) for name, value in features.items()})
        for name, value in run(features).items():
            right = expected[name].numpy()
            if right.dtype.kind == "f":
                # Skip the scores of masked positions, which are about -1e30.
                # The negation keeps NaN, so that it is detected.
                is_score = ~(right <= _NO_SCORE)
                for what, scores in (("the model's", right), ("the converted model's", value)):
                    if not np.isfinite(scores[is_score]).all():
                        raise ValueError(
                            f"{what} outputs are NaN or infinite ({name}): its weights are "
                            "damaged, or too large; use another checkpoint or `format`"
                        )
                largest = max(largest, float(np.abs(value - right).max(where=is_score, initial=0)))
                values.append(right[is_score])
    return Drift(largest, float(np.concatenate(values).std()))
