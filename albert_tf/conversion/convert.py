"""Converts a model to another layout: weights, config and vocabulary."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from albert_tf import conversion, directories, hub
from albert_tf.config import CONFIG_FILE, AlbertConfig
from albert_tf.conversion import bundles, huggingface, kerashub, labels, layouts
from albert_tf.conversion.layouts import LAYOUTS
from albert_tf.conversion.names import ENCODER, POOLER
from albert_tf.model import albert, finetuning, heads
from albert_tf.text import vocabulary

# Prefixes of the release's names of heads.
_HEADS = (
    "cls/predictions/",
    "cls/seq_relationship/",
    "output_",
    "cls/squad/",
    "start_logits/",
    "end_logits/",
    "answer_class/",
)


@dataclasses.dataclass(frozen=True)
class Source:
    """A model to convert.

    Attributes:
      path: Where it was read.
      config: The model's.
      weights: `<float32>` arrays by the release's names.
      vocabulary: Its vocabulary, if there is one.
      labels: Names of its classes, if there are any.
    """

    path: str
    config: AlbertConfig
    weights: Mapping[str, np.ndarray]
    vocabulary: vocabulary.Vocabulary | None
    labels: tuple[str, ...]

    @property
    def num_labels(self) -> int:
        """Number of outputs of the classifier's head; 0 without one."""
        return np.size(self.weights.get("output_bias", ()))

    @property
    def has_pooler(self) -> bool:
        """Whether it has the pooler's weights."""
        return any(name.startswith(POOLER) for name in self.weights)

    @property
    def heads(self) -> frozenset[str]:
        """Name prefixes of the heads it has."""
        return frozenset(h for h in _HEADS if any(name.startswith(h) for name in self.weights))


def convert(
    path: str,
    layout: str,
    output_dir: str,
    *,
    config_file: str | None = None,
    spm_model_file: str | None = None,
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
    architecture: str | None = None,
    drop: Sequence[str] = (),
) -> str:
    """Writes a stored model in another layout.

    Nothing is invented or lost: weights that the layout has no place for are an error unless `drop`
    names them. The directory appears once everything is written.

    Args:
      path: What `load_weights` takes.
      layout: One of LAYOUTS.
      output_dir: An empty or new directory.
      config_file: An albert_config.json, if there is no valid one beside the weights.
      spm_model_file: A SentencePiece model, if there is none beside the weights.
      vocab_file: Or a WordPiece vocabulary.
      do_lower_case: Whether the model is uncased; see vocabulary.choose.
      architecture: The Hugging Face class to load it with; inferred from the heads by default.
      drop: Prefixes of the release's names of weights to leave out.

    Returns:
      A one-line summary.

    Raises:
      FileNotFoundError: If there is no such model, config or vocabulary.
      ValueError: If it is damaged, does not fit, or would lose something.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
    if architecture and layout != "huggingface":
        raise ValueError("an architecture is Hugging Face's: leave it out, or convert to that")
    directories.check_free(output_dir)
    path = hub.local(path)
    source = _read(path, config_file, drop)
    words = vocabulary.choose(path, spm_model_file, vocab_file, do_lower_case)
    if words is None:
        logging.warning("no vocabulary beside %s, and none named: none is written", path)
    else:
        words.check(source.config)
    names = labels.find(path, source.num_labels)
    source = dataclasses.replace(source, vocabulary=words, labels=names)
    with directories.whole_directory(output_dir) as directory:
        what = _WRITERS[layout](directory, source, architecture)
        lost = source.config.differences(layouts.load_config(directory), ())
        if labels.find(directory, source.num_labels) != source.labels:
            lost.append(f"labels ({', '.join(source.labels)})")
    kept = "no vocabulary" if source.vocabulary is None else source.vocabulary.path
    text = f"{output_dir}: {what}, {len(source.weights)} weights; vocabulary: {kept}"
    text += f"; not kept: {', '.join(lost)}" if lost else ""
    logging.info("%s", text)
    return text


def _read(path: str, config_file: str | None, drop: Sequence[str]) -> Source:
    layout = layouts.find(path)
    if config_file:
        config = AlbertConfig.from_json_file(config_file)
        layouts.check_config(config, layout, path, replace=True)
    else:
        config = layout.read_config(path)
    weights = layout.read_weights(path)
    for prefix in drop:
        dropped = sorted(name for name in weights if name.startswith(prefix))
        if not dropped:
            raise ValueError(f"{path} has no weight that begins with {prefix!r}, to be dropped")
        logging.warning("dropped: %s", ", ".join(dropped))
        weights = {name: value for name, value in weights.items() if name not in dropped}
    source = Source(path, config, weights, None, ())
    _check(source)
    return source


def _check(source: Source) -> None:
    """Compares the stored weights with those of our models.

    Raises:
      ValueError: If some are unknown, of another shape, or missing.
    """
    _check_size(source)
    expected = {
        name: tuple(variable.shape)
        for model in (heads.AlbertForPreTraining, finetuning.AlbertForQuestionAnsweringV2)
        for name, variable in conversion.named_weights(model(source.config)).items()
    }
    width = source.config.hidden_size
    count = source.num_labels
    expected |= {"output_weights": (count, width), "output_bias": (count,)}
    expected |= {"cls/squad/output_weights": (2, width), "cls/squad/output_bias": (2,)}
    missing = [
        name
        for name in expected
        if name.startswith((ENCODER, *source.heads))
        and name not in source.weights
        and (source.has_pooler or not name.startswith(POOLER))
    ]
    unknown = sorted(set(source.weights) - set(expected))
    wrong = [
        f"{name} {list(value.shape)}, not {list(expected[name])}"
        for name, value in source.weights.items()
        if name in expected and value.shape != expected[name]
    ]
    for problem, listed in (("lacks", missing), ("has unknown", unknown), ("has", wrong)):
        if listed:
            raise ValueError(
                f"{source.path} does not fit its config: it {problem} {', '.join(listed)}; use the "
                "config that belongs to it, or drop what is of no use"
            )


def _check_size(source: Source) -> None:
    # Before any memory is allocated: another model's config may declare any size.
    declared = source.config.num_weights
    held = sum(value.size for value in source.weights.values())
    if declared > 10 * held:
        raise ValueError(
            f"{source.path} does not fit its config: that declares more than {declared:,} numbers, "
            f"and the weights are {held:,}; use the config that belongs to them"
        )


def _refuse_loss(source: Source, what: str, pooler: bool, parts: Sequence[str]) -> None:
    """Raises ValueError if a target with these parts would lose weights, or lack some."""
    lost = sorted(source.heads - set(parts))
    if source.has_pooler and not pooler:
        lost.append(POOLER)
    if lost:
        raise ValueError(
            f"{what} has no place for {', '.join(lost)} of {source.path}: to lose them, add "
            f"`drop={','.join(lost)}`"
        )
    lacking = [part for part in parts if part not in source.heads]
    if pooler and not source.has_pooler:
        lacking.append(POOLER)
    if lacking:
        raise ValueError(f"{what} needs {', '.join(lacking)}, which {source.path} lacks")


def _write_tf1(directory: str, source: Source, architecture: None) -> str:
    bundles.write(directory, source.config, source.weights)
    _copy_beside(source, directory)
    return "the release's checkpoint"


def _write_hugging_face(directory: str, source: Source, architecture: str | None) -> str:
    known = huggingface.ARCHITECTURES
    if architecture is None:
        fitting = [name for name, (_, parts) in known.items() if set(parts) == source.heads]
        if not fitting:
            raise ValueError(
                f"Hugging Face has no ALBERT with {', '.join(sorted(source.heads))}: name an "
                "`architecture`, and what to `drop`"
            )
        architecture = min(fitting, key=lambda name: known[name][0] != source.has_pooler)
    elif architecture not in known:
        raise ValueError(f"`architecture` must be one of {', '.join(known)}, not {architecture!r}")
    _refuse_loss(source, architecture, *known[architecture])
    count = source.num_labels
    if architecture == "AlbertForMultipleChoice" and count != 1:
        raise ValueError(f"{architecture} gives a choice one number, and {source.path} {count}")
    tokenizer = source.vocabulary.tokenizer if source.vocabulary else None
    huggingface.write(
        directory, source.config, source.weights, architecture, tokenizer, source.labels
    )
    if source.vocabulary:
        longest = source.config.max_position_embeddings
        vocabulary.write_hugging_face(source.vocabulary, directory, longest)
    return f"Hugging Face's {architecture}"


def _write_kerashub(directory: str, source: Source, architecture: None) -> str:
    task = next(
        (task for task, parts in kerashub.TASKS.items() if set(parts) <= source.heads), None
    )
    _refuse_loss(source, task or "AlbertBackbone", True, kerashub.TASKS.get(task, ()))
    if source.vocabulary and source.vocabulary.is_word_piece:
        raise ValueError(
            f"KerasHub's ALBERT takes SentencePiece vocabularies only, not {source.vocabulary.path}"
        )
    kerashub.write(directory, source.config, source.weights, task, bool(source.vocabulary))
    if source.vocabulary:
        vocabulary.write_kerashub(source.vocabulary, directory)
    return f"KerasHub's {task or 'AlbertBackbone'}"


def _model(source: Source) -> keras.Model:
    """Makes our model that has exactly the stored weights."""
    config, count = source.config, source.num_labels
    makers: dict[frozenset[str], Any] = {
        frozenset(): lambda: albert.AlbertModel(config),
        frozenset(_HEADS[:2]): lambda: heads.AlbertForPreTraining(config),
        frozenset(_HEADS[2:3]): lambda: finetuning.AlbertForSequenceClassification(config, count),
        frozenset(_HEADS[3:4]): lambda: finetuning.AlbertForQuestionAnswering(config),
        frozenset(_HEADS[4:]): lambda: finetuning.AlbertForQuestionAnsweringV2(config),
    }
    if source.heads not in makers:
        raise ValueError(f"no model here has exactly {', '.join(sorted(source.heads))}: drop some")
    return makers[source.heads]()


def _write_keras(directory: str, source: Source, architecture: None) -> str:
    model = _model(source)
    named = conversion.named_weights(model)
    lacking = sorted(set(named) - set(source.weights))
    if lacking:
        raise ValueError(f"{type(model).__name__} needs {', '.join(lacking)}")
    for name, value in source.weights.items():
        named[name].assign(value)
    model.save(os.path.join(directory, "model.keras"))
    directories.write_text(os.path.join(directory, CONFIG_FILE), source.config.to_json())
    _copy_beside(source, directory)
    return type(model).__name__


def _copy_beside(source: Source, directory: str) -> None:
    if source.vocabulary:
        vocabulary.copy(source.vocabulary, directory)
    if source.labels:
        labels.write(directory, source.labels)


_WRITERS: dict[str, Callable[..., str]] = {
    "tf1": _write_tf1,
    "huggingface": _write_hugging_face,
    "keras": _write_keras,
    "kerashub": _write_kerashub,
}
