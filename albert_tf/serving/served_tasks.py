"""Turns a stored or in-memory model into one that takes raw text."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from albert_tf.answers.classify import Classify
from albert_tf.answers.kind import Kind, Labelled, checked_options
from albert_tf.answers.kinds import KINDS, with_options
from albert_tf.config import AlbertConfig
from albert_tf.conversion import kinds, labels, layouts
from albert_tf.conversion.stored_model import ModelLocation, model_class
from albert_tf.serving import graphs
from albert_tf.serving.graphs.base import ServedModel
from albert_tf.storage import hub
from albert_tf.storage.run_record import RUN_FILE
from albert_tf.tasks.preprocessor import Preprocessor


def graph_of(kind: type[Kind]) -> type[ServedModel]:
    """Returns the class of a kind's graph, which is in the file of graphs/ with the kind's name."""
    home = f"{graphs.__name__}.{kind.__module__.rpartition('.')[2]}"
    importlib.import_module(home)
    there = (each for each in ServedModel.__subclasses__() if each.__module__ == home)
    return next(each for each in there if issubclass(kind, each.kind_class))


def in_graph(model: keras.Model, vocabulary: Any, kind: Kind) -> ServedModel:
    """Returns a model as one that takes raw text in TensorFlow's graph."""
    return graph_of(type(kind))(model, vocabulary, kind)


def load_served(
    task: str, stored: ModelLocation, options: Mapping[str, Any], classes: Sequence[str] = ()
) -> ServedModel:
    """Loads a trained model.

    Args:
      task: The name of its kind.
      stored: Where it is.
      options: The kind's options; options of other kinds are ignored. By default they are those of
        the run that trained the model, if its record lies beside the weights, and labels are read
        from there.
      classes: The stored classes, in the order to serve; see load_weights.
    """
    stored = dataclasses.replace(stored, path=hub.download(stored.path))
    config, vocabulary = stored.config(), stored.vocabulary()
    kind = _stored_kind(task, stored.path, config, options, classes)
    kind.check(config)
    model = model_class(type(kind))(config, **kind.model_arguments)
    lacking = stored.fill(model, classes)
    # Some weights are optional: without the pooler, the output `pooled` is left out.
    parts = [part for part in kind.dispensable if any(name.startswith(part) for name in lacking)]
    if parts:
        without = {name for part in parts for name in kind.dispensable[part]}
        kind = kind.replace(without=tuple(sorted(without)))
        lacking = [name for name in lacking if not name.startswith(tuple(parts))]
    # Without its other weights, a model would answer at random.
    if lacking:
        raise ValueError(f"{stored.path} is not trained for {task}: it lacks {', '.join(lacking)}")
    return in_graph(model, vocabulary, kind)


def _stored_kind(
    task: str,
    path: str,
    config: AlbertConfig,
    given: Mapping[str, Any],
    classes: Sequence[str],
) -> Kind:
    """Returns a stored model's kind; its options are those given, else its run's, else defaults."""
    trained = kinds.find(path)
    # The kind is in the run's record; without one, the task and the stored head tell it.
    known = kinds.kind_of(trained)
    asked = _with_head(task, path)
    if known and known.task != task and asked.is_of_any_encoder:
        known = None
    if known and known.task != task:
        raise ValueError(
            f"{path} is trained for {known.task}, not for {task}: set `task` to {known.task}"
        )
    kind = known or asked
    # Its options: later ones replace earlier ones.
    options: dict[str, Any] = {"max_seq_length": config.max_position_embeddings}
    if trained:
        options |= checked_options(kind, trained.kind, f"{RUN_FILE} beside {path}")
    options |= {name: value for name, value in given.items() if name in kind.option_fields()}
    if issubclass(kind, Labelled):
        # Its labels: one for each row of the stored head.
        count = labels.count(path) or 1
        kinds.check_outputs(path, trained, count)
        if "labels" not in given:
            options["labels"] = labels.find(path, count)
        elif not classes:  # load_weights sorts the head's rows by classes.
            labels.check_order(given["labels"], path)
        options["labels"] = kind.names_of(options["labels"], count)
    return kind(**options)


def _with_head(task: str, path: str) -> type[Kind]:
    """Returns the kind of this name whose head is stored, or else the first one."""
    found = [kind for kind in KINDS if kind.task == task]
    # Kinds of one name, such as the two that answer questions, differ in their heads.
    if len(found) > 1:
        stored = layouts.read_shapes(path)
        found = [k for k in found if any(name.startswith(k.heads) for name in stored)] or found
    return found[0]


def serve_fitted(
    model: keras.Model, preprocess: Preprocessor, options: Mapping[str, Any]
) -> ServedModel:
    """Returns a model in memory as one that takes raw text; see export_saved_model."""
    # A subclass is served as its nearest base that is one of our models.
    bases = type(model).__mro__
    of_bases = ([kind for kind in KINDS if model_class(kind) is base] for base in bases)
    found = next(filter(None, of_bases), [])
    if not found:
        known = ", ".join(dict.fromkeys(kind.model for kind in KINDS))
        raise ValueError(f"{type(model).__name__} can't be exported to take raw text, only {known}")
    kind = with_options(found, options)
    fields = kind.option_fields()
    # Options in order of precedence: as given, as in the model, as in `preprocess`, the default.
    own: dict[str, Any] = {n: value for n, value in preprocess.options.items() if n in fields}
    own |= {name: getattr(model, name) for name in fields if hasattr(model, name)}
    if issubclass(kind, Labelled):
        own["labels"] = _labels(model, preprocess)
    # The loss tells whether a text may have several labels.
    if kind is Classify:
        binary = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
        own["multilabel"] = model.num_labels > 1 and isinstance(
            getattr(model, "loss", None), binary
        )
    asked = kind(**{**own, **options})
    for name, value in asked.model_arguments.items():
        if value != (has := getattr(model, name)):
            raise ValueError(f"`{name}` is {has!r} in the model, and can't become {value!r}")
    return in_graph(model, preprocess.vocabulary, asked)


def _labels(model: keras.Model, preprocess: Preprocessor) -> tuple[str, ...]:
    if model.num_labels > 1:
        return preprocess.labels or tuple(map(str, range(model.num_labels)))
    if preprocess.labels:
        raise ValueError(
            f"`preprocess` has labels ({', '.join(preprocess.labels)}), but the model has one "
            "output, which is a regression: give it an output for each label, or export with a "
            "Preprocessor without labels"
        )
    return ()
