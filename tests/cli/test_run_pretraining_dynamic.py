"""run_pretraining.py on compact records: it learns, resumes, evaluates, as on static ones.

Masks on several replicas are in tests/records/test_input_pipeline.py. Not tested here: TPUs,
several machines.
"""

import pathlib
import shutil

import numpy as np
import pytest

from albert_tf.cli import pretrain
from albert_tf.records.masking import MaskingSettings
from albert_tf.records.spec import RowFormat
from albert_tf.storage import checkpoint, eval_results
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary
from tests.kit import pretraining_runs as runs
from tests.kit import tolerances
from tests.kit.files import refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Two files of records, fewer than six batches of 12, and a config."""
    folder = tmp_path_factory.mktemp("dynamic")
    runs.write_records(folder / "a.tfrecord", runs.compact_examples(41, seed=1))
    runs.write_records(folder / "b.tfrecord", runs.compact_examples(29, seed=2))
    runs.write_config(folder / "albert_config.json")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(48))]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    words = Vocabulary.read(str(folder / "vocab.txt"), True, do_lower_case=False)
    vocabulary.keep_beside_records(words, str(folder / "a.tfrecord"))
    return folder


@pytest.mark.parametrize(
    ("changes", "dynamic", "share"),
    [
        ({}, False, None),
        ({"masking": "static"}, False, None),
        ({"masking": "dynamic"}, True, 0.15),
        ({"masked_lm_budget": 0.3}, True, 0.3),
        ({"masking": "dynamic", "masked_lm_prob": 0.3, "ngram": 2}, True, 0.3),
        ({"masked_lm_prob": 0.3, "mask_replace_prob": 0.5, "random_replace_prob": 0.4}, True, 0.3),
    ],
)
def test_the_budget_of_the_release_is_a_share_of_the_tokens(folder, changes, dynamic, share):
    settings = runs.parse(runs.command(folder, **changes))
    assert settings.has_dynamic_masks == dynamic
    masks = settings.mask_settings(RowFormat(23, 53, 0, 2, 3, 4))
    others = {name: value for name, value in changes.items() if name == "ngram"}
    shares = {name: value for name, value in changes.items() if "replace" in name}
    if dynamic:
        assert masks == MaskingSettings(53, 4, share, 5, **others, **shares)
    # An evaluation's shares don't vary, so that its losses are comparable.
    evaluation = settings.eval_mask_settings(RowFormat(23, 53, 0, 2, 3, 4))
    assert evaluation == MaskingSettings(53, 4, 0.15, 5, **others)


@pytest.mark.parametrize(("share", "most"), [(None, 4), (0.3, 7)])
def test_no_limit_of_predictions_is_what_a_full_row_needs(folder, share, most):
    changes = {"masking": "dynamic", "max_predictions_per_seq": 0}
    settings = runs.parse(runs.command(folder, **changes, masked_lm_budget=share or 0))
    masks = settings.mask_settings(RowFormat(23, 53, 0, 2, 3, 4))
    # 0.15 and 0.3 of 23 tokens are 3.45 and 6.9.
    assert masks.max_predictions_per_seq == most


def test_a_vocab_size_that_is_not_that_of_the_records_vocabulary(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "train", lambda *_: pytest.fail("it trains"))
    flags = {"masking": "dynamic", "output_dir": tmp_path / "out", "vocab_size": 1080}
    with refused("has 53 pieces, but the model's vocab_size is 1080: .*--vocab_size", folder):
        runs.main(runs.command(folder, **flags))


@pytest.mark.slow
def test_it_learns_in_bfloat16_saves_float32_and_warns_of_few_predictions(folder, tmp_path, caplog):
    changes = {"masked_lm_budget": 0.3, "do_permutation": True, "precision": "bfloat16"}
    changes |= {"num_train_steps": 40, "learning_rate": 0.03}
    runs.main(runs.command(folder, output_dir=tmp_path, **changes))
    losses = [values["loss"] for values in runs.scalars(tmp_path).values()]
    # The losses of single batches differ by about 0.1.
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.4
    # 0.3 of 23 tokens are 7, not 5.
    assert "max_predictions_per_seq=5 masks 21.7 % of a full example, not 30.0 %: 7" in caplog.text
    values = runs.tensors(tmp_path / "model.ckpt-40")
    assert values.pop("global_step") == 40
    assert {value.dtype for value in values.values()} == {np.dtype("float32")}


@pytest.mark.slow
@pytest.mark.usefixtures("counted")
def test_resumed_and_shared_runs_see_the_same_masks(folder, tmp_path):
    """Ten updates over more than one epoch, resumed at four; an evaluation on two replicas."""

    def flags(name: str, **changes) -> list[str]:
        own = {"masking": "dynamic", "save_checkpoints_steps": 4, "do_eval": True}
        return runs.command(folder, output_dir=tmp_path / name, **{**own, **changes})

    one, again, two = (tmp_path / name for name in ("one", "again", "two"))
    runs.main(flags("one"))
    for out, step in ((again, 4), (two, 10)):
        out.mkdir()
        shutil.copy(one / "albert_config.json", out)
        checkpoint.save(str(out), step, checkpoint.read(str(one / f"model.ckpt-{step}")), 1)
    evaluating = runs.start(flags("two", do_train=False), tmp_path / "two.log", cpus=2)
    runs.main(flags("again"))
    assert evaluating.wait() == 0, evaluating.log
    assert "MirroredStrategy with 2 replica(s)" in evaluating.log

    # The records' vocabulary is kept beside the checkpoints, even if it was missing there before.
    for out in (one, again):
        kept = vocabulary.find(str(out / "model.ckpt-10"))
        assert (kept.path, kept.form) == (str(out / "vocab.txt"), (False, False))
    (again / "vocab.txt").write_text("\n".join(kept.tokenizer.convert_ids_to_tokens(range(52))))
    with pytest.raises(SystemExit, match="again/vocab.txt is another vocabulary than .*a.vocab"):
        runs.main(flags("again"))
    assert list(runs.scalars(again)) == [5, 6, 7, 8, 9, 10]
    runs.assert_same_bits(again / "model.ckpt-10", one / "model.ckpt-10")
    found = {out.name: eval_results.read_last(out) for out in (one, again, two)}
    assert found["again"] == found["one"]
    assert found["two"] == pytest.approx(found["one"], abs=tolerances.TRAJECTORY_LOSS)
