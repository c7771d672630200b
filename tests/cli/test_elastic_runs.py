"""Runs that train for several depths: scores of each, and depths that the model lacks.

Losses and gradients are in tests/tasks/test_elastic.py. Not tested here: how good each depth is.
"""

import pathlib
import shutil
from typing import Any

import pytest

from albert_tf.cli import export
from albert_tf.config import AlbertConfig
from albert_tf.serving import predict
from albert_tf.serving.settings import ExportSettings, PredictionSettings
from albert_tf.storage import eval_results
from tests.kit import finetune_runs, tiny
from tests.kit import pretraining_runs as runs
from tests.kit.files import refused


def shallower(out: pathlib.Path, layers: int) -> pathlib.Path:
    """Returns a copy of a run's weights whose config has fewer layers."""
    copy = shutil.copytree(out, out.with_name(f"{layers} layers"))
    for name in ("run.json", "eval_results.txt", "eval_results.jsonl"):
        (copy / name).unlink()
    config = AlbertConfig.from_json_file(copy / "albert_config.json").to_dict()
    config = AlbertConfig.from_dict({**config, "num_hidden_layers": layers})
    (copy / "albert_config.json").write_text(config.to_json())
    return copy


def scores(directory: pathlib.Path) -> dict[str, float]:
    """Returns the scores in eval_results.txt."""
    lines = (directory / "eval_results.txt").read_text().splitlines()
    pairs = [line.split(" = ") for line in lines if " = " in line]
    return {name.strip(): value for name, value in pairs}


def test_pre_training_evaluates_each_depth(folder, tmp_path):
    config = runs.write_config(tmp_path / "deep.json", num_hidden_layers=3)
    out = tmp_path / "out"
    flags: dict[str, Any] = {"albert_config_file": config, "output_dir": out, "num_train_steps": 2}
    flags |= {"elastic_depths": "1,2", "elastic_weight": 0.5}
    runs.main(runs.command(folder, **flags, do_eval=True))
    found = eval_results.read_last(str(out))
    for depth in (1, 2):
        copy = shallower(out, depth)
        given = {"albert_config_file": None, "output_dir": copy, "do_train": False}
        # The flag is as in the copy's former run: depths that the copy lacks are ignored.
        given |= {"init_checkpoint": copy / "model.ckpt-2", "elastic_depths": "1,2"}
        runs.main(runs.command(folder, **given, do_eval=True))
        for name in ("masked_lm_loss", "sentence_order_accuracy"):
            assert found[f"{name}_after_{depth}"] == pytest.approx(float(scores(copy)[name]))


def test_fine_tuning_scores_each_depth_and_any_can_be_exported(tmp_path, saved):
    config = finetune_runs.write_config(tmp_path, num_hidden_layers=3)
    flags = {"albert_config_file": config, "do_train": True, "do_eval": True}
    finetune_runs.main(finetune_runs.command("mrpc", tmp_path, **flags, elastic_depths="1,2"))
    found = eval_results.read(str(tmp_path / "out"), 4)
    for depth in (1, 2):
        copy = shallower(tmp_path / "out", depth)
        given = {"init_checkpoint": copy / "model.ckpt-4", "from_scratch": None, "do_eval": True}
        given |= {"albert_config_file": None, "output_dir": tmp_path / f"of {depth}"}
        finetune_runs.main(finetune_runs.command("mrpc", tmp_path, **given))
        for name in ("eval_loss", "eval_accuracy"):
            expected = scores(tmp_path / f"of {depth}")[name]
            assert found[f"{name}_after_{depth}"] == pytest.approx(float(expected))
        exported = {
            "task": "classify",
            "pairs": True,
            "export_dir": str(tmp_path / f"exported {depth}"),
        }
        for model, layers in ((tmp_path / "out", depth), (copy, None)):
            given = {**exported, "model": f"{model}/model.ckpt-4", "num_hidden_layers": layers}
            export.main(tiny.parse(ExportSettings, **given))
        cut, whole = (predict.from_model(served) for served in saved[-2:])
        texts = ["A dog sleeps.\tA cat is awake.", "Rain.\tIt rains."]
        assert cut(texts) == whole(texts)
        # albert-predict answers the same without an export.
        given = {"model": f"{tmp_path}/out/model.ckpt-4", "task": "classify", "depth": depth}
        assert predict.load(tiny.parse(PredictionSettings, **given))(texts) == whole(texts)
        # A config of another depth is still a mistake.
        given = {**exported, "model": f"{tmp_path}/out/model.ckpt-4"}
        given["albert_config_file"] = str(copy / "albert_config.json")
        with refused("num_hidden_layers 3 there, "):
            export.main(tiny.parse(ExportSettings, **given))
    # One export can also hold all depths.
    given = {**exported, "model": f"{tmp_path}/out/model.ckpt-4"}
    export.main(tiny.parse(ExportSettings, **given, depths="2,1"))
    assert saved[-1].depths == (2, 1)
    with refused("--depths must be different numbers from 1 to 2, .* got 3"):
        export.main(tiny.parse(ExportSettings, **given, depths="3"))


@pytest.mark.parametrize("given", ["0", "3", "1,1", "x", "1.5", "-1"])
def test_depths_that_the_model_lacks_are_refused(folder, tmp_path, given):
    config = runs.write_config(tmp_path / "deep.json", num_hidden_layers=3)
    flags = {"albert_config_file": config, "output_dir": tmp_path / "out", "elastic_depths": given}
    with refused(r"--elastic_depths must be different numbers from 1 to 2.*got " + given):
        runs.main(runs.command(folder, **flags))


def test_layers_of_several_groups_have_one_depth(folder, tmp_path):
    """A model of fewer layers would apply the groups at other layers."""
    config = {"num_hidden_layers": 4, "num_hidden_groups": 2}
    given = {"albert_config_file": runs.write_config(tmp_path / "deep.json", **config)}
    given |= {"output_dir": tmp_path / "out", "num_train_steps": 1}
    with refused("--elastic_depths needs layers that share all weights"):
        runs.main(runs.command(folder, **given, elastic_depths="2"))
    runs.main(runs.command(folder, **{**given, "output_dir": tmp_path / "two"}))
    exported = {"model": str(tmp_path / "two"), "task": "fill_mask", "num_hidden_layers": 2}
    with refused("two has layers of several groups"):
        export.main(tiny.parse(ExportSettings, **exported, export_dir=str(tmp_path / "exported")))


def test_vectors_are_trained_for_one_depth(tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("text,text_pair,label\na,b,1\nc,d,0\n")
    flags = {"train_file": pairs, "text_pair_column": "text_pair", "data_dir": None}
    flags |= {"do_train": True, "elastic_depths": "1"}
    with refused("--elastic_depths does not apply to this task"):
        finetune_runs.main(finetune_runs.command("embedding", tmp_path, **flags))
