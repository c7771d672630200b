"""Exported models against the models that they were made of, in this process and in a fresh one.

Not seen here: TensorFlow Serving, which test_elsewhere.py asks; saved_model_cli stands in.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import export
from albert_tf.tasks import sequence_features
from tests import goldens, tolerances
from tests.tiny import randomise

TEXTS = ("The Capital of [MASK], 1990, yes.", "", "word " * 90)
PAIRS = (("a cat", "a dog"), ("One text alone.", ""), ("word " * 50, "more " * 70), ("", ""))


@pytest.fixture(scope="module")
def pretrained(config):
    return randomise(albert_tf.AlbertForPreTraining(config))


def saved(served, directory):
    export.save(served, directory)
    return tf.saved_model.load(str(directory))


def one_row(features):
    return {name: value[None] for name, value in features.items()}


@pytest.fixture(scope="module")
def pair_classifier(classifier, vocabulary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("served") / "pairs"
    served = export.Classifier(classifier, vocabulary, ("no", "yes", "maybe"), pairs=True)
    return directory, saved(served, directory)


def test_text_pairs_give_the_models_probabilities(pair_classifier, classifier, vocabulary):
    signature = pair_classifier[1].signatures["serving_default"]
    text_a, text_b = (tf.constant(texts) for texts in zip(*PAIRS, strict=True))
    answers = signature(text_a=text_a, text_b=text_b)
    assert answers["labels"].numpy().tolist() == [[b"no", b"yes", b"maybe"]] * len(PAIRS)
    for row, (a, b) in enumerate(PAIRS):
        # Each by itself: what a text is batched with must not change its answer.
        features = sequence_features.pair_features(vocabulary.tokenizer, a, b, 64)
        logits = np.array(classifier(one_row(features)))[0]
        exponentials = np.exp(logits - logits.max())
        np.testing.assert_allclose(answers["logits"][row], logits, atol=tolerances.OUTPUT)
        np.testing.assert_allclose(
            answers["probabilities"][row], exponentials / exponentials.sum(), atol=tolerances.OUTPUT
        )
        assert answers["label"][row].numpy().decode() == ("no", "yes", "maybe")[logits.argmax()]


def test_all_signatures_answer_alike(pair_classifier, vocabulary):
    signatures = pair_classifier[1].signatures
    texts = signatures["serving_default"](text_a=tf.constant(["a cat"]), text_b=tf.constant(["no"]))
    features = sequence_features.pair_features(vocabulary.tokenizer, "a cat", "no", 64)
    padded = sequence_features.pad_features(features, 31)
    batch = {name: tf.constant(value[None]) for name, value in padded.items()}
    example = tf.train.Example()
    for name, value in padded.items():
        example.features.feature[name].int64_list.value.extend(value.tolist())
    serialized = tf.constant([example.SerializeToString()])
    for answers in (signatures["features"](**batch), signatures["examples"](examples=serialized)):
        np.testing.assert_allclose(answers["logits"], texts["logits"], atol=tolerances.OUTPUT)
        assert answers["label"].numpy() == texts["label"].numpy()


def test_examples_whose_features_differ_in_length_are_refused(pair_classifier):
    example = tf.train.Example()
    for name, count in (("input_ids", 3), ("input_mask", 3), ("segment_ids", 2)):
        example.features.feature[name].int64_list.value.extend([1] * count)
    with pytest.raises(tf.errors.InvalidArgumentError, match="segment_ids and input_ids differ"):
        pair_classifier[1].signatures["examples"](
            examples=tf.constant([example.SerializeToString()])
        )


def test_a_regression_answers_its_score(config, vocabulary):
    model = randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=1))
    served = export.Classifier(model, vocabulary)
    answers = served.text_signature()(text=tf.constant(["a text"]))
    features = sequence_features.pair_features(vocabulary.tokenizer, "a text", None, 64)
    assert set(answers) == {"score"}
    np.testing.assert_allclose(
        answers["score"], np.array(model(one_row(features)))[:, 0], atol=tolerances.OUTPUT
    )


@pytest.fixture(scope="module")
def filler(pretrained, vocabulary, tmp_path_factory):
    served = export.MaskFiller(pretrained, vocabulary, top_k=3)
    return saved(served, tmp_path_factory.mktemp("served") / "masks")


def test_masks_are_filled_and_texts_embedded(filler, pretrained, vocabulary):
    signature = filler.signatures["serving_default"]
    tokenizer = vocabulary.tokenizer
    encode = tokenizer.encode
    mask = tokenizer.mask_id
    # What follows a [MASK] without a space has no space of its own: "." and not "▁.".
    after = tokenizer.convert_tokens_to_ids(["."])
    expected = [
        [*encode("the"), mask, *encode("of France"), mask, *after],
        encode("nothing here"),
        [mask],
    ]
    answers = signature(
        text=tf.constant(["the [MASK] of France [MASK].", "nothing here", "[MASK]"])
    )
    assert answers["pieces"].shape == (3, 2, 3)
    for row, ids in enumerate(expected):
        features = sequence_features.join_ids(tokenizer, ids)
        places = np.flatnonzero(features["input_ids"] == mask).astype(np.int32)
        inputs = one_row({**features, "masked_lm_positions": places})
        outputs = {
            k: np.array(v)[0] for k, v in pretrained(inputs).items() if k != "all_encoder_layers"
        }
        exponentials = np.exp(outputs["masked_lm_logits"].astype(np.float64))
        probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
        of_features = filler.signatures["features"](
            **{name: tf.constant(value[None], tf.int32) for name, value in features.items()}
        )
        assert set(of_features) == set(answers)
        for name in ("probabilities", "mean", "pooled", "swapped"):
            found, of_text = of_features[name][0], answers[name][row]
            if name == "probabilities":
                of_text = of_text[: len(places)]
            np.testing.assert_allclose(found, of_text, atol=tolerances.OUTPUT)
        best = np.argsort(-probabilities, axis=1)[:, :3]
        for slot in range(2):
            pieces = [piece.decode() for piece in answers["pieces"][row, slot].numpy()]
            if slot < len(places):
                assert pieces == tokenizer.convert_ids_to_tokens(best[slot].tolist())
                wanted = probabilities[slot, best[slot]]
            else:
                assert pieces == ["", "", ""]
                wanted = np.zeros(3)
            np.testing.assert_allclose(
                answers["probabilities"][row, slot], wanted, atol=tolerances.OUTPUT
            )
        np.testing.assert_allclose(
            answers["pooled"][row], outputs["pooled_output"], atol=tolerances.OUTPUT
        )
        np.testing.assert_allclose(
            answers["mean"][row], outputs["sequence_output"].mean(axis=0), atol=tolerances.OUTPUT
        )


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\v"])
def test_any_white_space_parts_a_mask_from_a_word(space, filler):
    signature = filler.signatures["serving_default"]
    texts = tf.constant([f"[MASK]{gap}dog" for gap in (" ", space, "")])
    spaced, parted, glued = signature(text=texts)["pooled"].numpy()
    np.testing.assert_allclose(parted, spaced, atol=tolerances.OUTPUT)
    assert np.abs(glued - spaced).max() > 10 * tolerances.OUTPUT


def test_a_fresh_process_needs_tensorflow_and_its_text_operations_alone(pair_classifier):
    directory, loaded = pair_classifier
    program = f"""
import json, sys
import tensorflow as tf
import tensorflow_text
signature = tf.saved_model.load({str(directory)!r}).signatures["serving_default"]
answers = signature(text_a=tf.constant(["a cat"]), text_b=tf.constant(["a dog"]))
assert not any(name.split(".")[0] == "albert_tf" for name in sys.modules)
print(json.dumps(answers["probabilities"].numpy().tolist()))
from tensorflow.python.tools import saved_model_cli
sys.argv = ["saved_model_cli", "run", "--dir", {str(directory)!r}, "--tag_set", "serve"]
sys.argv += ["--signature_def", "serving_default"]
sys.argv += ["--input_exprs", "text_a=[b'a cat'];text_b=[b'a dog']"]
saved_model_cli.main()
"""
    # -I: neither this directory nor PYTHONPATH is looked in.
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    expected = loaded.signatures["serving_default"](
        text_a=tf.constant(["a cat"]), text_b=tf.constant(["a dog"])
    )
    loaded_anew, _, by_command = done.stdout.partition("\n")
    np.testing.assert_allclose(
        json.loads(loaded_anew), expected["probabilities"], atol=tolerances.OUTPUT
    )
    label = expected["label"][0].numpy().decode()
    assert f"Result for output key label:\n[b'{label}']" in by_command


def test_the_vocabulary_lies_inside(pair_classifier, vocabulary):
    (asset,) = (pair_classifier[0] / "assets").iterdir()
    with open(vocabulary.path, "rb") as file:
        assert asset.read_bytes() == file.read()


def test_a_threshold_needs_two_labels(classifier, vocabulary):
    with pytest.raises(ValueError, match="`threshold` must be .* needs two labels"):
        export.Classifier(classifier, vocabulary, ("a", "b", "c"), threshold=0.5)


def test_a_vocabulary_of_another_size_is_refused(vocabulary):
    model = albert_tf.AlbertForSequenceClassification(goldens.config("base"), num_labels=3)
    with pytest.raises(ValueError, match="has 6000 pieces, but the model's vocab_size is 1000"):
        export.Classifier(model, vocabulary, ("a", "b", "c"))
