"""Choices of the commands' arguments, without importing what implements them."""

from __future__ import annotations

# What a trained model is for.
TASKS = ("fill_mask", "classify", "tag", "choose", "answer_v1", "answer_v2")
# Formats for other runtimes -> file name.
FORMATS = {
    "tflite": "model.tflite",
    "tflite_int8": "model_int8.tflite",
    "onnx": "model.onnx",
    "onnx_int8": "model_int8.onnx",
}
