"""What the arguments of the commands choose from, without the modules that do it."""

from __future__ import annotations

# What a trained model is for.
TASKS = ("fill_mask", "classify", "choose", "answer_v1", "answer_v2")
# What is written for other runtimes -> the name of its file.
FORMATS = {"tflite": "model.tflite", "tflite_int8": "model_int8.tflite", "onnx": "model.onnx"}
