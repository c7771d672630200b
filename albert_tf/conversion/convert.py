"""Converts a model to another layout: weights, config and vocabulary."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from albert_tf import conversion
from albert_tf.answers.classify import Classify
from albert_tf.answers.embed import Embed
from albert_tf.answers.kind import Labelled, checked_options
from albert_tf.answers.kinds import KINDS
from albert_tf.config import CONFIG_FILE
from albert_tf.conversion import (
    bundles,
    huggingface,
    kerashub,
    kinds,
    labels,
    layouts,
    model_card,
    sentence_transformers,
)
from albert_tf.conversion.names import DENSE, POOLER
from albert_tf.conversion.stored_model import ModelLocation, StoredModel, model_class, read
from albert_tf.storage import files
from albert_tf.storage.run_record import TaskRecord
from albert_tf.text import vocabulary
from albert_tf.text.sentence_piece import RELEASE, pieces_split_again
from albert_tf.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import keras


def convert(
    path: str,
    layout: str,
    output_dir: str,
    *,
    architecture: str | None = None,
    drop: Sequence[str] = (),
    license: str | None = None,
    complete: Callable[[str], str] | None = None,
    **beside: Any,
) -> str:
    """Writes a stored model in another layout; returns a line about it.

    No weight is invented or lost: one that the layout has no place for is an error unless `drop`
    names it. The directory appears once everything is written.

    Args:
      path: A path that `load_weights` takes.
      layout: One of layouts.LAYOUTS.
      output_dir: An empty or new directory.
      architecture: The Hugging Face class to load it with; inferred from the heads by default.
      drop: Prefixes of the release's names of weights to leave out.
      license: The licence for Hugging Face's model card; see model_card.write.
      complete: Adds files to the directory before it appears, and returns a text about them.
      **beside: ModelLocation's arguments for files and options not found beside the weights.
    """
    # Read and check all of the model before anything is written.
    files.check_free(output_dir)
    source = read(ModelLocation(path, **beside), drop)
    if source.vocabulary is None:
        logging.warning("no vocabulary beside %s, and none given: none is written", path)
    # Write it, then compare what can be read back with the source.
    with files.whole_directory(output_dir) as directory:
        of_card = {"architecture": architecture, "license": license}
        options = of_card if layout == "huggingface" else {}
        what = _WRITERS[layout](directory, source, **options)
        lost = _lost(directory, source, layout)
        added = complete(directory) if complete else ""
    # Describe the result.
    kept = "no vocabulary" if source.vocabulary is None else source.vocabulary.path
    text = f"{output_dir}: {what}, {len(source.weights)} weights; vocabulary: {kept}"
    text += f"; not kept: {', '.join(lost)}" if lost else ""
    return text + (f"; {added}" if added else "")


def _lost(directory: str, source: StoredModel, layout: str) -> list[str]:
    """Describes the properties of a stored model that its new directory doesn't keep."""
    # The config, the names of classes, and the meaning of a classifier's outputs.
    lost = source.config.differences(layouts.read_config(directory), ())
    kept = kinds.find(directory)
    if labels.find(directory, source.num_labels) != source.labels:
        lost.append(f"labels ({', '.join(source.labels)})")
    if source.task and source.num_labels:
        before, after = (kinds.meaning(task, source.num_labels) for task in (source.task, kept))
        lost += [f"kind of classifier ({before})"] if after != before else []
    # Classes with the same head have the same dropout, so check one of them.
    models = {kind.heads: kind.model for kind in KINDS if source.heads >= {*kind.heads}}
    for model in kinds.HEAD_DROPOUT.keys() & models.values():
        rate, found = (kinds.head_dropout(each, model) for each in (source.path, directory))
        lost += [f"classifier_dropout_prob ({rate})"] if found != rate else []
    if huggingface.is_exact_gelu(files.directory_of(source.path)):
        lost.append("hidden_act gelu (exact in Hugging Face, the tanh approximation here)")
    # How texts were read: a run's options, and the rules of the tokenizer.
    reading, read = (_reading(task) for task in (source.task, kept))
    if changed := [name for name in reading if reading[name] != read.get(name)]:
        lost.append(f"how texts were read ({', '.join(changed)})")
    if layout == "kerashub" and source.vocabulary:  # KerasHub's tokenizer doesn't normalise text.
        (lower, keeps), tokenizer = source.vocabulary.form, source.vocabulary.tokenizer
        rules = ["lower-casing"] * lower + ["stripping of accents"] * (not keeps)
        rules.append("splitting of commas after digits")
        rules = [*(rules if tokenizer.ids == RELEASE else []), *tokenizer.added_tokens]
        lost.append(f"how raw text is normalised ({', '.join(rules)})")
    return lost


def _reading(task: TaskRecord | None) -> dict[str, Any]:
    """Returns a record's options for reading texts, without those kept with the weights."""
    others = {"task", "labels", "multilabel", "dense_units", "dense_activation", "dimensions"}
    known, kind = task.kind if task else {}, kinds.kind_of(task)
    # The record of a Preprocessor has other kinds' options, too.
    names = known.keys() & (kind.option_fields() if kind else known)
    return {name: value for name, value in known.items() if name in names - others}


def _refuse_loss(source: StoredModel, what: str, pooler: bool, parts: Collection[str]) -> None:
    """Raises ValueError if a target with these parts would lose weights, or lack some."""
    lost = sorted(source.heads - set(parts))
    if source.has_pooler and not pooler:
        lost.append(POOLER)
    if lost:
        raise ValueError(
            f"{what} has no place for {', '.join(lost)} of {source.path}: to leave them out, set "
            f"`drop={','.join(lost)}`"
        )
    lacking = [part for part in parts if part not in source.heads]
    if pooler and not source.has_pooler:
        lacking.append(POOLER)
    if lacking:
        raise ValueError(f"{what} needs {', '.join(lacking)}, which {source.path} lacks")


def write_checkpoint(directory: str, source: StoredModel) -> str:
    """Writes a stored model, with all that belongs to it, in the release's layout."""
    bundles.write(directory, source.config, source.weights)
    _copy_beside(source, directory)
    return "the release's checkpoint"


def _copy_beside(source: StoredModel, directory: str) -> None:
    if source.vocabulary:
        vocabulary.copy(source.vocabulary, directory)
    if source.labels:
        labels.write(directory, source.labels)
    if source.run:
        source.run.write(directory)


def _write_hugging_face(
    directory: str, source: StoredModel, architecture: str | None, license: str | None
) -> str:
    # The dense layer after pooling becomes a separate module beside the encoder.
    embed = None if architecture else _embed(source)
    dense = {name: source.weights[name] for name in DENSE if embed and name in source.weights}
    if embed:
        weights = {name: v for name, v in source.weights.items() if name not in dense}
        source, architecture = dataclasses.replace(source, weights=weights), "AlbertModel"
    # Refuse heads that no class of Hugging Face has.
    known = huggingface.ARCHITECTURES
    theirs = {kind.heads for kind in KINDS if kind.is_hugging_face}
    for kind in KINDS:
        is_known = kind.is_of_any_encoder or kind.heads in theirs
        if not is_known and source.heads >= {*kind.heads}:
            raise ValueError(
                f"Hugging Face has no model with the heads of {kind.task_name} "
                f"({', '.join(kind.heads)}): train with `span_head=linear`; or leave out heads of "
                f"{source.path} with `drop`"
            )
    # Choose the class: the one named, the task's, or the one with exactly these heads.
    trained = kinds.kind_of(source.task)
    if architecture is None and trained and source.num_labels:
        architecture = trained.model
    if architecture is None:
        fitting = [name for name, (_, parts, _) in known.items() if set(parts) == source.heads]
        if not fitting:
            raise ValueError(
                f"Hugging Face has no ALBERT with exactly {', '.join(sorted(source.heads))}: set "
                "`architecture`, and leave out heads with `drop`"
            )
        architecture = min(fitting, key=lambda name: known[name][0] != source.has_pooler)

    # The class must have exactly the stored parts, and as many outputs.
    pooler, parts, pipeline = known[architecture]
    _refuse_loss(source, architecture, source.has_pooler if embed else pooler, parts)
    count = source.num_labels
    alike = kinds.ALIKE.get(architecture)
    if alike and not issubclass(alike, Labelled) and count != 1:
        raise ValueError(f"{architecture} has one output per choice, but {source.path} has {count}")

    # Write weights and config, the vocabulary, the model card, and the run's record.
    config, words, named = source.config, source.vocabulary, source.labels
    tokenizer = words.tokenizer if words else None
    problem = kinds.problem_type(source.task, count) * kinds.has_problem_type(architecture)
    dropout = kinds.head_dropout(source.path, Classify.model)
    huggingface.write(
        directory, config, source.weights, architecture, tokenizer, named, problem, dropout
    )
    if embed:
        sentence_transformers.write(directory, embed, config.hidden_size, dense)
    if words:
        length = embed.max_seq_length if embed else config.max_position_embeddings
        vocabulary.write_hugging_face(words, directory, length)
        _warn_of_split_pieces(words)
    about = architecture, config, named, embed.pipeline if embed else pipeline, license
    model_card.write(directory, source.path, source.run, *about)
    if embed:
        return "sentence-transformers' modules"
    # A run's record would give another class the wrong task.
    if source.run and (trained is None or trained.model == architecture):
        source.run.write(directory)
    return f"Hugging Face's {architecture}"


def _embed(source: StoredModel) -> Embed | None:
    """Returns the Embed of a model that embeds texts, with its options; None for other models."""
    if source.task is None or kinds.kind_of(source.task) is not Embed:
        return None
    options = {"max_seq_length": source.config.max_position_embeddings}
    kind = Embed(**(options | checked_options(Embed, source.task.kind, source.path)))
    kind.check(source.config)
    if (given := source.dense_units) != (units := kind.dense_units or 0):
        known = f"{source.path} embeds by a dense layer with {units} outputs, but its weights have"
        raise ValueError(f"{known} {given}: keep them; or take the encoder alone, `architecture`")
    return kind


def _warn_of_split_pieces(words: Vocabulary) -> None:
    split = [] if words.is_word_piece else pieces_split_again(words.tokenizer.content)
    if split and not words.fast:
        logging.warning(
            "%d pieces of %s end in a digit and a comma within a word (such as %r): albert_tf "
            "splits them again, as the release does, and transformers never uses them, so that "
            "some ids differ in texts with one; albert-train-sentencepiece makes vocabularies "
            "without them",
            *(len(split), words.path, split[0]),
        )


def _write_kerashub(directory: str, source: StoredModel) -> str:
    heads_of = kerashub.TASKS
    task = next((task for task, parts in heads_of.items() if set(parts) <= source.heads), None)
    _refuse_loss(source, task or "AlbertBackbone", True, heads_of.get(task, ()))
    if source.vocabulary and source.vocabulary.is_word_piece:
        raise ValueError(
            f"KerasHub's ALBERT only takes SentencePiece vocabularies, not {source.vocabulary.path}"
        )
    kerashub.write(directory, source.config, source.weights, task, bool(source.vocabulary))
    if source.vocabulary:
        vocabulary.write_kerashub(source.vocabulary, directory)
    if source.run:
        source.run.write(directory)
    return f"KerasHub's {task or 'AlbertBackbone'}"


def _write_keras(directory: str, source: StoredModel) -> str:
    model = _model(source)
    named = conversion.named_weights(model)
    heads = [head for head in source.heads if any(name.startswith(head) for name in named)]
    _refuse_loss(source, type(model).__name__, model.reads_pooler or source.has_pooler, heads)
    # Each weight finds its variable, because `read` has checked all names and shapes.
    for name, value in source.weights.items():
        named[name].assign(value)
    # A pooler that is not stored affects no output: fill it with zeros, which the reader drops.
    for name in set(named) - set(source.weights):
        named[name].assign(np.zeros(named[name].shape, np.float32))
    model.save(os.path.join(directory, "model.keras"))
    files.replace(os.path.join(directory, CONFIG_FILE), source.config.to_json())
    _copy_beside(source, directory)
    return type(model).__name__


def _model(source: StoredModel) -> keras.Model:
    """Builds the model of albert_tf that has exactly the stored weights."""
    if embed := _embed(source):
        return model_class(Embed)(source.config, **embed.model_arguments)
    # An encoder without a head is a model by itself.
    if not source.heads:
        from albert_tf.model import albert  # Not at the top: only this layout needs a model.

        return albert.AlbertModel(source.config)
    fitting = [kind for kind in KINDS if source.heads == {*kind.heads}]
    if not fitting:
        raise ValueError(
            f"no model of albert_tf has exactly {', '.join(sorted(source.heads))}: leave out "
            "heads with `drop`"
        )
    # Several kinds have a classifier's head: take the one that the model was trained for.
    trained = kinds.kind_of(source.task)
    kind = trained if trained in fitting else fitting[0]
    arguments: dict[str, Any] = {}
    if kind.model in kinds.HEAD_DROPOUT:
        arguments["classifier_dropout_prob"] = kinds.head_dropout(source.path, kind.model)
    if issubclass(kind, Labelled):
        arguments["num_labels"] = source.num_labels
    return model_class(kind)(source.config, **arguments)


_WRITERS: dict[str, Callable[..., str]] = {
    "tf1": write_checkpoint,
    "huggingface": _write_hugging_face,
    "keras": _write_keras,
    "kerashub": _write_kerashub,
}
