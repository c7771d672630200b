"""A student learns a fine-tuned teacher's probabilities as well as the labels."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf import conversion
from albert_tf.answers.kind import checked_options
from albert_tf.conversion import kinds, layouts
from albert_tf.conversion import labels as labels_file
from albert_tf.conversion.names import CLASSIFIER, POOLER
from albert_tf.storage import checkpoint, files
from albert_tf.storage.run_record import RUN_FILE
from albert_tf.tasks import feature_table, glue, supervised_run
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.losses import TEACHER_PROBABILITIES, Distillation
from albert_tf.tasks.supervised import probabilities_file
from albert_tf.tasks.supervised_run import Split
from albert_tf.text import vocabulary
from albert_tf.training import length_buckets
from albert_tf.training.evaluation import RowOutputs
from albert_tf.training.interfaces import Devices


class Teacher:
    """A fine-tuned model of the student's task; its sizes and its vocabulary may differ.

    Args:
      path: The output directory of the teacher's run, or any path that `load_weights` takes.
      task: The student's task, which is changed to learn from the teacher.
      distillation: The weight and temperature of the teacher's part of the loss.
      batch_size: Number of rows that the teacher predicts at a time, over all replicas.
      task_name: Name of the student's task.
    """

    def __init__(
        self, path: str, task: Any, distillation: Distillation, batch_size: int, task_name: str
    ) -> None:
        if not task.can_learn_from_teacher:
            raise ValueError(
                "`teacher` applies only to tasks with one class per word, or per text that is "
                "read as a whole, without `windows`: leave it out"
            )
        # A teacher without a trained head would teach random probabilities.
        self._path = checkpoint.best(path) or path
        stored = layouts.find(self._path).read_weights(self._path)
        pooler = (f"{POOLER}dense/kernel",) if task.model_class.reads_pooler else ()
        lacking = [name for name in (*CLASSIFIER, *pooler) if name not in stored]
        if lacking:
            raise ValueError(
                f"`teacher` {self._path} lacks {', '.join(lacking)}: fine-tune it first"
            )
        found = vocabulary.find(self._path)
        if found is None:
            raise FileNotFoundError(f"`teacher` {path} has no vocabulary beside it: put it there")
        config = layouts.read_config(self._path)
        found.check(config)
        # The teacher reads texts as in its own run, if that is known, or else as the student does.
        trained = kinds.find(self._path)
        reading: dict[str, Any] = {}
        if trained:
            where = f"{RUN_FILE} of the teacher"
            reading = checked_options(type(task.kind), trained.kind, where)
            reading.pop("labels", None)
        self._task = copy.copy(task)
        self._task.kind = task.kind.replace(**reading)
        config.check_length(self._task.kind.max_seq_length, f"`teacher` {path}'s")
        # Probabilities are comparable only for the same task with the same classes.
        if trained and (
            kinds.is_another(trained, task.record(task_name))
            or glue.are_two(trained.name, task_name)
        ):
            raise ValueError(
                f"`teacher` {path} was trained for {trained.name}: give a teacher for this task"
            )
        named = labels_file.stored(self._path)
        if sorted(named) != sorted(task.classes):
            raise ValueError(
                f"`teacher` {path} has the classes {', '.join(named) or 'unknown'}, but the task "
                f"has {', '.join(task.classes)}: give a teacher for this task"
            )
        # The digest ties stored probabilities to these weights.
        self._digest = hashlib.sha256()
        for name, value in sorted(stored.items()):
            self._digest.update(name.encode())
            self._digest.update(np.ascontiguousarray(value).tobytes())
        self._batch_size = batch_size
        # Columns of the teacher's probabilities in the order of the student's classes.
        # The teacher may have the same classes in another order.
        self._order = [named.index(name) for name in task.classes]
        self._task.options = dataclasses.replace(task.options, config=config)
        self._task.tokenizer = found.tokenizer
        self._task.prefix = ""  # Its files are in a folder of their own.
        task.distillation = distillation
        task.labels = (*task.labels, TEACHER_PROBABILITIES)

    def teach(self, devices: Devices, split: Split, folder: str) -> Split:
        """Returns the training split with the teacher's probabilities.

        They are stored for later runs, in a folder within `folder` whose name has a digest of the
        teacher and the examples.
        """
        settings = {**self._task.settings, "weights": self._digest.hexdigest()}
        digest = feature_table.examples_digest(split.examples, [feature_table.FORMAT, settings])
        folder = os.path.join(folder, f"teacher-{digest}")
        is_missing = not files.exists(probabilities_file(folder, "train"))
        # On a network file system one worker may not see the file yet, and can't predict alone.
        if devices.any_process(is_missing):
            predictions = self._predict(devices, split)
            if devices.is_chief:
                tf.io.gfile.makedirs(folder)
                self._task.store(folder, "train", split.examples, predictions)
            devices.wait_for_all()  # Until the chief has written the file.
        # Read them back, so that this run and later ones have the same, rounded numbers.
        stored = self._task.average([folder], "train", split.examples)[:, self._order]
        features = self._task.with_probabilities(split.examples, split.features, stored)
        return dataclasses.replace(split, features=features)

    def _predict(self, devices: Devices, split: Split) -> np.ndarray:
        task = self._task
        # Build the teacher for its own config, and load its weights.
        with devices.scope():
            model = task.build_model()
        conversion.load_weights(model, self._path)
        logging.info("teacher: %s predicts %d examples", self._path, len(split.examples))
        features = FeatureTable.from_rows(task.rows(split.examples, is_training=False))
        # Choose few lengths where XLA compiles each of them.
        price = 0.0
        if devices.static_shapes:
            price = length_buckets.compile_price(task.options.config, devices.on_cpu)
        longest, on_cpu = task.kind.max_seq_length, devices.on_cpu
        lengths = length_buckets.choose_static_lengths(
            features.lengths, longest, price=price, on_cpu=on_cpu
        )
        # The rows are the teacher's own, made with its vocabulary; the examples are the student's.
        own = Split(split.examples, features, self._batch_size, lengths)
        return supervised_run.predict(task, RowOutputs(devices, model), own, self._path)
