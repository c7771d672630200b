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
# Arguments, as the serving classes name them -> the tasks that take them.
TASKS_OF = {
    "labels": ("classify", "tag"),
    "pairs": ("classify",),
    "threshold": ("classify",),
    "multilabel": ("classify",),
    "top_k": ("fill_mask",),
    "num_choices": ("choose",),
    "max_qa_length": ("choose",),
    "null_threshold": ("answer_v2",),
    "start_n_top": ("answer_v2",),
    "end_n_top": ("answer_v2",),
    "doc_stride": ("classify", "answer_v1", "answer_v2"),
    "windows": ("classify",),
    "max_query_length": ("answer_v1", "answer_v2"),
    "max_answer_length": ("answer_v1", "answer_v2"),
    "n_best_size": ("answer_v1", "answer_v2"),
    "max_seq_length": TASKS,
}
