#!/bin/sh
# A row's answer from a model of onnxruntime's dynamic quantization depends on its neighbours.
#
# quantize_dynamic computes the scale of an activation over the whole batch. A row of small numbers
# beside one of large ones is rounded to a few steps: batching requests, or padding them with a
# louder one, changes answers, here from 0.2 to 0.4. In float32 the rows are independent. Seen with
# onnxruntime 1.23.2 and onnx 1.19.1 on Python 3.11, x86-64:
#
#   float32 alone: 0.20 0.28 0.35 0.43
#   float32 beside another row: 0.20 0.28 0.35 0.43
#   int8 alone: 0.20 0.28 0.35 0.32
#   int8 beside another row: 0.40 0.44 0.49 0.54
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
install() { python3 -m pip install --quiet --target "$folder/$1" $2; }
install packages 'onnxruntime==1.23.2 onnx==1.19.1 numpy==2.3.5'
cat >"$folder/run.py" <<'END'
import logging
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

logging.disable()
weights = np.arange(-8, 8, dtype=np.float32).reshape(4, 4) / 8
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4]) for name in "xy"]
product = helper.make_node("MatMul", ["x", "weights"], ["y"])
values = [numpy_helper.from_array(weights, "weights")]
graph = helper.make_graph([product], "product", ends[:1], ends[1:], values)
opset = helper.make_opsetid("", 17)
paths = {name: f"{sys.argv[1]}/{name}.onnx" for name in ("float32", "int8")}
onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), paths["float32"])
quantize_dynamic(paths["float32"], paths["int8"])

row = np.array([[0.1, -0.2, 0.3, 0.4]], np.float32)
loud = np.array([[0, 0, 0, 100]], np.float32)
for name, path in paths.items():
    run = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run
    for where, rows in (("alone", row), ("beside another row", np.concatenate([row, loud]))):
        (found,) = run(None, {"x": rows})
        print(f"{name} {where}:", *(f"{number:.2f}" for number in found[0]))
END
found=$(PYTHONPATH="$folder/packages" python3 "$folder/run.py" "$folder")
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
