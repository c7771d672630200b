"""Each task in each format, as far as it runs at all and gives the model's numbers.

Sizes, quantisation and drift are in test_other_formats.py, answers to texts in each task's tests.
"""

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import export
from albert_tf.serving import other_formats
from tests import tolerances
from tests.served_tasks import TASKS, make
from tests.tiny import randomise

NO_SCORE = -1e29
# Of which spans there are scores depends on their order, which quantised weights may change.
UNORDERED = {"start_top_index", "end_top_index", "end_top_log_probs"}


@pytest.fixture(scope="module")
def served(vocabulary, config):
    """Makes what serves a task, once for all formats."""

    @functools.cache
    def of(task):
        if task == "fill_mask":  # With all outputs.
            return export.MaskFiller(randomise(albert_tf.AlbertForPreTraining(config)), vocabulary)
        return make(task, vocabulary)

    return of


def features(rank):
    shape = (2, 17) if rank == 2 else (2, 3, 17)
    ids = np.random.default_rng(7).integers(5, 6000, shape, np.int32)
    ids[..., 12] = 3  # [SEP]
    segments = np.broadcast_to(np.arange(17) > 6, shape).astype(np.int32)
    return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}


def runner(directory, file_format):
    """Returns what runs a file: features to outputs by name."""
    path = str(directory / other_formats.FORMATS[file_format])
    if file_format.startswith("onnx"):
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(path)
        names = [output.name for output in session.get_outputs()]
        return lambda batch: dict(zip(names, session.run(names, batch), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = tf.lite.Interpreter(path).get_signature_runner()
    return lambda batch: run(**batch)


# In the tests of taggers; and SavedModels of these in test_served_models.py.
IN_OTHER_TESTS = [("saved_model", "classify"), ("saved_model", "fill_mask")]
CASES = [
    pytest.param(file_format, task, marks=pytest.mark.peers if "onnx" in file_format else ())
    for file_format in ("saved_model", *other_formats.FORMATS)
    for task in TASKS
    if task != "tag" and (file_format, task) not in IN_OTHER_TESTS
]


@pytest.mark.parametrize(("file_format", "task"), CASES)
def test_it_runs_and_gives_the_models_numbers(served, tmp_path, task, file_format):
    model, batch = served(task), features(served(task).feature_rank)
    directory, tolerance = tmp_path / "exported", tolerances.OUTPUT
    if file_format == "saved_model":
        export.save(model, directory)
        found = tf.saved_model.load(str(directory)).signatures["features"](
            **{name: tf.constant(value) for name, value in batch.items()}
        )
        expected = model.run(batch)
    else:
        if file_format.startswith("onnx"):
            pytest.importorskip("onnxruntime")
            pytest.importorskip("tf2onnx")
        other_formats.save(model, directory, file_format)
        found = runner(directory, file_format)(batch)
        expected = model.numbers({name: tf.constant(value) for name, value in batch.items()})
        assert (directory / "labels.jsonl").exists() == (task == "classify")
    assert set(found) == set(expected)
    for name, value in expected.items():
        if file_format.endswith("int8"):
            tolerance = tolerances.INT8_OUTPUT
            if name in UNORDERED:
                continue
        if value.dtype.is_floating:
            right = np.maximum(value, NO_SCORE)
            np.testing.assert_allclose(
                np.maximum(found[name], NO_SCORE), right, atol=tolerance, err_msg=name
            )
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)
