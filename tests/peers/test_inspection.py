"""What is seen inside a model of Hugging Face's is what transformers shows."""

from __future__ import annotations

import numpy as np
import pytest

from albert_tf.conversion.stored import Stored
from albert_tf.inspection import attention, models, similarity
from tests import tolerances
from tests.inspection.test_similarity import expected_of, rows_of
from tests.peers import models as peer_models
from tests.peers.test_hugging_face import assert_close, their_config

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("name", ["one_group", "groups2"])
def test_states_and_attention_of_their_model(name, hugging_face, tmp_path):
    config, folder = peer_models.CONFIGS[name], tmp_path / "theirs"
    hugging_face(
        "save",
        architecture="AlbertForPreTraining",
        config=their_config(config),
        directory=folder,
        seed=3,
    )
    features = peer_models.inputs(config)
    names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    theirs = {names.get(n, n): x for n, x in features.items() if n != "masked_lm_positions"}
    np.savez(tmp_path / "in.npz", **theirs)
    hugging_face("look", directory=folder, inputs=tmp_path / "in.npz", outputs=tmp_path / "out.npz")
    model = models.load_encoder(Stored(str(folder)))
    states = np.stack(models.layer_states(model, features))
    with np.load(tmp_path / "out.npz") as found:
        assert_close(states, found["hidden_states"][: len(states)], "states")
        assert_close(attention.probabilities(model, features), found["attentions"], "attention")
        expected = expected_of(
            found["hidden_states"][: len(states)].astype(np.float64), features["input_mask"]
        )
    distances = similarity.measure(model, rows_of(features))
    np.testing.assert_allclose(distances, expected, rtol=0, atol=tolerances.INSPECTED)
