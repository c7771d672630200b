"""An exported model's outputs -> answers, for JSON and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Answer = dict[str, Any]


def finite(outputs: dict[str, np.ndarray], rows: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Returns a model's outputs for some rows, if all are finite.

    Raises:
      ValueError: If some are NaN or infinite: JSON has neither, and they give no answer.
    """
    for name, value in outputs.items():
        if value.dtype.kind == "f":
            good = np.isfinite(value).all(axis=tuple(range(1, value.ndim)))
            if not good.all():
                text = rows[int(np.argmin(good))][0][:60]
                raise ValueError(
                    f"the model's outputs for {text!r} are NaN or infinite ({name}): its weights "
                    "are damaged, or too large; use another checkpoint"
                )
    return outputs


def _filled(outputs: dict[str, Any]) -> Answer:
    slots = zip(outputs["pieces"], outputs["probabilities"], strict=True)
    return {"masks": [_shares("piece", *slot) for slot in slots if slot[0][0]]}


def _classified(outputs: dict[str, Any]) -> Answer:
    names = [label.decode() for label in outputs["labels"]]
    probabilities = dict(zip(names, outputs["probabilities"].tolist(), strict=True))
    threshold = {k: float(v) for k, v in outputs.items() if k == "threshold"}
    return {"label": outputs["label"].decode(), "probabilities": probabilities, **threshold}


def _scored(outputs: dict[str, np.ndarray]) -> Answer:
    return {"score": float(outputs["score"])}


def _answered(outputs: dict[str, Any]) -> Answer:
    null_odds = {k: float(v) for k, v in outputs.items() if k == "null_odds"}
    answers = _shares("text", outputs["answers"], outputs["probabilities"])
    return {"answer": outputs["answer"].decode(), "answers": answers, **null_odds}


def _chosen(outputs: dict[str, np.ndarray]) -> Answer:
    return {
        "choice": int(outputs["choice"]),
        "probabilities": outputs["probabilities"].tolist(),
    }


def _named(outputs: dict[str, Any]) -> Answer:
    return {"entities": _spans(outputs, "entities", "types", "type")}


def _tagged(outputs: dict[str, Any]) -> Answer:
    return {"words": _spans(outputs, "words", "tags", "tag")}


def _spans(outputs: dict[str, Any], texts: str, kinds: str, kind: str) -> list[Answer]:
    columns = (outputs[name] for name in (texts, kinds, "starts", "ends", "probabilities"))
    return [
        {
            "text": text.decode(),
            kind: name.decode(),
            "start": int(start),
            "end": int(end),
            "probability": float(probability),
        }
        for text, name, start, end, probability in zip(*columns, strict=True)
        if text
    ]


def _shares(name: str, texts: np.ndarray, probabilities: np.ndarray) -> list[Answer]:
    return [
        {name: text.decode(), "probability": float(probability)}
        for text, probability in zip(texts, probabilities, strict=True)
        if text
    ]


# An output that only one kind of model has -> the function that makes its answers.
MAKERS = {
    "pieces": _filled,
    "labels": _classified,
    "score": _scored,
    "entities": _named,
    "words": _tagged,
    "answer": _answered,
    "choice": _chosen,
}


def describe(answer: Answer) -> str:
    """Returns an answer as text for people."""
    if "masks" in answer:
        rows = (
            ", ".join(f"{entry['piece']} {entry['probability']:.3f}" for entry in slot)
            for slot in answer["masks"]
        )
        return "\n".join(rows) or "there is no [MASK] in the part that the model reads"
    if "label" in answer:
        shares = (f"{name} {share:.3f}" for name, share in answer["probabilities"].items())
        return f"{answer['label'] or 'no label'} ({', '.join(shares)})"
    if "entities" in answer:
        names = (f"{e['text']} ({e['type']} {e['probability']:.3f})" for e in answer["entities"])
        return ", ".join(names) or "no entities"
    if "words" in answer:
        return " ".join(f"{word['text']}/{word['tag']}" for word in answer["words"])
    if "answer" in answer:
        found = [e["probability"] for e in answer["answers"] if e["text"] == answer["answer"]]
        return f"{answer['answer']} ({found[0]:.3f})" if found else "no answer"
    if "choice" in answer:
        shares = answer["probabilities"]
        return f"{answer['choice'] + 1} ({', '.join(f'{share:.3f}' for share in shares)})"
    ((name, number),) = answer.items()
    return f"{name} {number:.4f}"
