"""run_pretraining.py: its flags, what it writes and shows, where it starts, what stops it.

`main` is called with flags of its own. Bad input: test_run_pretraining_bad_input.py; runs whose
process matters: test_run_pretraining_processes.py.
"""

import functools
import operator
import pathlib
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.cli import pretrain
from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.cli.run_directory import RunDirectory
from albert_tf.conversion.convert import convert
from albert_tf.records.spec import RowFormat, compact_spec
from albert_tf.storage import checkpoint, eval_results, hub
from albert_tf.storage.run_record import find_run
from albert_tf.training import optimizers, trainer
from albert_tf.training.progress import four_digits
from tests.cli import passed_on
from tests.kit import pretraining_runs as runs
from tests.kit import tiny, tolerances
from tests.kit.files import contents, refused

RATES = {"examples_per_second", "tokens_per_second"}
SCALARS = RATES | {"loss", "masked_lm_loss", "sentence_order_loss", "learning_rate", "grad_norm"}


@pytest.fixture
def copy(trained, tmp_path) -> pathlib.Path:
    return shutil.copytree(trained, tmp_path / "copy")


# Flag -> a non-default value -> what receives it, and as which value.
PASSED_ON = {
    **passed_on.BOTH,
    "random_seed": (7, {"Trainer.settings.seed": 7, "training.seed": 7, "training.finish.seed": 7}),
    "output_dir": ("there", {"Trainer.output_dir": "there", "progress.directory": "there"}),
    "precision": ("bfloat16", {"task.dtype": "mixed_bfloat16"}),
    "recompute": (True, {"task.recompute": True}),
    "sentence_order_weight": (0.5, {"task.sentence_order_weight": 0.5}),
    "nearby_attention": (True, {"task.nearby_attention": True}),
    "optimizer": ("adamw", {"optimizer.optimizer": "adamw"}),
    "num_warmup_steps": (5, {"optimizer.num_warmup_steps": 5}),
    "start_warmup_step": (3, {"optimizer.start_warmup_step": 3}),
    "poly_power": (2.0, {"optimizer.poly_power": 2.0}),
    "num_train_steps": (
        *(70, {f"{part}.num_train_steps": 70 for part in ("optimizer", "train", "progress")}),
    ),
    "train_batch_size": (24, {"training.global_batch_size": 24, "progress.examples_per_step": 24}),
    "max_seq_length": (31, {"progress.tokens_per_example": 31}),
    "iterations_per_loop": (2, {"train.steps_per_loop": 2}),
    "save_checkpoints_steps": (4, {"train.save_steps": 4}),
    "keep_checkpoint_max": (9, {"train.keep_max": 9}),
    "eval_batch_size": (6, {"evaluation.global_batch_size": 6}),
    "max_eval_steps": (1, {"evaluation.max_steps": 1}),
    "masked_lm_prob": (0.3, {"training.finish.settings.masked_lm_prob": 0.3}),
    "eval_masked_lm_prob": (0.2, {"evaluation.finish.settings.masked_lm_prob": 0.2}),
    "mask_replace_prob": (0.7, {"training.finish.settings.mask_replace_prob": 0.7}),
    "random_replace_prob": (0.2, {"training.finish.settings.random_replace_prob": 0.2}),
    "max_predictions_per_seq": (
        4,
        {"training.finish.settings.max_predictions_per_seq": 4, "evaluation.finish.seed": -1},
    ),
    "ngram": (2, {"training.finish.settings.ngram": 2}),
    "favor_shorter_ngram": (False, {"training.finish.settings.favor_shorter_ngram": False}),
    "do_whole_word_mask": (False, {"training.finish.settings.do_whole_word_mask": False}),
    "do_permutation": (True, {"training.finish.settings.do_permutation": True}),
}


@pytest.fixture
def received(monkeypatch):
    train = functools.partial(tiny.arguments, functools.partial(trainer.Trainer.train, None))
    for module, name in ((trainer, "Trainer"), (optimizers, "create_optimizer")):
        recorded = functools.partial(tiny.arguments, getattr(module, name))
        monkeypatch.setattr(module, name, recorded)
    writer = "albert_tf.training.progress.tf.summary.create_file_writer"
    monkeypatch.setattr(writer, lambda directory: directory)

    def spy(settings):
        devices = SimpleNamespace(is_chief=True)
        made = pretrain.make_trainer(settings, tiny.config(), devices)
        found = SimpleNamespace(Trainer=made, task=made.task, optimizer=made.make_optimizer())
        row_format = RowFormat(settings.max_seq_length, 53, 0, 2, 3, 4)
        records = pretrain.Records(["a"], [], compact_spec(), row_format)
        run = SimpleNamespace(step=0, devices=devices, train=train)
        found.train = pretrain.train(settings, run, records)
        found.training, found.evaluation = (
            tiny.arguments(made.func, *made.args, **made.keywords)
            for made in (found.train.source, pretrain.evaluation_input(settings, records))
        )
        told = vars(found.train.progress).items()
        found.progress = SimpleNamespace(**{name.removeprefix("_"): value for name, value in told})
        found.progress.directory = found.progress.writer
        return found

    return spy


@pytest.mark.parametrize("flag", PASSED_ON)
def test_a_flag_is_passed_on(folder, received, flag):
    value, expected = PASSED_ON[flag]
    found = received(runs.parse(runs.command(folder, **{"masking": "dynamic", flag: value})))
    for name, what in expected.items():
        assert operator.attrgetter(name)(found) == what, name
    unset = {"masking": "dynamic", **dict.fromkeys(["learning_rate", "num_warmup_steps"])}
    others = received(runs.parse(runs.command(folder, **unset)))
    if flag != "max_predictions_per_seq":
        for name, what in expected.items():
            assert operator.attrgetter(name)(others) != what, "the table holds a default"


def test_every_flag_of_training_is_in_the_table():
    """Except those that decide where weights, records and devices come from."""
    elsewhere = {"albert_config_file", "init_checkpoint", "init_from_group0", "input_file"}
    elsewhere |= {
        "num_hidden_layers",
        "vocab_size",
        "decay_from",
        "decay_from_any",
        "train_minutes",
        "masking",
    }
    elsewhere |= {"max_examples_per_row", *passed_on.ELSEWHERE}
    elsewhere |= {*passed_on.OF_MUON, *passed_on.OF_DEPTHS}
    assert {*PASSED_ON, *elsewhere} == set(PretrainingSettings.names())


def test_what_a_run_leaves_behind(trained):
    names = {path.name for path in trained.iterdir()}
    (events,) = (name for name in names if name.startswith("events.out.tfevents."))
    checkpoints = tiny.checkpoint_files(2, 3, "best")
    others = "albert_config.json best_trial.txt checkpoint eval eval_results.jsonl evaluation.lock "
    others += "eval_results.txt input_files.json run.json run.lock"
    assert names == checkpoints | {events, *others.split()}
    config = tiny.config(num_hidden_layers=1)
    assert tiny.AlbertConfig.from_json_file(trained / "albert_config.json") == config
    scalars = runs.scalars(trained)
    assert list(scalars) == [1, 2, 3]
    # The first step, which is mostly compilation, has no rates.
    assert [SCALARS - set(values) for values in scalars.values()] == [RATES, set(), set()]
    assert set(runs.scalars(trained / "eval")) == {3}
    # Warm-up over two steps of a decay over three; the first update has rate 0.
    rates = [values["learning_rate"] for values in scalars.values()]
    assert rates == pytest.approx([0, 0.005, 0.01 / 3], rel=1e-5)
    results = eval_results.read_last(trained)
    parts = results["masked_lm_loss"] + results["sentence_order_loss"]
    assert results["loss"] == pytest.approx(parts)
    rows = runs.examples(31)
    masked = np.concatenate([row["masked_lm_ids"][row["masked_lm_weights"] > 0] for row in rows])
    guessed = -np.log(np.bincount(masked)[masked] / len(masked)).mean()
    assert results["masked_lm_loss_by_frequency"] == pytest.approx(guessed)
    # Each of the 31 examples counts once, the 5 that pad the last batch don't.
    assert (results["sentence_order_accuracy"] * 31) % 1 == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("padding", [0, 8])
def test_a_vocabulary_of_another_size_than_the_configs(folder, tmp_path, padding):
    """The vocabulary has 53 pieces; the embedding table may have more rows."""
    other, out, size = tmp_path / "other.json", tmp_path / "out", 53 + padding
    runs.write_config(other, num_hidden_layers=1, vocab_size=71)
    flags = {"albert_config_file": other, "output_dir": out, "num_train_steps": 1}
    runs.main(runs.command(folder, **flags, vocab_size=size))
    config = tiny.AlbertConfig.from_json_file(out / "albert_config.json")
    assert config == tiny.config(num_hidden_layers=1, vocab_size=size)
    assert find_run(str(out)).config["vocab_size"] == size
    rows = runs.tensors(out / "model.ckpt-1")["bert/embeddings/word_embeddings"]
    assert rows.shape == (size, 7)
    # The same command resumes, and without a config the run's own is taken.
    for given in ({"vocab_size": size}, {"albert_config_file": None}):
        command = runs.command(folder, **{**flags, "num_train_steps": 2, **given})
        assert RunDirectory.open(runs.parse(command), pretrain.find_initial_weights)[2] == config


def test_records_without_any_mask_are_evaluated(folder, copy, tmp_path):
    rows = runs.examples(12)
    for row in rows:
        row["masked_lm_weights"][:] = 0
    records = runs.write_records(tmp_path / "a", rows)
    changes = {"num_train_steps": 3, "do_train": False, "do_eval": True}
    runs.main(runs.command(folder, input_file=records, output_dir=copy, **changes))
    results = eval_results.read_last(copy)
    assert results["masked_lm_accuracy"] == results["masked_lm_loss"] == 0
    assert results["loss"] == results["sentence_order_loss"] > 0


def test_a_later_command_takes_the_runs_settings_unless_others_are_given(folder, copy):
    def followed(**changes):
        none = ("learning_rate", "num_train_steps", "max_seq_length", "train_batch_size")
        command = runs.command(folder, output_dir=copy, **{**dict.fromkeys(none), **changes})
        return RunDirectory.open(runs.parse(command), pretrain.find_initial_weights)[1]

    resumed = followed()
    assert (resumed.learning_rate, resumed.num_train_steps, resumed.max_seq_length) == (0.01, 3, 23)
    assert resumed.train_batch_size == 12 and not resumed.do_eval
    assert followed(num_train_steps=7).num_train_steps == 7
    assert followed(do_train=False, do_eval=True).num_train_steps == 3
    for path in copy.glob("model.ckpt*"):
        path.unlink()
    (copy / "checkpoint").unlink()
    assert followed(max_seq_length=23).num_train_steps == 125000  # Nothing to resume: a new run.


@pytest.fixture
def waits_for_nothing(monkeypatch):
    sleep = "albert_tf.training.evaluation.time.sleep"
    monkeypatch.setattr(sleep, lambda _: pytest.fail("no later one comes"))


@pytest.mark.slow
@pytest.mark.usefixtures("counted")
def test_an_evaluation_goes_by_what_the_run_was_last_started_with(folder, copy, waits_for_nothing):
    evaluation = {"do_train": False, "do_eval": True, "output_dir": copy, "num_train_steps": None}
    runs.main(runs.command(folder, **evaluation))
    assert eval_results.read_last(copy)["global_step"] == 3
    runs.main(runs.command(folder, output_dir=copy, num_train_steps=4))
    # The run ends at step 4, whatever this command names as its end or initial weights.
    more = {"num_train_steps": 9, "init_checkpoint": "hf://none/none", "albert_config_file": None}
    runs.main(runs.command(folder, **{**evaluation, **more}))
    assert eval_results.read_last(copy)["global_step"] == 4


SLOW = [pytest.param(held, marks=pytest.mark.slow) for held in ("tf1", "the run")]


@pytest.mark.parametrize("held", ["huggingface", *SLOW])
@pytest.mark.parametrize("given", ["init_checkpoint", "output_dir"])
def test_weights_are_evaluated_once(folder, copy, waits_for_nothing, caplog, held, given):
    """Scores are those of the evaluation during training, except for heads that they lack."""
    expected = eval_results.read_last(copy)
    weights = copy
    if held == "the run" and given == "output_dir":
        (copy / "run.json").unlink()  # As if from another program: no more will come.
    elif held != "the run":
        weights = copy.parent / held
        drop = ["cls/seq_relationship/", "bert/pooler/"] if held == "huggingface" else []
        convert(str(copy), held, str(weights), drop=drop)
    none = dict.fromkeys(["output_dir", "albert_config_file", "num_train_steps"])
    if held == "the run" and given == "init_checkpoint":
        none["max_seq_length"] = None  # Taken from its run.
    training = {} if given == "init_checkpoint" else {"do_train": False}
    with caplog.at_level("INFO", logger="absl"):
        runs.main(runs.command(folder, **{**none, **training, given: weights}, do_eval=True))
    if held == "huggingface":
        expected = {name: expected[name] for name in ("masked_lm_loss", "masked_lm_accuracy")}
    results = (weights / "eval_results.txt").read_text() if given == "output_dir" else ""
    results = results.rpartition("init_checkpoint = ")[2]
    for name, value in expected.items():
        if name != "global_step":
            assert f"{name} {four_digits(value)}" in caplog.text
        if name != "global_step" and results:
            found = re.search(rf"\b{name} = (.*)", results)
            assert float(found[1]) == pytest.approx(value, abs=tolerances.OUTPUT), name
    assert ("sentence_order" in caplog.text) == (held != "huggingface")


@pytest.mark.usefixtures("counted")
def test_relative_moved_with_a_slash_and_other_dropout(folder, copy, monkeypatch, caplog):
    """A moved run resumes under its new name, however it is spelled, and downloads nothing."""
    caplog.set_level("INFO", logger="absl")
    monkeypatch.chdir(copy.parent)
    monkeypatch.setattr(hub, "fetch", lambda path, *_: pytest.fail(f"{path} is not needed"))
    changes = {"num_hidden_layers": 1, "hidden_dropout_prob": 0.3}
    other = runs.write_config(copy.parent / "other.json", **changes)
    changes = {"albert_config_file": other, "num_train_steps": 4, "do_eval": True}
    runs.main(runs.command(folder, output_dir="copy/", **changes))
    assert "resume: step 3 of copy/model.ckpt-3" in caplog.text
    state = tf.train.get_checkpoint_state("copy")
    assert state.all_model_checkpoint_paths == [f"copy/model.ckpt-{i}" for i in (2, 3, 4)]
    values = runs.tensors(copy / "model.ckpt-4")
    assert values["global_step"] == 4
    results = (copy / "eval_results.txt").read_text()
    assert re.findall("global_step = (.*)", results) == ["3", "4"]


@pytest.mark.slow
def test_a_branch_decays_beside_a_stable_run(folder, tmp_path, counted):
    """It takes that run's state and settings, resumes without it, and ends as a single run does.

    The optimizer's state is tested in tests/training/test_any_optimizer.py.
    """
    stable, branch, whole = (tmp_path / name for name in ("stable", "branch", "whole"))
    own = {"save_checkpoints_steps": 2, "keep_checkpoint_max": 0, "adam_beta2": 0.9}
    for out, steps in (
        (stable, {"num_train_steps": 4, "schedule": "constant"}),
        (whole, {"num_train_steps": 5, "schedule": "wsd", "decay_steps": 3}),
    ):
        runs.main(runs.command(folder, output_dir=out, **steps, **own))
    before = contents(stable)
    none = ("albert_config_file", "max_seq_length", "max_predictions_per_seq", "train_batch_size")
    none += ("num_train_steps", "learning_rate", "num_warmup_steps", "iterations_per_loop")
    flags = {**dict.fromkeys(none), "output_dir": branch, "decay_steps": 3}
    flags["decay_from"] = stable / "model.ckpt-2"
    runs.main(runs.command(folder, **flags))
    assert contents(stable) == before
    assert list(runs.scalars(branch)) == [3, 4, 5]
    runs.assert_same_bits(branch / "model.ckpt-5", whole / "model.ckpt-5")

    shutil.rmtree(stable)
    for path in branch.glob("model.ckpt-5*"):
        path.unlink()
    runs.main(runs.command(folder, **{**flags, "do_eval": True}))
    runs.assert_same_bits(branch / "model.ckpt-5", whole / "model.ckpt-5")
    assert eval_results.read_last(branch)["global_step"] == 5
    with refused("no checkpoint .*stable/model.ckpt-2"):
        runs.main(runs.command(folder, **{**flags, "output_dir": tmp_path / "new"}))


class Killed(Exception):
    pass


@pytest.mark.slow
def test_a_timed_run_is_one_of_the_steps_its_clock_settles(folder, tmp_path, monkeypatch, counted):
    """A killed run resumes with the rest of its time or, once it decays, of its steps.

    It has half a minute: two seconds for each step, and one step's time to compile the decay.
    """
    whole, killed, plain = (tmp_path / name for name in ("whole", "killed", "plain"))
    own = {"save_checkpoints_steps": 4, "keep_checkpoint_max": 0, "decay_steps": 4}
    timed = {**own, "train_minutes": 0.5, "num_train_steps": None}
    steps = {**own, "schedule": "wsd", "num_train_steps": 14}

    def train(out: pathlib.Path, seconds: float = 2.0, killed_at: int = 0, **flags) -> None:
        def report(self, step, *args, **kwargs) -> None:
            if step == killed_at:
                raise Killed

        monkeypatch.setattr("albert_tf.training.progress.ProgressLog.report", report)
        with runs.clock_by_steps(seconds):
            runs.main(runs.command(folder, output_dir=out, **flags))

    train(whole, **timed)
    train(plain, **steps)
    for killed_at, last_step in ((6, 2**31 - 1), (11, 14)):
        with pytest.raises(Killed):
            train(killed, killed_at=killed_at, **timed)
        assert find_run(str(killed)).settings["num_train_steps"] == last_step
    assert runs.tensors(killed / "model.ckpt-8")["optimizer/seconds"] == 16
    train(killed, seconds=1.0, **timed)
    names = [path.name for path in sorted(killed.glob("*.index"))]
    assert names == [f"model.ckpt-{step}.index" for step in (12, 14, 4, 8)]
    for out in (whole, killed):
        runs.assert_same_bits(out / "model.ckpt-14", plain / "model.ckpt-14")


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_hidden_groups"])
def test_a_branch_has_its_runs_depth_but_a_new_run_may_have_another(folder, trained, name):
    other = tiny.config(**{"num_hidden_layers": 2, name: 2})
    flags = {"num_train_steps": None, "decay_steps": 1}
    branch = runs.parse(runs.command(folder, decay_from=trained, **flags))
    with pytest.raises(ValueError, match=name):
        pretrain.check_weights(branch, other, str(trained))
    new = runs.parse(runs.command(folder, init_checkpoint=trained))
    assert pretrain.check_weights(new, other, str(trained)) is new


def test_what_is_not_there_is_neither_evaluated_nor_begun_anew(folder, copy):
    convert(str(copy), "tf1", str(copy.parent / "bare"), drop=["cls/"])
    changes = {"output_dir": None, "init_checkpoint": copy.parent / "bare", "do_eval": True}
    with refused("bare can't be evaluated: it lacks cls/predictions"):
        runs.main(runs.command(folder, **changes))
    for path in copy.glob("model.ckpt-*.index"):
        path.unlink()
    with refused("lists model.ckpt-2, model.ckpt-3, of which none", copy):
        runs.main(runs.command(folder, output_dir=copy))


@pytest.mark.slow
def test_a_fresh_run_forgets_the_best_of_another(folder, trained, copy):
    """Also, 0 as its limit of predictions stands for as many as the records have room for."""
    for path in (copy / "checkpoint", *copy.glob("model.ckpt-*"), *copy.glob("events*")):
        path.unlink()
    changes = {"num_train_steps": 1, "max_predictions_per_seq": 0}
    runs.main(runs.command(folder, output_dir=copy, **changes))
    assert not list(copy.glob("*.tmp"))
    for name in ("best_trial.txt", "eval_results.jsonl", "eval_results.txt"):
        assert not (copy / name).exists()
    assert runs.scalars(copy)[1]["loss"] == runs.scalars(trained)[1]["loss"]


def test_a_loss_that_is_not_finite_after_a_resume(folder, copy, eager):
    """The update of step 4 takes the weights to 1e30; older checkpoints stay as they were."""
    before = {path.name: path.read_bytes() for path in copy.glob("*ckpt*")}
    changes = {"num_train_steps": 9, "learning_rate": 1e30, "save_checkpoints_steps": 100}
    with refused("step 5 is not finite .* after step 3"):
        runs.main(runs.command(folder, output_dir=copy, **changes))
    assert {path.name: path.read_bytes() for path in copy.glob("*ckpt*")} == before
    assert tf.train.latest_checkpoint(str(copy)).endswith("model.ckpt-3")


@pytest.mark.parametrize("evaluated", ["run", "weights"])
def test_an_evaluation_of_what_is_not_finite_is_one_line(folder, copy, tmp_path, evaluated):
    """The key metric, an accuracy, would still be a number."""
    given = {"output_dir": copy, "num_train_steps": 9}
    if evaluated == "weights":
        given = {"output_dir": tmp_path / "out", "init_checkpoint": tmp_path / "model.ckpt-9"}
    values = checkpoint.read(str(copy / "model.ckpt-3"))
    values["bert/embeddings/LayerNorm/gamma"][:] = 3e38
    checkpoint.save(str(copy if evaluated == "run" else tmp_path), 9, values, 1)
    before = (copy / "eval_results.txt").read_text()
    with refused("the outputs of .*model.ckpt-9 are NaN"):
        runs.main(runs.command(folder, **given, do_train=False, do_eval=True))
    assert (copy / "eval_results.txt").read_text() == before
    assert not (tmp_path / "out/eval_results.txt").exists()
