"""Models in TFLite's and ONNX's formats: converted, measured, and run on raw text."""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from albert_tf.config import LAYER_NORM_EPSILON, AlbertConfig
from albert_tf.console import errors, quiet
from albert_tf.conversion import labels
from albert_tf.serving.graph_text import FEATURES
from albert_tf.serving.served_models import (
    DESCRIPTION_FILE,
    MADE_OF,
    ServedModel,
    read_description,
)
from albert_tf.serving.served_tasks import BEAM, SERVED
from albert_tf.serving.settings import FORMATS
from albert_tf.storage import files
from albert_tf.text import vocabulary
from albert_tf.types import Features

_ONNX = ".onnx"
_ENDINGS = (_ONNX, ".tflite")
# A task -> the outputs that its files have, one of several sets; of logits also the rank, and
# whether the last axis has a fixed size: classes are fixed, choices are not.
_OUTPUTS = {
    "fill_mask": [{"masked_lm_logits", "sequence_output"}],
    "answer_v1": [{"start_logits", "end_logits"}],
    # With the release's head, and with BERT's.
    "answer_v2": [{"cls_logits", "start_top_log_probs"}, {"start_logits", "end_logits"}],
}
_LOGITS = {"classify": (2, True), "tag": (3, True), "choose": (2, False)}
_ONNX_TYPES = {"tensor(float)": tf.float32, "tensor(int32)": tf.int32}
_OPSET = 17
# Random sequences to compare a converted model on: their number, and lengths as a share of the
# longest.
_PROBE_ROWS = 2
_PROBE_LENGTHS = (0.125, 0.5)
_NO_SCORE = -1e29


class Runner(NamedTuple):
    """A model that another runtime runs, on NumPy arrays by name."""

    inputs: tuple[str, ...]
    outputs: dict[str, tf.TensorSpec]
    run: Callable[[Features], Features]


def runtime_loader(is_onnx: bool) -> Callable[[bytes], Runner]:
    """Returns what loads a file's content; of a damaged one it raises what the runtime does."""
    if is_onnx:
        with errors.of_extra("onnx", "an ONNX file"):
            importlib.import_module("onnxruntime")
    return _load_onnx if is_onnx else _load_tflite


def _load_onnx(content: bytes) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    outputs = {
        each.name: tf.TensorSpec(
            [size if isinstance(size, int) else None for size in each.shape],
            _ONNX_TYPES[each.type],
        )
        for each in session.get_outputs()
    }

    def run(features: Features) -> Features:
        return dict(zip(outputs, session.run(list(outputs), dict(features)), strict=True))

    return Runner(tuple(each.name for each in session.get_inputs()), outputs, run)


def _load_tflite(content: bytes) -> Runner:
    with warnings.catch_warnings(), quiet.filtered_stderr():
        # tf.lite.Interpreter warns that it will move to its own package.
        warnings.simplefilter("ignore")
        runner = tf.lite.Interpreter(model_content=content).get_signature_runner()
    outputs = {
        name: tf.TensorSpec(
            [None if size < 0 else size for size in details["shape_signature"]], details["dtype"]
        )
        for name, details in runner.get_output_details().items()
    }
    inputs = tuple(runner.get_input_details())
    return Runner(inputs, outputs, lambda features: runner(**features))


class Drift(NamedTuple):
    """How far a converted model's outputs are from the original's, on random sequences."""

    largest: float  # The maximum absolute difference.
    spread: float  # The standard deviation of the original's.

    def __str__(self) -> str:
        return (
            f"outputs differ by up to {self.largest:.2g} from the model's, whose standard "
            f"deviation is {self.spread:.2g}"
        )


def save(served: ServedModel, directory: str | os.PathLike[str], file_format: str) -> Drift:
    """Converts a model's `features` signature, and writes it with what `load` needs.

    The file takes `input_ids`, `input_mask` and `segment_ids`, of any batch size and length, and
    returns `served.numbers`. It neither makes features from texts nor answers from numbers.

    Args:
      served: The model.
      directory: Empty or new; it appears once everything is written.
      file_format: "tflite" or "onnx" (float32), "tflite_int8" or "onnx_int8" (weights in 8 bits,
        activations where they are multiplied, dynamic range). ONNX needs tf2onnx and onnxruntime.
    """
    is_onnx = file_format.startswith("onnx")
    with files.whole_directory(os.fspath(directory)) as temporary:
        load = runtime_loader(is_onnx)
        function = tf.function(
            lambda **features: served.numbers(features), autograph=False
        ).get_concrete_function(**served.feature_specs())
        content = (_onnx if is_onnx else _tflite)(function, file_format.endswith("_int8"))
        drift = _drift(served, load(content))
        with open(os.path.join(temporary, FORMATS[file_format]), "xb") as file:
            file.write(content)
        served.describe(temporary)
        vocabulary.copy(served.vocabulary, temporary)
    return drift


def _tflite(function: Any, is_int8: bool) -> bytes:
    # The converter would neither include nor quantise weights that are variables.
    frozen = convert_variables_to_constants_v2(function)

    def named(**features: tf.Tensor) -> Features:
        return tf.nest.pack_sequence_as(function.structured_outputs, frozen(**features))

    specs = function.structured_input_signature[1]
    signature = tf.function(named, autograph=False).get_concrete_function(**specs)
    with tempfile.TemporaryDirectory() as directory:
        tf.saved_model.save(tf.Module(), directory, signatures=signature)
        converter = tf.lite.TFLiteConverter.from_saved_model(directory)
        if is_int8:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return converter.convert()


def _onnx(function: Any, is_int8: bool) -> bytes:
    import tf2onnx

    specs = function.structured_input_signature[1]
    signature = [specs[name] for name in FEATURES]
    model, _ = tf2onnx.convert.from_function(
        tf.function(
            lambda *values: function(**dict(zip(FEATURES, values, strict=True))), autograph=False
        ),
        input_signature=signature,
        opset=_OPSET,
    )
    # tf2onnx numbers the axes whose size is not fixed.
    axes = ("batch", "length") if len(signature[0].shape) == 2 else ("batch", "choices", "length")
    for tensor in (*model.graph.input, *model.graph.output):
        for size, axis in zip(tensor.type.tensor_type.shape.dim, axes, strict=False):
            if not size.HasField("dim_value"):
                size.dim_param = axis
    fuse_layer_norms(model.graph)
    tables = _stored_twice(model.graph)
    if is_int8:
        model = _quantised(model)
    for table, transposed in tables:
        _store_once(model.graph, table, transposed, is_int8)
    return model.SerializeToString()


def fuse_layer_norms(graph: Any) -> None:
    """Computes layer norms by ONNX's operation of that name, but for adding beta.

    Args:
      graph: An `onnx.GraphProto`, changed in place. So are the bodies of its loops.
    """
    from onnx import helper

    made = {name: node for node in graph.node for name in node.output}
    for i, node in enumerate(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                fuse_layer_norms(attribute.g)
        if found := _inputs(node, made):
            fused = helper.make_node(
                "LayerNormalization", found, node.output, axis=-1, epsilon=LAYER_NORM_EPSILON
            )
            graph.node[i].CopyFrom(fused)
    _remove_unused(graph)


def _inputs(node: Any, made: dict[str, Any]) -> tuple[str, str] | None:
    """Returns x and gamma of `(x - mean) * (1 / deviation * gamma)` as in layers.layer_norm."""
    if node.op_type != "Mul":
        return None
    for centred, scale in (node.input, reversed(node.input)):
        if _operation(centred, made) == "Sub" and _operation(scale, made) == "Mul":
            inverse, gamma = made[scale].input
            if _operation(inverse, made) == "Reciprocal":
                return made[centred].input[0], gamma
    return None


def _operation(name: str, made: dict[str, Any]) -> str:
    return made[name].op_type if name in made else ""


def _remove_unused(graph: Any) -> None:
    """Removes what nobody takes: onnxruntime would compute it, or warn of it."""
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
    """Yields the names of all that a node takes, also within its loops."""
    yield from node.input
    for attribute in node.attribute:
        yield from (each.name for each in attribute.g.output)
        for inner in attribute.g.node:
            yield from _taken(inner)


def _stored_twice(graph: Any) -> list[tuple[str, str]]:
    """Returns weights that rows are taken from, and what is the same transposed: the pieces'."""
    from onnx import numpy_helper

    weights = {w.name: numpy_helper.to_array(w) for w in graph.initializer if len(w.dims) == 2}
    taken = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    return [
        (name, other)
        for name in weights.keys() & taken
        for other, values in weights.items()
        if np.array_equal(weights[name], values.T)
    ]


def _store_once(graph: Any, table: str, transposed: str, is_int8: bool) -> None:
    """Transposes a table when the model is loaded, in place of the second one in the file."""
    from onnx import TensorProto, helper, numpy_helper

    scale = f"{transposed}_scale"
    if is_int8:
        table, transposed = f"{table}_quantized", f"{transposed}_quantized"
    stored = {each.name: each for each in graph.initializer}
    values = np.ascontiguousarray(numpy_helper.to_array(stored[transposed]).T)
    stored[table].CopyFrom(numpy_helper.from_array(values, table))
    graph.initializer.remove(stored[transposed])
    if is_int8:
        # A row has the scale of its piece, like the logit; not one scale for all of the table.
        (take,) = (node for node in graph.node if table in node.input)
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
        for node in reversed(scaled):
            graph.node.insert(place, node)
    graph.node.insert(0, helper.make_node("Transpose", [table], [transposed], perm=[1, 0]))
    _remove_unused(graph)


def _quantised(model: Any) -> Any:
    import onnx
    from onnxruntime import quantization

    before = logging.root.manager.disable
    # It recommends to optimise the graph first, which changes nothing here.
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.onnx")
            quantization.quantize_dynamic(
                model,
                path,
                per_channel=True,
                weight_type=quantization.QuantType.QInt8,
                # 7 bits: products of 8 saturate on x86 processors without VNNI.
                reduce_range=True,
                # The layers of deep models are a loop, whose body is a graph of its own.
                extra_options={"EnableSubgraph": True},
            )
            return onnx.load(path)
    finally:
        logging.disable(before)


def _drift(served: ServedModel, runner: Runner) -> Drift:
    random = np.random.default_rng(0)
    config, longest = served.config, served.max_seq_length
    largest, values = 0.0, []
    for share in _PROBE_LENGTHS:
        shape = [_PROBE_ROWS] * (served.feature_rank - 1) + [max(8, int(longest * share))]
        mask = np.ones(shape, np.int32)
        mask[-1, ..., max(8, shape[-1] * 3 // 4) :] = 0  # The last row has padding.
        features = {
            "input_ids": random.integers(0, config.vocab_size, shape, np.int32),
            "input_mask": mask,
            "segment_ids": np.broadcast_to(np.arange(shape[-1]) >= shape[-1] // 2, shape).astype(
                np.int32
            ),
        }
        expected = served.numbers({name: tf.constant(value) for name, value in features.items()})
        for name, value in runner.run(features).items():
            right = expected[name].numpy()
            if right.dtype.kind == "f":
                # Scores where no answer can be mean nothing: they are about -1e30.
                is_score = ~(right <= _NO_SCORE)  # NaN is one as well.
                for what, scores in (("the model's", right), ("the converted model's", value)):
                    if not np.isfinite(scores[is_score]).all():
                        raise ValueError(
                            f"{what} outputs are NaN or infinite ({name}): its weights are "
                            "damaged, or too large; use another checkpoint or `format`"
                        )
                largest = max(largest, float(np.abs(value - right).max(where=is_score, initial=0)))
                values.append(right[is_score])
    return Drift(largest, float(np.concatenate(values).std()))


class ConvertedModel:
    """Stands for the model that a file was made of; calls the file instead.

    Args:
      config: The model's config.
      runner: The loaded file; its outputs are those of ServedModel.numbers.
      **sizes: Further attributes that the class that serves the model reads.
    """

    # They are in the file.
    weights = ()

    def __init__(self, config: AlbertConfig, runner: Runner, **sizes: int) -> None:
        self.config = config
        self._runner = runner
        vars(self).update(sizes)

    def __call__(self, inputs: Features, training: bool = False) -> Any:
        """Returns what the model itself returns."""
        specs = self._runner.outputs

        def run(*arrays: Any) -> list[Any]:
            outputs = self._runner.run(dict(zip(FEATURES, arrays, strict=True)))
            return [outputs[name] for name in specs]

        types = [spec.dtype for spec in specs.values()]
        values = tf.numpy_function(run, [inputs[name] for name in FEATURES], types)
        outputs = {
            name: tf.ensure_shape(value, spec.shape)
            for (name, spec), value in zip(specs.items(), values, strict=True)
        }
        if "masked_lm_positions" in inputs:
            # The file has those of all positions.
            outputs["masked_lm_logits"] = tf.gather(
                outputs["masked_lm_logits"], inputs["masked_lm_positions"], batch_dims=1
            )
        return outputs["logits"] if set(outputs) == {"logits"} else outputs


def find(path: str) -> str | None:
    """Returns the TFLite or ONNX file that a path names or contains; None if there is none."""
    if files.is_file(path):
        return path if path.endswith(_ENDINGS) else None
    found = [name for ending in _ENDINGS for name in files.find(path, f"*{ending}")]
    if len(found) > 1:
        raise ValueError(f"{path} contains several models ({', '.join(found)}): give one of them")
    return found[0] if found else None


def load(path: str) -> ServedModel:
    """Loads a file that `save` wrote; its description, vocabulary and labels lie beside it."""
    directory = os.path.dirname(path)
    where = os.path.join(directory, DESCRIPTION_FILE)
    if not files.is_file(where):
        raise FileNotFoundError(
            f"{where}, which describes {path}, does not exist: copy the whole directory of the "
            "export, or export again"
        )
    task, config, options = read_description(where)
    words = vocabulary.find(path)
    if words is None:
        raise FileNotFoundError(f"no vocabulary is beside {path}: copy the whole directory")
    runner = _runner(path)
    _check_outputs(path, task, runner.outputs)
    sizes = {name: options.pop(name) for name in BEAM if name in options}
    _, served_class = SERVED[task]
    if served_class.takes_labels:
        sizes["num_labels"] = runner.outputs["logits"].shape[-1]
        if sizes["num_labels"] > 1:
            labels.read(directory)  # Says so if it is missing.
            options["labels"] = labels.find(path, sizes["num_labels"])
    if served_class.dispensable:
        options["without"] = {name for name in MADE_OF if MADE_OF[name] not in runner.outputs}
    return served_class(ConvertedModel(config, runner, **sizes), words, **options)


def _runner(path: str) -> Runner:
    load, content = runtime_loader(path.endswith(_ONNX)), files.read_bytes(path)
    try:
        runner = load(content)
    # Of a damaged file the runtimes raise many kinds of errors.
    except Exception as error:
        met = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"{path} can't be loaded; it may be damaged or incomplete ({met[0]}): copy it again, "
            "or export again"
        ) from error
    if sorted(runner.inputs) != sorted(FEATURES):
        raise ValueError(
            f"{path} was not written by albert-export, because its inputs are "
            f"{', '.join(runner.inputs)}: export the trained model"
        )
    return runner


def _check_outputs(path: str, task: str, outputs: Mapping[str, tf.TensorSpec]) -> None:
    """Checks that a file is of the task that its description names."""
    fits = any(names <= outputs.keys() for names in _OUTPUTS.get(task, [{"logits"}]))
    if fits and task in _LOGITS:
        shape = outputs["logits"].shape
        fits = (len(shape), shape[-1] is not None) == _LOGITS[task]
    if not fits:
        found = ", ".join(f"{name} {list(spec.shape)}" for name, spec in outputs.items())
        raise ValueError(
            f"{path} is of another task than {task}, which {DESCRIPTION_FILE} beside it names: "
            f"its outputs are {found}; copy the whole directory of the export, or export again"
        )
