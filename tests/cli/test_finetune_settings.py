"""The settings of run_finetune.py: each is passed on; a later command takes the run's."""

import functools
import json
import operator
from types import SimpleNamespace

import numpy as np
import pytest

from albert_tf.cli import finetune
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.config import AlbertConfig
from albert_tf.storage import checkpoint
from albert_tf.storage.run_record import find_run
from albert_tf.tasks.supervised_run import SupervisedRun
from albert_tf.training import optimizers, trainer
from tests.cli import passed_on
from tests.kit import finetune_runs as runs
from tests.kit import tiny

pytestmark = pytest.mark.usefixtures("counted")

# Flag -> a non-default value -> what receives it, and as which value.
PASSED_ON = {
    **passed_on.BOTH,
    "output_dir": ("there", {"Trainer.output_dir": "there"}),
    "optimizer": ("lamb", {"optimizer.optimizer": "lamb"}),
    "train_step": (7, {"optimizer.num_train_steps": 7, "train.num_train_steps": 7}),
    "num_train_epochs": (2.5, {"optimizer.num_train_steps": 25, "train.num_train_steps": 25}),
    "warmup_step": (5, {"optimizer.num_warmup_steps": 5}),
    "warmup_proportion": (0.5, {"optimizer.num_warmup_steps": 500}),
    "random_seed": (7, {"Trainer.settings.seed": 7, "train.seed": 7}),
    "precision": ("bfloat16", {"options.dtype": "mixed_bfloat16"}),
    "recompute": (True, {"options.recompute": True}),
    "dropout_prob": (0.25, {"options.classifier_dropout_prob": 0.25}),
    "hidden_dropout_prob": (0.25, {"options.config.hidden_dropout_prob": 0.25}),
    "attention_probs_dropout_prob": (0.25, {"options.config.attention_probs_dropout_prob": 0.25}),
    "iterations_per_loop": (2, {"train.steps_per_loop": 2}),
    "save_checkpoints_steps": (4, {"train.save_steps": 4}),
    "keep_checkpoint_max": (9, {"train.keep_max": 9}),
    "early_stopping_patience": (3, {"train.patience": 3}),
    "key_metric": ("f1", {"task.key_metric": "f1"}),
    "train_batch_size": (6, {"splits.train.batch_size": 6, "optimizer.num_train_steps": 1000}),
    "eval_batch_size": (6, {"splits.dev.batch_size": 6}),
    "predict_batch_size": (6, {"splits.test.batch_size": 6, "teacher.batch_size": 6}),
    "max_seq_length": (31, {"kind.max_seq_length": 31, "splits.dev.static_lengths": (9, 19, 31)}),
    "static_lengths": (1, {"splits.train.static_lengths": (61,)}),
    "cached_dir": ("there", {"cache.train": "there/mrpc_train", "cache.dev": "there/mrpc_predict"}),
    "train_feature_file": ("there", {"cache.train": "there"}),
    "predict_feature_file": ("there", {"cache.dev": "there", "cache.test": "there"}),
    "teacher": ("there", {"teacher.path": "there"}),
    "distillation_weight": (0.25, {"teacher.distillation.weight": 0.25}),
    "temperature": (3.0, {"teacher.distillation.temperature": 3.0}),
    "threshold_to_export": (0.25, {"served.threshold": 0.25}),
}


@pytest.fixture
def received(monkeypatch, tmp_path):
    real, real_optimizer = trainer.Trainer, optimizers.create_optimizer
    real_teacher = finetune.Teacher
    config = str(runs.write_config(tmp_path))

    def spy(**changes):
        given = {"task_name": "mrpc", "do_train": True, "max_seq_length": 61, **changes}
        given = {"output_dir": "out", "teacher": "x", "albert_config_file": config, **given}
        settings = FinetuningSettings.of(**given).with_steps(num_examples=320)
        found = SimpleNamespace(cache=SimpleNamespace())
        monkeypatch.setattr(trainer, "Trainer", functools.partial(tiny.arguments, real))
        monkeypatch.setattr(finetune, "Teacher", functools.partial(tiny.arguments, real_teacher))
        create = functools.partial(tiny.arguments, real_optimizer)
        monkeypatch.setattr(optimizers, "create_optimizer", create)
        model = AlbertConfig.from_json_file(config)
        found.task = finetune.make_task(settings, finetune.with_dropout(settings, model))
        found.task.tokenizer = SimpleNamespace(digest="")
        found.options, found.kind = found.task.options, found.task.kind
        found.Trainer = settings.make_trainer(found.task, None)
        found.optimizer = found.Trainer.make_optimizer()
        found.teacher = finetune.make_teacher(settings, found.task)
        train = functools.partial(tiny.arguments, functools.partial(SupervisedRun.train, None))
        found.train = finetune.train(settings, SimpleNamespace(train=train))
        vars(found.train).update(found.train.loop)
        found.splits = SimpleNamespace()
        for name in finetune.SPLITS:

            def cached(examples, make, key, prefix, name=name):
                setattr(found.cache, name, prefix)
                return SimpleNamespace(lengths=np.array([9] * 9 + [19] * 9 + [31] * 9))

            monkeypatch.setattr(finetune.feature_table, "load_or_make_features", cached)
            devices = SimpleNamespace(static_shapes=False, on_cpu=True)
            part = finetune.make_split(settings, found.task, devices, name, [], {})
            setattr(found.splits, name, part)
        found.served = found.kind.with_threshold(settings.threshold)
        return found

    return spy


@pytest.mark.parametrize("flag", PASSED_ON)
def test_a_flag_is_passed_on(flag, received):
    value, expected = PASSED_ON[flag]
    found = received(**{flag: value})
    for name, what in expected.items():
        assert operator.attrgetter(name)(found) == what, name
    others = received()
    name, what = next(iter(expected.items()))
    assert operator.attrgetter(name)(others) != what, "the table holds a default"


def test_ids_reach_the_vocabulary():
    given = {"task_name": "mrpc", "output_dir": "out", "do_train": True, "ids": "folder"}
    assert finetune.vocabulary_arguments(FinetuningSettings.of(**given))[-1] == "folder"


def test_every_flag_of_training_is_in_the_table():
    """Except those that decide where model, data and devices come from, and the task's own."""
    elsewhere = {
        *("albert_config_file", "init_checkpoint", "albert_hub_module_handle", "from_scratch"),
        *("spm_model_file", "vocab_file", "do_lower_case", "keep_accents", "num_hidden_layers"),
        *("do_predict", "ensemble_dirs", "export_dir", "use_einsum", "class_weights", "ids"),
        *(
            *passed_on.ELSEWHERE,
            *passed_on.OF_MUON,
            *passed_on.OF_DEPTHS,
            "predict_feature_left_file",
        ),
    }
    of_tasks = {*finetune.FinetuningSettings.__mro__[2].names()} - {"max_seq_length"}
    assert {*PASSED_ON, *elsewhere, *of_tasks} == set(FinetuningSettings.names())


@pytest.mark.parametrize(("task", "expected"), [("sts-b", (0, 5)), ("mrpc", (-np.inf, np.inf))])
def test_a_regression_has_the_range_of_its_row(task, expected):
    settings = FinetuningSettings.of(task_name=task, output_dir="out", do_predict=True)
    assert finetune.make_task(settings).row.number_range == expected


MINE = "--task_name=question_answering"
# Flags, and settings that result from them.
SETTINGS = [
    ("--task_name=squad_v2 --do_train --train_step=7", {"train_step": 7, "num_train_epochs": None}),
    ("--task_name=squad_v2 --do_train --train_step=7", {"warmup_proportion": 0.1}),
    # It evaluates, too: the best checkpoint is still to be found.
    ("--task_name=squad_v2 --do_predict", {"do_eval": True}),
    ("--task_name=squad_v2 --do_predict --do_eval=false", {"do_eval": False}),
    ("--task_name=race --do_predict --ensemble_dirs=a,b", {"do_eval": False, "do_predict": True}),
    (f"{MINE} --do_train", {"static_lengths": 1, "dropout_prob": 0.0, "max_seq_length": 384}),
    (f"{MINE} --do_train --allow_no_answer", {"static_lengths": None, "dropout_prob": 0.1}),
    # As in the release, SQuAD's file to predict chooses the best checkpoint; one's own doesn't.
    ("--task_name=squad_v1 --do_predict --predict_file=a.json", {"do_eval": True}),
    (f"{MINE} --do_predict --predict_file=a.json", {"do_eval": False}),
    (f"{MINE} --do_predict --predict_file=a.json --eval_file=dev.jsonl", {"do_eval": True}),
    (f"{MINE} --do_train --eval_file=dev.jsonl", {"do_eval": True}),
    (f"{MINE} --do_train", {"do_eval": False}),
    (f"{MINE} --export_dir=y --eval_file=dev.jsonl", {"do_eval": False}),
    (f"{MINE} --do_train --eval_file=dev.jsonl --do_eval=false", {"do_eval": False}),
]


@pytest.mark.parametrize(("arguments", "expected"), SETTINGS)
def test_a_task_has_defaults_which_flags_replace(arguments, expected):
    mine = runs.parse(["--output_dir=x", *arguments.split()])
    assert {name: getattr(mine, name) for name in expected} == expected


def test_a_run_goes_on_with_the_settings_in_its_record(tmp_path):
    """Killed after two of four steps, it is resumed by its task and directory alone."""
    command = runs.command("mrpc", tmp_path, do_train=True, do_eval=True)
    runs.main([*command, "--train_step=2"])
    out = tmp_path / "out"
    record = json.loads((out / "run.json").read_text())
    record["settings"]["train_step"] = 4
    (out / "run.json").write_text(json.dumps(record))
    again = ["--task_name=mrpc", f"--output_dir={out}", "--do_train", "--do_eval"]
    runs.main(again)
    assert checkpoint.step_of(checkpoint.latest(str(out))) == 4
    settings = find_run(str(out)).settings
    assert (settings["learning_rate"], settings["train_batch_size"]) == (0.01, 3)
    assert set(settings) == set(FinetuningSettings.names())


def test_what_begins_follows_no_record_and_records_numbers_of_steps(mrpc, tmp_path):
    """A run.json without a checkpoint is left over from a run that never saved one."""
    out = tmp_path / "out"
    out.mkdir()
    tiny.fine_tuned("mrpc", optimizer="lamb").write(str(out))
    # The record beside the initial weights is another run's.
    start = {"init_checkpoint": mrpc / "out", "from_scratch": None, "learning_rate": None}
    epochs = {"train_step": None, "num_train_epochs": 0.5}
    epochs |= {"warmup_step": None, "warmup_proportion": 0.5}
    runs.main(runs.command("mrpc", tmp_path, do_train=True, **epochs, **start))
    settings = find_run(str(out)).settings
    assert (settings["optimizer"], settings["learning_rate"]) == ("adamw", 5e-5)
    assert [settings[name] for name in epochs] == [1, None, 0, None]
    # A number of epochs given now replaces both recorded settings: epochs and steps.
    given = {"task_name": "mrpc", "output_dir": "out", "do_train": True, "num_train_epochs": 2.0}
    now = FinetuningSettings.of(**given).following(settings)
    assert now.with_steps(num_examples=9).train_step == 6


def test_what_a_later_command_does_not_take_from_a_run():
    """It takes all others: they determine the run's batches, its loss and its best checkpoint."""
    both = {"output_dir", *passed_on.ELSEWHERE}
    fine_tuning = {"albert_config_file", "from_scratch", "spm_model_file", "vocab_file"}
    fine_tuning |= {"do_lower_case", "keep_accents", "ids", "do_predict", "ensemble_dirs"}
    fine_tuning |= {"export_dir", "threshold_to_export"}
    for cls, own in ((PretrainingSettings, {"decay_from_any"}), (FinetuningSettings, fine_tuning)):
        assert {f.name for f in cls.flags() if f.metadata["per_command"]} == both | own
