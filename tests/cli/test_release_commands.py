"""The command lines of the release's README and run_glue.sh, with their flags as they stand there.

Not tested here: the scores that they reach, and files of real size.
"""

import json
import math
import pathlib
import shlex
from typing import Any

import pytest
import tensorflow as tf
from absl import flags

from albert_tf import AlbertForPreTraining
from albert_tf.answers.choose import Choose
from albert_tf.answers.span import BeamSpan
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.console import settings
from albert_tf.conversion import kinds
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.generator.settings import GeneratorSettings
from albert_tf.serving import exported_files, served_tasks
from albert_tf.storage import checkpoint
from albert_tf.tasks.registry import TASKS
from albert_tf.training.evaluation import Trial
from tests.kit import finetune_runs, pretraining_runs, tiny

pytestmark = pytest.mark.usefixtures("counted")

FLAG_TYPES = {"string": "string", "integer": "int", "float": "float", "bool": "bool"}
# Script -> its settings class here, its task and, if it has none, the number of its flags.
SCRIPTS: dict[str, tuple[Any, str, int]] = {
    "run_pretraining.py": (PretrainingSettings, "", 28),
    "create_pretraining_data.py": (GeneratorSettings, "", 17),
    "run_classifier.py": (FinetuningSettings, "mrpc", 0),
    "run_race.py": (FinetuningSettings, "race", 0),
    "run_squad_v1.py": (FinetuningSettings, "squad_v1", 0),
    "run_squad_v2.py": (FinetuningSettings, "squad_v2", 0),
}
CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
MODULE = "https://tfhub.dev/google/albert_base/1"
PRETRAINING = """
    --input_file=... --output_dir=... --init_checkpoint=... --albert_config_file=... --do_train
    --do_eval --train_batch_size=4096 --eval_batch_size=64 --max_seq_length=512
    --max_predictions_per_seq=20 --optimizer='lamb' --learning_rate=.00176
    --num_train_steps=125000 --num_warmup_steps=3125 --save_checkpoints_steps=5000
"""
SQUAD = """--task_name=squad_v{}
    --albert_config_file=... --output_dir=... --train_file=... --predict_file=...
    --train_feature_file=... --predict_feature_file=... --predict_feature_left_file=...
    --init_checkpoint=... --spm_model_file=... --do_lower_case --max_seq_length=384
    --doc_stride=128 --max_query_length=64 {steps} --train_batch_size=48 --predict_batch_size=8
    --learning_rate=5e-5 --num_train_epochs=2.0 --warmup_proportion=.1
    --save_checkpoints_steps=5000 --n_best_size=20 --max_answer_length=30
"""
# A script of the release without --task_name: run_finetune.py needs one, as our README says.
FINE_TUNING = {
    "run_classifier": """
        --data_dir=... --output_dir=... --init_checkpoint=... --albert_config_file=...
        --spm_model_file=... --do_train --do_eval --do_predict --do_lower_case
        --max_seq_length=128 --optimizer=adamw --task_name=MNLI --warmup_step=1000
        --learning_rate=3e-5 --train_step=10000 --save_checkpoints_steps=100
        --train_batch_size=128
    """,
    "run_squad_v1": SQUAD.format(1, steps="--do_train=true --do_predict=true"),
    "run_squad_v2": SQUAD.format(2, steps="--do_train --do_predict"),
    "run_race": """
        --task_name=race --albert_config_file=... --output_dir=... --train_file=... --eval_file=...
        --data_dir=... --init_checkpoint=... --spm_model_file=... --max_seq_length=512
        --max_qa_length=128 --do_train --do_eval --train_batch_size=32 --eval_batch_size=8
        --learning_rate=1e-5 --train_step=12000 --warmup_step=1000 --save_checkpoints_steps=100
    """,
}
# Task, warm-up, rate, updates, updates between checkpoints, batch.
GLUE = """
    SST-2 1256 1e-5 20935 100 32
    MNLI 1000 3e-5 10000 100 128
    CoLA 320 1e-5 5336 100 16
    QNLI 1986 1e-5 33112 200 32
    QQP 1000 5e-5 14000 100 128
    RTE 200 3e-5 800 100 32
    STS-B 214 2e-5 3598 100 16
    MRPC 200 2e-5 800 100 32
""".strip().splitlines()
# A single length, since every length is compiled.
SMALL = {"static_lengths": 1, "train_batch_size": 3}


def glue_commands(row: str, handle: str = MODULE, init_checkpoint: str = "") -> list[list[str]]:
    task, warm_up, rate, steps, save, batch = row.split()
    common = f"""
        --output_dir=out/{task} --data_dir=root/glue --vocab_file=root/vocab.txt
        --spm_model_file=root/30k-clean.model --do_lower_case --max_seq_length=512
        --optimizer=adamw --task_name={task} --warmup_step={warm_up} --learning_rate={rate}
        --train_step={steps} --save_checkpoints_steps={save} --train_batch_size={batch}
    """
    train = f"""
        --do_train --nodo_eval --nodo_predict --albert_hub_module_handle={handle}
        --init_checkpoint={init_checkpoint}
    """
    evaluate = f"--nodo_train --do_eval --do_predict --albert_hub_module_handle={handle}"
    return [shlex.split(common + steps) for steps in (train, evaluate)]


def override(command: list[str], **changes: Any) -> list[str]:
    return [*command, *(f"--{name}={value}" for name, value in changes.items())]


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> pathlib.Path:
    """A model as the release's tar files hold it, but with untrained weights."""
    folder = tmp_path_factory.mktemp("released")
    config = tiny.config(**finetune_runs.CONFIG)
    tiny.store(folder, tiny.randomise(AlbertForPreTraining(config)))
    return folder


@pytest.mark.parametrize("script", SCRIPTS)
def test_all_flags_of_the_release_are_there(golden, script):
    theirs = json.loads((golden / "original_flags.json").read_text())[script]["flags"]
    cls, task, count = SCRIPTS[script]
    assert len(theirs) == count or task
    mine = flags.FlagValues()
    settings.define_flags(cls, mine)
    names = {"task_name": task, "export_dir": "x", "output_dir": "x"} if task else {}
    for name, expected in theirs.items():
        flag = mine[name]
        if flag.flag_type() == "string enum":
            known = flag.parser.enum_values
            assert task or {*expected.get("values", known)} <= {*known}, name
        else:
            assert flag.flag_type() == FLAG_TYPES[expected["type"]], name
        if not task:
            assert flag.default == expected["default"], name
        elif name not in names:
            name = "keep_checkpoint_max" if name == "num_keep_checkpoint" else name
            found = getattr(cls.of(**names), name)
            is_nan = name == "threshold_to_export" and math.isnan(found)
            assert is_nan or found == expected["default"], name


@pytest.mark.parametrize("script", FINE_TUNING)
def test_fine_tuning_parses(script):
    values = finetune_runs.parse(shlex.split(FINE_TUNING[script]))
    assert values.do_train and (values.do_eval or values.do_predict)


@pytest.mark.parametrize("row", GLUE)
def test_pretraining_and_run_glue_parse(row):
    values = pretraining_runs.parse(shlex.split(PRETRAINING))
    assert values.do_train and values.do_eval and values.optimizer == "lamb"
    train, evaluate = map(finetune_runs.parse, glue_commands(row))
    assert (train.do_train, train.do_eval, train.do_predict) == (True, False, False)
    assert (evaluate.do_train, evaluate.do_eval, evaluate.do_predict) == (False, True, True)
    assert train.task_name in TASKS


def test_run_glue_runs_small(tmp_path, released):
    """With a checkpoint instead of the TF Hub module, as its comments say."""
    files = {
        "output_dir": tmp_path / "out",
        "data_dir": finetune_runs.GOLDEN / "features/glue_data",
        "spm_model_file": finetune_runs.GOLDEN / "spm/en_small.model",
        "max_seq_length": 23,
        "train_step": 1,
        **SMALL,
    }
    (row,) = (row for row in GLUE if "RTE" in row)
    train, evaluate = glue_commands(row, "", str(released / "model.ckpt-best"))
    finetune_runs.main(override(train, **files))
    # Unchanged, the second command finds everything in output_dir; the first fails, as below.
    as_it_is, answer = glue_commands(row)
    finetune_runs.main(override(answer, **files))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.ckpt-best.index", "eval_results.txt", "RTE.tsv"} <= names
    before = (tmp_path / "out/eval_results.txt").read_text()
    finetune_runs.main(override(evaluate, **files, do_predict=False))
    added = (tmp_path / "out/eval_results.txt").read_text().removeprefix(before)
    assert added and set(added.splitlines()) <= set(before.splitlines())
    with pytest.raises(SystemExit, match=f"error: {MODULE} is a web address, .*: download it"):
        finetune_runs.main(override(as_it_is, **{**files, "output_dir": tmp_path / "new"}))


def run_small(script: str, folder: pathlib.Path, released: pathlib.Path, **changes: Any) -> None:
    files = {
        "output_dir": folder / "out",
        "init_checkpoint": released / "model.ckpt-best",
        "albert_config_file": released / "albert_config.json",
        "spm_model_file": finetune_runs.GOLDEN / "spm/en_small.model",
    }
    finetune_runs.main(override(shlex.split(FINE_TUNING[script]), **files, **SMALL, **changes))


def test_run_race_runs_small(tmp_path, released):
    """It also predicts, which the release's command leaves out."""
    data = finetune_runs.GOLDEN / "features/race_data"
    small = {"data_dir": data, "max_seq_length": 37, "max_qa_length": 13, "train_step": 1}
    run_small("run_race", tmp_path, released, **small, do_predict=True)
    out = tmp_path / "out"
    assert "eval_accuracy = " in (out / "eval_results.txt").read_text()
    scores = (out / "test_scores.txt").read_text()
    assert "high_accuracy = " in scores and "middle_accuracy = " in scores
    answers = [line.split("\t") for line in (out / "predictions.tsv").read_text().splitlines()[1:]]
    assert {letter for _, letter in answers} <= set("ABCD")
    # An export needs none of the run's flags.
    served = served_tasks.load_served("choose", ModelLocation(str(out / "model.ckpt-best")), {})
    assert served.kind == Choose(max_seq_length=37, max_qa_length=13)


@pytest.mark.slow
def test_run_squad_v2_runs_small(tmp_path, released):
    """It also exports: the beam that predicted is the one that is served."""
    made = ("train_feature_file", "predict_feature_file", "predict_feature_left_file")
    features, out, exported = finetune_runs.GOLDEN / "features", tmp_path / "out", tmp_path / "best"
    files = {name: tmp_path / name for name in made}
    files["train_file"] = features / "squad_v2_train.json"
    files["predict_file"] = features / "squad_v2_dev.json"
    small = {**finetune_runs.SQUAD, "num_train_epochs": 0.1, "export_dir": exported}
    small["threshold_to_export"] = -1.5
    run_small("run_squad_v2", tmp_path, released, **files, **small)
    finetune_runs.check_answers(out, "v2")
    scores = tf.saved_model.load(str(exported)).signatures["features"]
    names = ("input_ids", "input_mask", "segment_ids")
    outputs = scores(**{name: tf.ones([1, 2], tf.int32) for name in names})
    assert [outputs[f"{end}_top_index"].shape[1] for end in ("start", "end")] == [3, 3 * 2]
    assert Trial.read(str(out)).last_step == int(checkpoint.read(str(out))["global_step"]) > 0
    scores = (out / "eval_results.txt").read_text()
    assert "\nf1 = " in scores and "best_f1_thresh = " in scores
    kind = BeamSpan(**finetune_runs.SQUAD)
    assert kinds.find(str(out)).kind == kind.to_json()
    assert exported_files.read_description(str(exported))[0] == kind.replace(null_threshold=-1.5)
