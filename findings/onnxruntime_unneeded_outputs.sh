#!/bin/sh
# onnxruntime computes outputs that nobody asks for, also with only_execute_path_to_fetches.
#
# A model of twelve products has an output after the first and one after the last. Asked for the
# first alone, a session runs all twelve. RunOptions.only_execute_path_to_fetches, documented as
# executing only the nodes that are needed, can be set without an error or a warning, and changes
# nothing: only builds for training heed it (microsoft/onnxruntime#16013, open since 2023). So a model
# with an exit after each layer answers at the first as slowly as at the last. Seen with onnxruntime
# 1.32.0 and onnx 1.22.0, Python 3.11, x86-64.
#
#   asked for the last: 12 products
#   asked for the first: 12 products
#   asked for the first, only_execute_path_to_fetches: 12 products
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expected=$(sed -n 's/^#   //p' "$0")
python3 -m pip install --quiet --target "$folder" 'onnxruntime==1.32.0' 'onnx==1.22.0' 'numpy==2.4.6'
cat >"$folder/run.py" <<'END'
import json
import os

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

weight = numpy_helper.from_array(np.eye(8, dtype="float32"), "w")
nodes = [helper.make_node("MatMul", [f"x{i}", "w"], [f"x{i + 1}"]) for i in range(12)]
tensors = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8]) for n in ("x0", "x1", "x12")}
graph = helper.make_graph(nodes, "g", [tensors["x0"]], [tensors["x1"], tensors["x12"]], [weight])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

for title, output, only in (
    ("asked for the last", "x12", False),
    ("asked for the first", "x1", False),
    ("asked for the first, only_execute_path_to_fetches", "x1", True),
):
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = os.path.join(os.path.dirname(__file__), "profile")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    how = onnxruntime.RunOptions()
    how.only_execute_path_to_fetches = only
    session.run([output], {"x0": np.ones((1, 8), "float32")}, how)
    with open(session.end_profiling()) as file:
        events = json.load(file)
    products = sum(each["name"].endswith("_kernel_time") for each in events)
    print(f"{title}: {products} products")
END
found=$(PYTHONPATH="$folder" python3 "$folder/run.py")
[ "$found" = "$expected" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found" >&2; exit 1; }
