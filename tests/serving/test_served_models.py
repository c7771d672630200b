"""Served models in the graph: windows, parts, thresholds, nothing; and a fresh process.

What they answer is compared in test_formats.py. Not seen here: TensorFlow Serving, which
test_elsewhere.py asks.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import export
from albert_tf.answers import rows, span
from albert_tf.answers.classify import Classify
from albert_tf.answers.fill import Fill
from albert_tf.answers.span import BeamSpan, Span
from albert_tf.serving import predict
from albert_tf.serving.graphs import base, classify
from albert_tf.serving.graphs import span as graph_span
from albert_tf.serving.graphs import tokenizer as graph_tokenizer
from tests import goldens, tolerances
from tests.served_tasks import KINDS, TASKS, config_for, in_graph, make, model

LENGTHS = {"max_seq_length": 64, "doc_stride": 20, "max_query_length": 12}


@pytest.mark.parametrize("task", TASKS)
def test_no_texts(task, vocabulary):
    served = make(task, vocabulary)
    served.read_texts()
    ranks = served.kind.text_ranks
    texts = {name: tf.zeros([0, 2][:rank], tf.string) for name, rank in ranks.items()}
    assert {len(value) for value in served.answer_texts(**texts).values()} == {0}


def test_masks_are_filled_and_texts_embedded(vocabulary):
    """By the model alone. Text after a [MASK] has no space of its own: "." and not "▁."."""
    tokenizer, kind = vocabulary.tokenizer, Fill(top_k=3, max_seq_length=64)
    encode, mask = tokenizer.encode, tokenizer.mask_id
    after = tokenizer.convert_tokens_to_ids(["."])
    texts = {
        "the [MASK] of France [MASK].": [*encode("the"), mask, *encode("of France"), mask, *after],
        "nothing here": encode("nothing here"),
        "[MASK]": [mask],
        "[MASK]\u3000dog": [mask, *encode("dog")],
    }
    pretrained = model(kind, config_for(vocabulary))
    answers = predict.from_model(export.MaskFiller(pretrained, vocabulary, kind)).outputs(
        [[text] for text in texts]
    )
    for found, ids in zip(answers, texts.values(), strict=True):
        features = rows.join_ids(tokenizer, ids)
        places = np.flatnonzero(features["input_ids"] == mask).astype(np.int32)
        inputs = {name: value[None] for name, value in features.items()}
        outputs = pretrained({**inputs, "masked_lm_positions": places[None]})
        exponentials = np.exp(np.array(outputs["masked_lm_logits"][0], np.float64))
        shares = exponentials / exponentials.sum(axis=1, keepdims=True)
        best = np.argsort(-shares, axis=1)[:, :3]
        assert found["pieces"].tolist() == [*map(tokenizer.convert_ids_to_tokens, best.tolist())]
        expected = {
            "probabilities": np.take_along_axis(shares, best, axis=1),
            "pooled": outputs["pooled_output"][0],
            "mean": np.mean(outputs["sequence_output"][0], axis=0),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, atol=tolerances.OUTPUT, err_msg=name)


@pytest.mark.parametrize(("stride", "room"), [(128, 320), (700, 320), (50, 9)])
def test_windows_are_those_of_the_evaluation(stride, room):
    """Some so much longer than others that it counts as context; none skips a piece."""
    lengths = (330, 900, 5, 0)
    ids = tf.ragged.constant([list(range(length)) for length in lengths], dtype=tf.int32)
    pieces = graph_tokenizer.Pieces(ids, ids, ids, tf.constant([""] * len(lengths)))
    query = tf.ragged.constant([[7]] * len(lengths), dtype=tf.int32)
    cut = graph_span.make_windows(query, pieces, room + 4, stride)
    of_text, texts = classify.text_windows(ids, room + 2, stride)
    row = 0
    for example, length in enumerate(lengths):
        spans = rows.window_spans(length, room, stride)
        best = span.best_spans(spans, length)
        for index, (first, end) in enumerate(spans):
            assert cut.examples[row] == texts[row] == example
            expected = list(range(first, end))
            assert cut.ids[row].numpy().tolist() == of_text[row].numpy().tolist() == expected
            counts = cut.counts[row, : end - first].numpy()
            assert counts.tolist() == (best[first:end] == index).tolist()
            row += 1
    assert row == len(cut.widths) == len(texts)


@pytest.mark.parametrize("kind", [Span(**LENGTHS), BeamSpan(**LENGTHS)])
def test_a_long_context_is_read_in_parts(kind, vocabulary, monkeypatch):
    rng = np.random.default_rng(5)
    words = rng.choice(["the", "cat", "sat", "on", "Zoë's", "½", "bridge."], 2500)
    texts = {"question": ["who?", "where?", "?"], "context": [" ".join(words), "a mat", ""]}

    def ask(positions):
        monkeypatch.setattr(base, "POSITIONS_AT_ONCE", positions)
        served = make(kind, vocabulary)
        apply, seen = served.apply, []
        served.read_texts()

        def recorded(features):
            ids = features["input_ids"]
            tf.py_function(lambda ids: seen.append(tuple(ids.shape)), [ids], [])
            return apply(features)

        served.apply = recorded
        return served.answer_texts(**{k: tf.constant(text) for k, text in texts.items()}), seen

    parts, seen = ask(1024)
    assert len(seen) > 5
    assert max(rows * width for rows, width in seen) <= 1024
    whole, seen = ask(1 << 30)
    assert len(seen) == 1
    for name, expected in whole.items():
        if expected.dtype == tf.string:
            np.testing.assert_array_equal(parts[name], expected)
        else:
            np.testing.assert_allclose(parts[name], expected, atol=tolerances.OUTPUT)


# --- at a threshold ----------------------------------------------------------------------------


@pytest.mark.parametrize("predictor_of", [in_graph, predict.from_model])
def test_null_odds_at_the_threshold_are_no_answer(predictor_of, vocabulary):
    kind, rows = BeamSpan(**LENGTHS, null_threshold=1e30), [["who?", "the cat sat"]]
    (found,) = predictor_of(make(kind, vocabulary)).outputs(rows)
    assert found["answer"] != ""
    kind = kind.replace(null_threshold=float(found["null_odds"]))
    (again,) = predictor_of(make(kind, vocabulary)).outputs(rows)
    assert again["null_odds"] == found["null_odds"] and again["answer"] == ""


@pytest.mark.parametrize(
    ("options", "label"),
    [({}, "no"), ({"threshold": 0.5}, "yes"), ({"multilabel": True}, "no|yes")],
)
def test_a_probability_at_the_threshold_is_enough(options, label, vocabulary):
    kind = Classify(labels=("no", "yes"), **options, max_seq_length=16)
    classifier = model(kind, config_for(vocabulary))
    classifier.set_weights([np.zeros(value.shape) for value in classifier.get_weights()])
    served = export.Classifier(classifier, vocabulary, kind)
    for predictor in (in_graph(served), predict.from_model(served)):
        (found,) = predictor.outputs([["a cat"]])
        assert found["probabilities"].tolist() == [0.5, 0.5]
        assert found["label"] == label


# --- SavedModels -------------------------------------------------------------------------------


def test_examples_whose_features_differ_in_length_are_refused(vocabulary):
    example = tf.train.Example()
    for name, count in (("input_ids", 3), ("input_mask", 3), ("segment_ids", 2)):
        example.features.feature[name].int64_list.value.extend([1] * count)
    serialized = tf.constant([example.SerializeToString()])
    with pytest.raises(tf.errors.InvalidArgumentError, match="segment_ids and input_ids differ"):
        tf.function(make("classify", vocabulary).parse)(serialized)


def test_a_fresh_process_needs_tensorflow_and_its_text_operations_alone(vocabulary, tmp_path):
    served, exported = make("classify", vocabulary), tmp_path / "exported"
    export.save(served, exported)
    program = f"""
import json, sys
import tensorflow as tf
import tensorflow_text
signature = tf.saved_model.load({str(exported)!r}).signatures["serving_default"]
answers = signature(text_a=tf.constant(["a cat"]), text_b=tf.constant(["a dog"]))
assert not any(name.split(".")[0] == "albert_tf" for name in sys.modules)
(label,), (probabilities,) = (answers[name].numpy() for name in ("label", "probabilities"))
print(json.dumps([label.decode(), probabilities.tolist()]))
"""
    # -I: neither this directory nor PYTHONPATH is looked in.
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    (expected,) = predict.from_model(served).outputs([["a cat", "a dog"]])
    label, probabilities = json.loads(done.stdout)
    np.testing.assert_allclose(probabilities, expected["probabilities"], atol=tolerances.OUTPUT)
    assert label == expected["label"]
    (asset,) = (exported / "assets").iterdir()
    with open(vocabulary.path, "rb") as file:
        assert asset.read_bytes() == file.read()


def test_a_vocabulary_of_another_size_is_refused(vocabulary):
    kind = KINDS["labels"]
    with pytest.raises(ValueError, match="has 6000 pieces, but the model's vocab_size is 1000"):
        export.Classifier(model(kind, goldens.config("base")), vocabulary, kind)
