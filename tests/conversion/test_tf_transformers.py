"""tf_model.h5 of transformers' TFAlbert classes: our outputs equal theirs.

Not tested here: names in versions between the two that wrote tests/golden/tf_transformers.
"""

import pathlib
import shutil

import h5py
import numpy as np
import pytest

import albert_tf
from tests.kit import goldens
from tests.kit.files import refused

ROOT = pathlib.Path(__file__).parents[1] / "golden/tf_transformers"
# Hugging Face's output names -> ours; in version 3.5.1 outputs have an order instead of names.
OUTPUTS = {name: name for name in ("start_logits", "end_logits")}
OUTPUTS |= {"last_hidden_state": "sequence_output", "pooler_output": "pooled_output"}
OUTPUTS |= {"prediction_logits": "masked_lm_logits", "sop_logits": "sentence_order_logits"}
ORDERS = {
    "AlbertForPreTraining": ("masked_lm_logits", "sentence_order_logits"),
    "AlbertForQuestionAnswering": ("start_logits", "end_logits"),
}


def load(folder, **options):
    name = "AlbertForPreTraining" if folder.name == "AlbertForMaskedLM" else folder.name
    if name in ("AlbertForSequenceClassification", "AlbertForTokenClassification"):
        options["num_labels"] = 3
    return getattr(albert_tf, name).from_weights(folder, **options)


FOLDERS = sorted(ROOT.glob("*/Albert*"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f"{f.parent.name}-{f.name}")
def test_outputs_are_theirs(folder):
    stored, prefix = goldens.arrays(folder.parent / "outputs.npz"), f"{folder.name}/"
    expected = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
    ids = expected.pop("ids")
    features = {"input_ids": ids, "input_mask": np.ones_like(ids)}
    features["segment_ids"] = np.zeros_like(ids)
    if folder.name in ("AlbertForPreTraining", "AlbertForMaskedLM"):
        features["masked_lm_positions"] = np.arange(ids.shape[1])[None]
    found = load(folder)(features)
    for theirs, values in expected.items():
        order = ORDERS.get(folder.name, ("logits",))
        ours = order[int(theirs)] if theirs.isdecimal() else OUTPUTS.get(theirs, "logits")
        if folder.name == "AlbertForMaskedLM":
            ours = "masked_lm_logits"
        mine = found[ours] if isinstance(found, dict) else found
        np.testing.assert_allclose(np.asarray(mine), values, atol=1e-6)
    assert expected


@pytest.mark.parametrize("name", [b"kernel:0", b"pooler", b"tf_albert_model"])
def test_a_name_that_is_not_utf_8_is_named(name, tmp_path):
    folder = shutil.copytree(ROOT / "4.57.6" / "AlbertModel", tmp_path / "AlbertModel")
    file = folder / "tf_model.h5"
    assert name in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(name, b"\xff" + name[1:]))
    with refused(r"tf_model\.h5 is damaged .*xff", exception=ValueError):
        load(folder)


def test_a_weight_that_is_there_twice_must_be_the_same(tmp_path):
    name = "AlbertForPreTraining"
    folder = shutil.copytree(ROOT / "4.57.6" / name, tmp_path / name)
    with h5py.File(folder / "tf_model.h5", "r+") as stored:
        layer = stored["predictions/tf_albert_for_pre_training/albert/embeddings/LayerNorm"]
        layer["beta:0"][...] += 1
    with pytest.raises(ValueError, match="albert.embeddings.LayerNorm.bias twice"):
        load(folder)
