"""Models go to and come from the real KerasHub, and compute the same there."""

import numpy as np
import pytest

import albert_tf
from albert_tf.conversion import arrays
from albert_tf.conversion.convert import convert
from tests.kit import goldens, tolerances
from tests.kit.tiny import randomise
from tests.peers import models
from tests.peers.models import assert_close

SENTENCE_ORDER = ["cls/seq_relationship/"]

pytestmark = pytest.mark.peers


def backbone(keras_hub, config, **changes):
    return keras_hub.models.AlbertBackbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        embedding_dim=config.embedding_size,
        hidden_dim=config.hidden_size,
        intermediate_dim=config.intermediate_size,
        num_groups=config.num_hidden_groups,
        num_inner_repetitions=config.inner_group_num,
        dropout=config.hidden_dropout_prob,
        max_sequence_length=config.max_position_embeddings,
        num_segments=config.type_vocab_size,
        **changes,
    )


def identity_mapping(theirs, config):
    if config.embedding_size == config.hidden_size:
        mapping = theirs.get_layer("embedding_projection")
        mapping.kernel.assign(np.eye(config.hidden_size))
        mapping.bias.assign(np.zeros(config.hidden_size))


def their_features(features) -> dict:
    names = {"token_ids": "input_ids", "segment_ids": "segment_ids", "padding_mask": "input_mask"}
    return {name: features[ours] for name, ours in names.items()}


def assert_same_outputs(ours, theirs, config):
    """`theirs` is an AlbertMaskedLM, whose normalisation has an epsilon of its own."""
    features = models.inputs(config)
    actual, expected = ours(features), theirs.backbone(their_features(features))
    # Padding: there, it attends to nothing outside of itself either way; here as in the release.
    kept = features["input_mask"].astype(bool)
    states = (np.asarray(of["sequence_output"])[kept] for of in (actual, expected))
    assert_close(*states, "sequence_output")
    assert_close(actual["pooled_output"], expected["pooled_output"], "pooled_output")
    theirs.masked_lm_head._intermediate_layer_norm.epsilon = 1e-12
    logits = theirs.masked_lm_head(expected["sequence_output"], features["masked_lm_positions"])
    ours = np.asarray(actual["masked_lm_logits"])
    assert_close(ours[kept], np.asarray(logits)[kept], "masked_lm_logits")


@pytest.mark.parametrize("name", models.CONFIGS)
def test_theirs_here(name, keras_hub, tmp_path):
    config, folder = models.CONFIGS[name], str(tmp_path / "theirs")
    theirs = keras_hub.models.AlbertMaskedLM(backbone(keras_hub, config), preprocessor=None)
    randomise(theirs)
    identity_mapping(theirs.backbone, config)
    theirs.save_to_preset(folder)
    assert albert_tf.load_config(folder) == config
    model = albert_tf.AlbertForPreTraining(config)
    report = albert_tf.load_weights(model, folder)
    assert ["seq_relationship" in path for path in report.missing] == [True, True]
    assert report.unused == ()
    assert_same_outputs(model, theirs, config)

    convert(folder, "kerashub", str(tmp_path / "again"))
    for file in ("model.weights.h5", "task.weights.h5"):
        before, _ = arrays.read_hdf5(str(tmp_path / "theirs" / file), file)
        after, _ = arrays.read_hdf5(str(tmp_path / "again" / file), file)
        assert set(before) == set(after)
        for name, value in before.items():
            assert value.tobytes() == after[name].tobytes(), name


@pytest.mark.parametrize("name", models.CONFIGS)
def test_ours_there(name, keras_hub, tmp_path):
    config = models.CONFIGS[name]
    model = randomise(albert_tf.AlbertForPreTraining(config))
    model.save(tmp_path / "ours.keras")
    folder = str(tmp_path / "theirs")
    convert(str(tmp_path / "ours.keras"), "kerashub", folder, drop=SENTENCE_ORDER)
    theirs = keras_hub.models.AlbertMaskedLM.from_preset(folder, preprocessor=None)
    assert_same_outputs(model, theirs, config)

    again = albert_tf.AlbertForPreTraining(albert_tf.load_config(folder))
    again.seq_relationship.set_weights(model.seq_relationship.get_weights())
    report = albert_tf.load_weights(again, folder)
    assert len(report.missing) == 2
    models.assert_same_weights(again, model)


def test_a_backbone_there(keras_hub, golden, tmp_path):
    """Its outputs are those that the release computed."""
    folder = str(tmp_path / "theirs")
    convert(str(golden / "encoder" / "base"), "kerashub", folder, drop=["cls/"])
    features = goldens.inputs("base")
    theirs = keras_hub.models.AlbertBackbone.from_preset(folder)(their_features(features))
    expected = goldens.outputs("base")["pooled_output"]
    some = features["input_mask"].any(axis=1)  # A row without a piece is another matter.
    pooled = np.asarray(theirs["pooled_output"])[some]
    np.testing.assert_allclose(pooled, expected[some], rtol=0, atol=tolerances.OUTPUT)


def test_a_classifier_both_ways(keras_hub, golden, tmp_path):
    source = golden / "heads" / "classifier"
    there = str(tmp_path / "theirs")
    convert(str(source), "kerashub", there)
    theirs = keras_hub.models.AlbertTextClassifier.from_preset(there, preprocessor=None)
    features = goldens.arrays(source / "inputs.npz")
    logits = theirs(their_features(features))
    expected = goldens.arrays(source / "outputs.npz")["logits"]
    np.testing.assert_allclose(np.asarray(logits), expected, rtol=0, atol=tolerances.OUTPUT)

    theirs.save_to_preset(str(tmp_path / "saved"))
    config = albert_tf.load_config(tmp_path / "saved")
    pair = [albert_tf.AlbertForSequenceClassification(config, num_labels=3) for _ in range(2)]
    for model, path in zip(pair, (source, tmp_path / "saved"), strict=True):
        report = albert_tf.load_weights(model, path)
        assert report.missing == report.unused == ()
    models.assert_same_weights(*pair)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # It closes no file.
def test_tokens_there(keras_hub, golden, tmp_path):
    """The text is lower-case: KerasHub's tokenizer leaves that to the SentencePiece model."""
    spm = golden / "spm" / "en_small.model"
    tokenizer = albert_tf.Tokenizer(spm_model_file=str(spm))
    config = goldens.config("base", vocab_size=tokenizer.vocab_size)
    randomise(albert_tf.AlbertForPreTraining(config)).save(tmp_path / "ours.keras")
    folder = str(tmp_path / "theirs")
    given = {"spm_model_file": str(spm), "drop": SENTENCE_ORDER}
    convert(str(tmp_path / "ours.keras"), "kerashub", folder, **given)
    text = "in the beginning god created the heaven"
    theirs = keras_hub.models.AlbertMaskedLM.from_preset(folder)
    assert theirs.preprocessor.sequence_length == config.max_position_embeddings
    assert list(theirs.preprocessor.tokenizer(text)) == tokenizer.encode(text)
    size = 1 + max(tokenizer.mask_id, tokenizer.vocab_size - 1)
    assert keras_hub.models.AlbertTokenizer.from_preset(folder).vocabulary_size() == size
