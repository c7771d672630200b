"""The model card, README.md of a Hugging Face directory.

It is assembled here, since huggingface_hub, which has a class for it, need not be installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from albert_tf.config import AlbertConfig
from albert_tf.storage import eval_results, files, hub
from albert_tf.storage.run_record import RunRecord

# Owners of ALBERT's released weights on the Hub, and the licence there.
_RELEASED, _LICENCE = ("albert/", "keras/albert_"), "apache-2.0"
# The Hub's names of data sets; GLUE's tasks are all in a single one.
_DATA = {"squad_v1": "rajpurkar/squad", "squad_v2": "rajpurkar/squad_v2", "race": "ehovy/race"}
_GLUE = ["cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst-2", "sts-b", "wnli"]
# Our names of metrics -> the Hub's.
_METRICS = {
    "f1": "f1",
    "exact_match": "exact_match",
    "eval_accuracy": "accuracy",
    "macro_f1": "f1",
    "micro_f1": "f1",
    "matthew_corr": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}
# The Hub's name of the task of models that embed texts.
_VECTORS = "sentence-similarity"
# The Hub's name of a task -> an input of its pipeline.
_QUESTIONS = {
    "text-classification": "A warm and funny film",
    "token-classification": "She lives in York",
    "fill-mask": "A warm and [MASK] film",
    "feature-extraction": "A warm and funny film",
}


def write(
    directory: str,
    path: str,
    run: RunRecord | None,
    architecture: str,
    config: AlbertConfig,
    labels: Sequence[str],
    pipeline: str,
    license: str | None = None,
) -> None:
    """Writes the card of the weights at `path`, which `run` trained.

    `pipeline` is the Hub's name of their task. Without a `license` the card names the released
    weights' if the model began with them.
    """
    # Collect what the run's record says: task, initial weights, scores.
    task = run.task.name if run and run.task else ""
    settings = run.settings if run else {}
    initial = settings.get("init_checkpoint") or settings.get("albert_hub_module_handle") or ""
    base = initial.removeprefix(hub.SCHEME).partition("@")[0] if hub.SCHEME in initial else ""
    metrics = eval_results.of_checkpoint(path)

    # The header for the Hub is YAML. A value in JSON is valid YAML.
    data = "nyu-mll/glue" if task in _GLUE else _DATA.get(task)
    header: dict[str, Any] = {
        "library_name": "sentence-transformers" if pipeline == _VECTORS else "transformers",
        "license": license or (_LICENCE if base.startswith(_RELEASED) else None),
        "base_model": base,
        "datasets": [data] if data else [],
        "metrics": sorted({_METRICS[name] for name in metrics if name in _METRICS}),
        "pipeline_tag": pipeline,
        "tags": ["albert"],
    }
    # Scores belong to a data set: GLUE's, one on the Hub, or the user's own file.
    if metrics and task:
        own = os.path.basename(settings.get("eval_file") or settings.get("train_file") or task)
        dataset = {"type": data or os.path.splitext(own)[1][1:] or own, "name": data or own}
        if task in _GLUE:
            dataset |= {"config": task.replace("-", ""), "split": "validation"}
        values = [
            {"type": _METRICS.get(name, name), "name": name, "value": value}
            for name, value in sorted(metrics.items())
        ]
        of = {"task": {"type": pipeline or "other"}, "dataset": dataset, "metrics": values}
        header["model-index"] = [{"name": f"ALBERT for {task}", "results": [of]}]
    lines = [f"{name}: {json.dumps(value)}" for name, value in header.items() if value]

    # The text: size, use, training and scores.
    size = f"{config.num_hidden_layers} layers, H {config.hidden_size}, E {config.embedding_size}"
    sections = [
        "\n".join(["---", *lines, "---"]),
        f"# ALBERT for {task}" if task else "# ALBERT",
        f"[ALBERT](https://arxiv.org/abs/1909.11942) with {size} and {config.vocab_size:,} pieces, "
        f"for transformers' {architecture}.",
    ]
    if labels:
        sections.append("Classes: " + ", ".join(f"`{label}`" for label in labels) + ".")
    sections += ["## Use", f"```python\n{_example(architecture, pipeline)}\n```"]
    # Whoever finds the model can repeat its training from this command.
    if run and task and run.command:
        start = f"from {initial}" if initial else "from random initialisation"
        sections += ["## Training", f"On {task}, {start}, with albert_tf:"]
        sections.append(f"```\n{run.command}\n```")
    if metrics:
        rows = [f"| {name} | {value:.4f} |" for name, value in sorted(metrics.items())]
        sections.append("## Scores on the evaluation set")
        sections.append("\n".join(["| metric | value |", "| --- | --- |", *rows]))
    files.replace(os.path.join(directory, "README.md"), "\n\n".join(sections) + "\n")


def _example(architecture: str, pipeline: str) -> str:
    if pipeline == _VECTORS:
        return (
            "from sentence_transformers import SentenceTransformer\n\n"
            'model = SentenceTransformer("OWNER/NAME")  # This repository, or a directory.\n'
            'print(model.encode(["A warm and funny film"]).shape)'
        )
    place = '"OWNER/NAME"  # This repository, or a directory.'
    if pipeline in _QUESTIONS:
        return (
            f"from transformers import pipeline\n\nplace = {place}\n"
            f'model = pipeline("{pipeline}", model=place)\nprint(model("{_QUESTIONS[pipeline]}"))'
        )
    axis = "\ninputs = {name: value[None] for name, value in inputs.items()}  # An axis of choices."
    return (
        f"from transformers import {architecture}, AutoTokenizer\n\nplace = {place}\n"
        f"model = {architecture}.from_pretrained(place)\n"
        "tokenizer = AutoTokenizer.from_pretrained(place)\n"
        'inputs = tokenizer(["Where is York?"], ["York is in England."], return_tensors="pt")'
        f"{axis if pipeline == 'multiple-choice' else ''}\nprint(model(**inputs))"
    )
