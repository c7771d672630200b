"""The model card (README.md) of a directory for Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Sequence

from albert_tf.config import AlbertConfig
from albert_tf.storage import eval_results, hub
from albert_tf.storage.run_record import RunRecord

# Hugging Face's class -> its name of the task.
_PIPELINES = {
    "AlbertForMaskedLM": "fill-mask",
    "AlbertForSequenceClassification": "text-classification",
    "AlbertForTokenClassification": "token-classification",
    "AlbertForMultipleChoice": "multiple-choice",
    "AlbertForQuestionAnswering": "question-answering",
    "AlbertModel": "feature-extraction",
}


def text(
    path: str,
    run: RunRecord | None,
    architecture: str,
    config: AlbertConfig,
    labels: Sequence[str],
) -> str:
    """Returns what is known about a stored model.

    Args:
      path: Where it is stored: its metrics may lie there.
      run: What it was fine-tuned for, and how, if it is known.
      architecture: The class of Hugging Face that it becomes.
      config: Its config.
      labels: Names of its classes, if there are any.
    """
    pieces = f"{config.vocab_size:,} pieces"
    size = f"{config.num_hidden_layers} layers, H {config.hidden_size}, E {config.embedding_size}"
    sections = [
        _header(architecture, run),
        f"# ALBERT for {run.task.name}" if run and run.task else "# ALBERT",
        f"[ALBERT](https://arxiv.org/abs/1909.11942) with {size} and {pieces}, for transformers' "
        f"{architecture}.",
    ]
    if labels:
        sections.append("Classes: " + ", ".join(f"`{label}`" for label in labels) + ".")
    if run and run.task and run.command:
        initial = _initial_weights(run)
        start = f"from {initial}" if initial else "from random initialisation"
        sections += ["## Training", f"On {run.task.name}, {start}, with albert_tf:"]
        sections.append(f"```\n{run.command}\n```")
    metrics = eval_results.of_checkpoint(path)
    if metrics:
        rows = [f"| {name} | {value:.4f} |" for name, value in sorted(metrics.items())]
        sections.append("## Scores on the evaluation set")
        sections.append("\n".join(["| metric | value |", "| --- | --- |", *rows]))
    return "\n\n".join(sections) + "\n"


def _header(architecture: str, run: RunRecord | None) -> str:
    lines = ["---", "library_name: transformers", "tags: [albert]"]
    if architecture in _PIPELINES:
        lines.append(f"pipeline_tag: {_PIPELINES[architecture]}")
    initial = _initial_weights(run) if run else ""
    if initial.startswith(hub.SCHEME):
        name = initial.removeprefix(hub.SCHEME).partition("@")[0]
        lines.append(f"base_model: {json.dumps(name)}")
    return "\n".join([*lines, "---"])


def _initial_weights(run: RunRecord) -> str:
    named = (run.settings.get(name) for name in ("init_checkpoint", "albert_hub_module_handle"))
    return next(filter(None, named), "")
