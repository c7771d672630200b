"""A setting that isn't what a run had is followed when it resumes, or refused: never ignored.

Each setting of both scripts is REFUSED, `per_command` by its metadata, or FOLLOWED from then on.
"""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from albert_tf.cli import finetune, pretrain
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.cli.pretraining_settings import UNKNOWN_STEPS, PretrainingSettings
from albert_tf.cli.run_directory import RunDirectory
from albert_tf.storage import checkpoint, eval_results
from albert_tf.storage.run_record import RunRecord, find_run
from albert_tf.training import schedules
from tests.kit import finetune_runs, tiny
from tests.kit import pretraining_runs as runs
from tests.kit.files import contents, refused

pytestmark = pytest.mark.usefixtures("counted", "eager")

# Setting -> its new value (formatted with this test's folder), and what the error names.
REFUSED = {
    PretrainingSettings: {
        "albert_config_file": ("{tmp}/deep.json", "layers 1 before, 2 now; intermediate_size 29 "),
        "num_hidden_layers": (2, "num_hidden_layers 1 before, 2 now"),
        "vocab_size": (59, "vocab_size 53 before, 59 now"),
        "init_checkpoint": ("hf://none/none", "--init_checkpoint .None before, hf://none/none now"),
        "init_from_group0": (True, "--init_from_group0"),
        "nearby_attention": (True, "--nearby_attention"),
        "decay_from": ("{tmp}/out/model.ckpt-2", "--decay_from .None before, /.*ckpt-2 now"),
        "train_minutes": (7, "--train_minutes .None before"),
        "input_file": ("{tmp}/other.tfrecord", "records .train.* --accept_other_records"),
        "max_seq_length": (19, "--max_seq_length"),
        "max_predictions_per_seq": (4, "--max_predictions_per_seq"),
        "max_examples_per_row": (3, "--max_examples_per_row"),
        "masking": ("dynamic", "--masking"),
    },
    FinetuningSettings: {
        "task_name": ("rte", "--task_name=mrpc"),
        "data_dir": ("{tmp}/glue_data", "records .train.*records .dev.*--accept_other_records"),
        "init_checkpoint": ("hf://none/none", "--init_checkpoint .None before"),
        "albert_hub_module_handle": ("x", "--albert_hub_module_handle .None before"),
        "albert_config_file": ("albert_base_v2", "intermediate_size 11 before, 3072 now"),
        "num_hidden_layers": (2, "num_hidden_layers 1 before, 2 now"),
    },
}


VALUES = {"int": 7, "float": 0.75, "str": "x", "tuple[str,": "a,b"}
ENDS = ("num_train_steps", "train_step", "num_train_epochs", "early_stopping_patience")
FOLLOWED = [
    pytest.param(cls, field, id=f"{cls.__name__}.{field.name}")
    for cls in REFUSED
    for field in cls.flags()
    if not field.metadata["per_command"] and field.name not in REFUSED[cls]
]


@pytest.mark.parametrize(("cls", "field"), FOLLOWED)
def test_another_value_is_followed_before_the_end_and_refused_after_it(cls, field, trained, mrpc):
    name, of_finetuning = field.name, cls is FinetuningSettings
    command, out = (finetune, mrpc / "out") if of_finetuning else (pretrain, trained)
    recorded = find_run(str(out)).settings
    values = [value for value in field.metadata["choices"] if value != recorded[name]]
    value = (values or [VALUES.get(field.type.split(" ")[0], not recorded[name])])[0]
    given = {"task_name": "mrpc"} if of_finetuning else {"input_file": "x"}
    given |= {"do_train": True, "output_dir": out}
    given |= {"schedule": "wsd"} if name == "decay_steps" else {}
    given |= {"optimizer": "muon"} if name == "adam_share" else {}

    def resume(**more):
        settings = tiny.parse(cls, **{**given, **more, name: value})
        directory, settings, _ = RunDirectory.open(settings, command.find_initial_weights)
        if of_finetuning:
            settings = settings.with_steps(num_examples=960)
        directory.check_followed(settings)
        return settings.record()

    last = "train_step" if of_finetuning else "num_train_steps"
    now = resume(**({} if name in ENDS else {last: 9}))
    # Epochs and shares of steps are recorded as steps.
    steps = {"num_train_epochs": "train_step", "warmup_proportion": "warmup_step"}
    named = steps.get(name, name)
    assert now[named] != recorded[named]
    if field.metadata["group"] in ("Training", "Loss") and name not in ENDS:
        with refused(rf"`{named}` .*before", exception=ValueError):
            resume()
        with refused(rf"`{last}` .* before, 1 now", exception=ValueError):
            resume(**{last: 1})


@pytest.mark.parametrize(("cls", "name"), [(cls, name) for cls in REFUSED for name in REFUSED[cls]])
def test_another_value_is_refused(cls, name, trained, mrpc, folder, tmp_path):
    value, message = REFUSED[cls][name]
    changes = {name: str(value).format(tmp=tmp_path)}
    if cls is PretrainingSettings:
        shutil.copytree(trained, tmp_path / "out")
        runs.write_config(tmp_path / "deep.json", num_hidden_layers=2, intermediate_size=7)
        runs.write_records(tmp_path / "other.tfrecord", runs.examples(31)[::-1])
        steps = None if name in ("decay_from", "train_minutes") else 9
        command = {"output_dir": tmp_path / "out", "num_train_steps": steps, **changes}
        main, arguments = runs.main, runs.command(folder, **command)
    else:
        shutil.copytree(mrpc, tmp_path, dirs_exist_ok=True)
        data = shutil.copytree(finetune_runs.GOLDEN / "features/glue_data", tmp_path / "glue_data")
        for file in (data / "MRPC/train.tsv", data / "MRPC/dev.tsv"):
            file.write_text(file.read_text("utf-8").replace("the", "thy"), "utf-8")
        changes |= {"from_scratch": None, "train_step": 9, "do_train": True, "do_eval": True}
        main = finetune_runs.main
        arguments = finetune_runs.command(changes.pop("task_name", "mrpc"), tmp_path, **changes)
    before = contents(tmp_path / "out")
    with refused(message):
        main(arguments)
    after = contents(tmp_path / "out")
    assert {**after, "input_files.json": 0} == {**before, "input_files.json": 0}


def test_records_are_the_same_wherever_they_lie_but_not_in_another_order(folder, tmp_path):
    def digest(*names):
        files = [str(tmp_path / name) for name in names]
        settings = runs.parse(runs.command(folder, input_file=",".join(files)))
        return pretrain.check_records(settings, files, tiny.config(), None).digest()

    rows = runs.examples(40)
    changed = [{**row} for row in rows]
    changed[39]["sentence_order_labels"] = 1 - rows[39]["sentence_order_labels"]
    (tmp_path / "there").mkdir()
    for name, part in (
        *(("a", rows), ("b", rows[:7]), ("there/x", rows), ("there/y", rows[:7])),
        *(("swapped", [*rows[:38], rows[39], rows[38]]), ("changed", changed)),
    ):
        runs.write_records(tmp_path / name, part)
    assert digest("a", "b") == digest("there/x", "there/y")
    others = [("a",), ("b", "a"), ("swapped", "b"), ("changed", "b")]
    assert len({digest("a", "b"), *(digest(*names) for names in others)}) == 5


def test_other_records_are_accepted_on_demand(trained, folder, tmp_path):
    out = shutil.copytree(trained, tmp_path / "out")
    other = runs.write_records(tmp_path / "other.tfrecord", runs.examples(31)[::-1])
    before = find_run(str(out)).data["train"]
    changes = {"output_dir": out, "input_file": other, "num_train_steps": 4}
    runs.main(runs.command(folder, **changes, accept_other_records=True))
    assert find_run(str(out)).data["train"] != before
    assert checkpoint.latest(str(out)).endswith("-4")


BRANCH, TIMED = {"decay_from": "{tmp}", "num_train_steps": None}, {"train_minutes": 1}
NEW = [
    ({"favor_shorter_ngram": False}, "--favor_shorter_ngram .*--masking=dynamic"),
    ({"decay_steps": 2}, "--decay_steps .*--schedule=wsd.*linear"),
    ({"adam_share": 2}, "--adam_share needs --optimizer=muon, not --optimizer=lamb"),
    ({**TIMED, "num_train_steps": None, "schedule": "constant"}, "--train_minutes .*wsd.*constant"),
    ({**BRANCH, "num_train_steps": 40}, "--decay_from and --num_train_steps exclude"),
    ({**BRANCH, **TIMED}, "--decay_from and --train_minutes exclude"),
    ({**BRANCH, "init_checkpoint": "x"}, "--decay_from and --init_checkpoint exclude"),
    *(
        ({"nearby_attention": True, "num_train_steps": None, name: "x"}, f"nearby.* and --{name}")
        for name in ("init_checkpoint", "decay_from")
    ),
]


@pytest.mark.parametrize(("changes", "message"), NEW)
def test_a_new_run_has_no_setting_without_effect(changes, message, folder, tmp_path):
    with refused(message, tmp_path):
        runs.main(runs.command(folder, output_dir=tmp_path / "out", **changes))


@pytest.mark.slow
def test_a_branch_begins_from_one_checkpoint_however_it_is_spelled(folder, tmp_path, monkeypatch):
    """The first start settles it, even without a checkpoint and if the stable run goes on."""
    monkeypatch.chdir(tmp_path)
    stable, branch = tmp_path / "stable", tmp_path / "branch"
    command = {"output_dir": stable, "schedule": "constant", "save_checkpoints_steps": 4}
    runs.main(runs.command(folder, **command, num_train_steps=4))
    flags = {"output_dir": branch, "num_train_steps": None, "decay_steps": 2}
    runs.main(runs.command(folder, **flags, decay_from="stable"))
    first = runs.tensors(branch / "model.ckpt-6")
    runs.main(runs.command(folder, **command, num_train_steps=8))
    (tmp_path / "link").symlink_to(stable)
    for spelling in ("stable/", "link"):
        for path in branch.glob("model.ckpt-*"):
            path.unlink()
        checkpoint.claim(str(branch))
        runs.main(runs.command(folder, **flags, decay_from=spelling))
        assert find_run(str(branch)).settings["decay_from"] == str(stable / "model.ckpt-4")
        again = runs.tensors(branch / "model.ckpt-6")
        assert all(np.array_equal(again[name], value) for name, value in first.items())
    runs.main(runs.command(folder, **flags, decay_from="link/model.ckpt-4.index"))
    for change in ({"decay_from": "stable/model.ckpt-8"}, {"decay_steps": 3}):
        (name,) = change
        with refused(f"--{name} .*before", branch, stable):
            runs.main(runs.command(folder, **{**flags, "decay_from": "link", **change}))


# A run's settings, the step where the branch leaves, the rate there, and whether it is stable.
WSD = {"schedule": "wsd", "num_train_steps": 10, "decay_steps": 4}
LEAVING = [
    ({"schedule": "constant"}, 3125, 0.5, True),
    ({"schedule": "constant"}, 625, 0.1, False),  # A fifth of the warm-up.
    ({**WSD, "num_warmup_steps": 2}, 6, 0.5, True),
    ({**WSD, "num_warmup_steps": 2}, 7, 0.375, False),
    ({**WSD, "num_train_steps": UNKNOWN_STEPS, "train_minutes": 5}, 4000, 0.5, True),
    ({"num_train_steps": 10, "num_warmup_steps": 0}, 4, 0.3, False),
    ({"num_train_steps": 10, "num_warmup_steps": 0}, 10, 0.0, False),
]


@pytest.mark.parametrize(("settings", "step", "rate", "is_stable"), LEAVING)
def test_a_branch_leaves_where_the_rate_is_stable(settings, step, rate, is_stable, tmp_path):
    own = PretrainingSettings(input_file="x", output_dir="x", learning_rate=0.5, **settings)
    prefix = checkpoint.save(str(tmp_path), step, {"global_step": np.int64(step)}, 1)
    given = {"input_file": "x", "output_dir": "x", "decay_from": prefix}

    def branch(**more):
        now = PretrainingSettings.of(**given, **more).following(own.record())
        return pretrain.place_decay(now, prefix)

    for whose in ("no", "its"):
        if not is_stable:
            with refused(f"is {rate:g}.*{whose} run.json.*`decay_from_any`", exception=ValueError):
                branch()
        RunRecord(own.record(), {}).write(str(tmp_path))
    if rate:
        now = branch(decay_from_any=True)
        assert now.learning_rate == pytest.approx(rate)
        assert (now.schedule, now.train_minutes) == ("wsd", None)
        assert now.num_train_steps - now.decay_steps == step
        assert now.decay_steps == max(1, step // 10)
        first = {**now.rate, "first_decay_step": step}
        assert float(schedules.WarmupPolynomialDecay(rate, **first)(step)) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"decay_steps": 1, "num_train_steps": 8}),
        ({"decay_steps": 4}, {"decay_steps": 1, "num_train_steps": 8}),  # As first asked for.
        ({"decay_steps": 3}, "`decay_steps` .1 before, 3 now"),
        ({"train_minutes": 9}, "`train_minutes` .2.0 before, 9.0 now"),
        ({"train_minutes": None, "num_train_steps": 9}, "`num_train_steps` .8 before, 9 now"),
        ({"schedule": "constant"}, "`schedule` .wsd before"),
    ],
)
def test_a_timed_run_has_settled_its_decay(changes, expected, trained, tmp_path):
    """There was time for only one of the decay's four steps."""
    out = shutil.copytree(trained, tmp_path / "out")
    own = {"schedule": "wsd", "train_minutes": 2.0, "decay_steps": 4}
    given = {"input_file": "x", "output_dir": str(out)}
    asked = dataclasses.replace(PretrainingSettings.of(**given), max_seq_length=23, **own)
    pretrain.settle_decay(asked, SimpleNamespace(is_chief=True), 7, 8)
    settings = tiny.parse(PretrainingSettings, **{**given, "train_minutes": 2, **changes})
    directory, settings, _ = RunDirectory.open(settings, pretrain.find_initial_weights)
    if isinstance(expected, str):
        with refused(expected, out, exception=ValueError):
            directory.check_followed(settings)
    else:
        directory.check_followed(settings)
        assert expected.items() <= settings.record().items()


def test_an_evaluation_waits_for_the_first_checkpoint(trained, folder, tmp_path, monkeypatch):
    """It takes the config and settings of the run in the directory."""
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(trained / "run.json", out)
    checkpoint.claim(str(out))
    waited: list[float] = []

    def arrive(seconds: float) -> None:
        waited.append(seconds)
        for path in (*trained.glob("model.ckpt-3*"), trained / "checkpoint"):
            shutil.copy(path, out)

    monkeypatch.setattr("albert_tf.training.evaluation.time.sleep", arrive)
    flags = {"do_train": False, "do_eval": True, "output_dir": out, "eval_batch_size": 12}
    main = [f"--input_file={folder}/*.tfrecord", *(f"--{n}={v}" for n, v in flags.items())]
    runs.main(main)
    assert waited and eval_results.read_last(out)["global_step"] == 3
