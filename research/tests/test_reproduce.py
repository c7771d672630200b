"""`make reproduce`: what is fetched, run and printed, on a tiny model and a stub of the Hub.

Can't see: whether the Hub has these data under these names, and any published score.
"""

import json
import pathlib
import re
import statistics
import sys

import pytest

from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.conversion.convert import convert
from albert_tf.model.albert import AlbertModel
from albert_tf.storage import hub
from albert_tf.tasks.glue import GLUE_TASKS, read_glue
from albert_tf.tasks.race import LEVELS, read_race
from research.reproduce import __main__ as program
from research.reproduce import data
from tests.kit import finetune_runs, tiny
from tests.kit.hub import serve
from tests.storage import test_hub

FEATURES = finetune_runs.GOLDEN / "features"
SPLITS = {"train": "train", "dev": "validation"}


def parquet(path: pathlib.Path, rows: list[dict]) -> bytes:
    """Writes rows as one file, and returns its content."""
    reason = "needs the package of albert_tf[parquet]"
    pyarrow = pytest.importorskip("pyarrow", reason=reason)
    path.parent.mkdir(parents=True, exist_ok=True)
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    return path.read_bytes()


def glue_rows(recipe: str, split: str) -> list[dict]:
    """Returns a split of the tiny files as rows of the Hub's data set."""
    names = ("sentence1", "sentence2") if GLUE_TASKS[recipe].text_b else ("sentence",)
    return [
        {**dict(zip(names, (e.text_a, e.text_b), strict=False)), "label": e.label, "idx": number}
        for number, e in enumerate(read_glue(recipe, FEATURES / "glue_data", split))
    ]


def race_rows(split: str) -> list[dict]:
    rows = []
    for level in LEVELS:
        lines = (FEATURES / f"race_data/RACE/{split}/{level}/all.txt").read_text().splitlines()
        for number, line in enumerate(lines):
            passage = json.loads(line)
            columns = (passage[name] for name in ("questions", "options", "answers"))
            rows += [
                dict(zip(("question", "options", "answer"), each, strict=True))
                | {"example_id": f"{level}{number}.txt", "article": passage["article"]}
                for each in zip(*columns, strict=True)
            ]
    return rows


# --- data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in data.TASKS if not n.startswith("squad")])
def test_what_the_hub_has_becomes_the_files_of_the_benchmark(name, tmp_path, monkeypatch):
    task, there = data.TASKS[name], tmp_path / "there"
    splits = {**SPLITS, **({"test": "test"} if name == "race" else {})}
    folder = "all" if name == "race" else name
    for ours, theirs in splits.items():
        rows = race_rows(ours) if name == "race" else glue_rows(task.recipe, ours)
        for part in range(2):  # In two files.
            half = rows[: len(rows) // 2] if part == 0 else rows[len(rows) // 2 :]
            parquet(there / f"{folder}/{theirs}-0000{part}-of-00002.parquet", half)
    monkeypatch.setattr(hub, "fetch", lambda *_: str(there))
    assert data.fetch(task, tmp_path / "out") == [f"--data_dir={tmp_path / 'out'}"]

    def read(folder: pathlib.Path, split: str) -> list[tuple]:
        if name == "race":
            examples = read_race(folder, split, preprocess=str)
            return [(e.context, e.endings, e.label, e.level) for e in examples]
        examples = read_glue(task.recipe, folder, split)
        return [(e.text_a, e.text_b, e.label) for e in examples]

    golden = FEATURES / ("race_data" if name == "race" else "glue_data")
    for split in splits:
        found = read(tmp_path / "out", split)
        assert found and found == read(golden, split)


def test_what_the_hub_no_longer_has_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "fetch", lambda *_: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="rajpurkar/squad has no plain_text/train-"):
        data.fetch(data.TASKS["squad_v1"], tmp_path)


# --- the table ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "published", "expected"),
    [
        # The t-distribution's quantile with 2 degrees of freedom is 4.3027, with 4 it is 2.7764.
        ([92.0, 93.0, 94.0], "90.6", "93.0 | 93.0 | 90.5 to 95.5 | 88.0 to 98.0 | within"),
        ([92.0, 93.0, 94.0], "90.4", "93.0 | 93.0 | 90.5 to 95.5 | 88.0 to 98.0 | outside"),
        # 2.7764 x 1.304, the standard deviation: divided by sqrt(5), and times sqrt(6 / 5).
        ([90, 91, 92, 93, 90], "93.0", "91.0 | 91.2 | 89.6 to 92.8 | 87.2 to 95.2 | outside"),
        # The published score may be rounded from 89.95.
        ([89.9, 89.92, 89.94], "90.0", "89.9 | 89.9 | 89.9 to 90.0 | 89.8 to 90.0 | within"),
        ([50.0, 50.0], "50.0", "50.0 | 50.0 | - | - | cannot tell: no spread"),
        ([50.0], "50.0", "50.0 | 50.0 | - | - | cannot tell: no spread"),
        ([50.0, 51.0], "", "50.5 | 50.5 | 44.1 to 56.9 | 39.5 to 61.5 | not known"),
    ],
)
def test_a_published_score_is_within_the_interval_or_outside(ours, published, expected):
    *_, row = program.report([{"sst2": score} for score in ours], {"sst2": published})
    shown = ", ".join(f"{score:.1f}" for score in ours)
    assert row == f"| sst2 | {published or '-'} | {shown} | {expected} |"


LOG = """
I1 features of 60 examples: 61 rows, in train.npz
I1 features of 12 examples: read from dev.npz
I1 step 1/50 | loss 0.7 | compiled in 4 s
I1 step 2/50 | loss 0.7 | 30 examples/s | 4 s left
I1 step 3/50 | loss 0.7 | 1,000 examples/s | 3 s left
"""


def test_the_time_is_that_of_steps_and_evaluations():
    given = tiny.parse(
        *(FinetuningSettings, "--task_name=cola", "--do_train", "--output_dir=out"),
        train_batch_size=8,
        save_checkpoints_steps=20,
    )
    assert program.seconds_of(LOG, given) == 0
    rates = 30, 1000, 60
    # 50 steps, and three evaluations.
    expected = (50 * 8 + 3 * 12 / 3) * statistics.mean(1 / rate for rate in rates)
    more = "I1 step 9/50 | loss 0.7 | 60 examples/s | 3 s left\n"
    assert program.seconds_of(LOG + more, given) == pytest.approx(expected)


# --- the program ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Returns the directory of a tiny model in Hugging Face's layout, with its vocabulary."""
    folder = tmp_path_factory.mktemp("weights")
    model = tiny.randomise(AlbertModel(tiny.config(**finetune_runs.CONFIG)))
    source, target = tiny.store(folder / "own", model), folder / "theirs"
    spm = finetune_runs.GOLDEN / "spm/en_small.model"
    convert(source, "huggingface", str(target), spm_model_file=str(spm))
    return target


FLAGS = {
    "seeds": 2,
    "train_step": 12,
    "save_checkpoints_steps": 2,
    "max_seq_length": 23,
    "train_batch_size": 3,
    "static_lengths": 1,
    "learning_rate": 0.01,
}
MAIN = "import sys; sys.argv = {!r}; from research.reproduce.__main__ import main; main()"


def test_runs_from_the_hub_are_made_once_and_their_table_printed(weights, tmp_path):
    pytest.importorskip("huggingface_hub")
    folder = tmp_path / "out/sst2-albert-base-v2"
    model = {path.name: path.read_bytes() for path in weights.iterdir()}
    # Spare files are not fetched.
    glue = {"cola/train-00000-of-00001.parquet": b"", "sst2/test-00000-of-00001.parquet": b""}
    # Different numbers of rows tell the splits apart.
    for count, (ours, theirs) in enumerate(SPLITS.items(), start=1):
        rows = glue_rows("sst-2", ours) * count
        glue[f"sst2/{theirs}-0.parquet"] = parquet(tmp_path / "rows", rows)

    def reproduce(endpoint, **changes):
        given = {**FLAGS, "output_dir": tmp_path / "out", **changes}
        argv = ["", "sst2", *(f"--{name}={value}" for name, value in given.items())]
        offline = {"HF_HUB_OFFLINE": "0" if endpoint else "1"}
        return test_hub.run(MAIN.format(argv), tmp_path / "cache", endpoint, **offline)

    # It says what it is about to do, and how long that takes.
    served = {"albert/albert-base-v2": model, "datasets/nyu-mll/glue": glue}
    with serve(served) as (endpoint, fetched):
        found = reproduce(endpoint, seeds=1)
    assert found.returncode == 0, found.stderr
    assert {name for name in fetched if name.endswith("parquet")} == {*list(glue)[2:]}
    assert "model.safetensors" in fetched
    assert found.stdout.startswith("1 runs of albert-finetune --recipe=sst-2 ")
    assert "\npublished sst2 of albert-base-v2: 92.9\n" in found.stdout
    downloads = re.findall("to download from hf://([^:]+): (.*)", found.stdout)
    assert [name for name, _ in downloads] == list(served)
    size = len(model["model.safetensors"]) / 1e6
    assert f"model.safetensors ({size:.1f} MB)" in downloads[0][1]
    assert "sst2/train-0.parquet" in downloads[1][1] and "cola" not in downloads[1][1]
    time = r"seed-0/log.txt: a run takes about 0:0\d:\d\d, all 1 0:0\d:\d\d"
    assert re.search(time, found.stdout)
    log = (folder / "seed-0/log.txt").read_text()
    assert "HTTP" not in log

    # The existing run is kept; without a network the earlier downloads are enough.
    found = reproduce("")
    assert found.returncode == 0, found.stderr
    assert (folder / "seed-0/log.txt").read_text() == log

    # The table.
    ours = []
    for seed in range(2):
        lines = (folder / f"seed-{seed}/eval_results.jsonl").read_text().splitlines()
        metrics = [json.loads(line)["metrics"]["eval_accuracy"] for line in lines]
        assert len(metrics) == 6
        ours.append(100 * max(metrics))
    table = (folder / "table.md").read_text()
    assert found.stdout.endswith(table)
    assert f"| sst2 | 92.9 | {ours[0]:.1f}, {ours[1]:.1f} | {statistics.mean(ours):.1f} | " in table
    assert "albert-base-v2 in README of google-research/albert" in table
    assert "Beside the recipe's flags: --train_step=12" in table

    # Runs with other flags are not mixed with these.
    other = reproduce("", train_step=13)
    assert other.returncode == 1
    assert other.stderr.splitlines()[-1].endswith("other flags: give another --output_dir")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sst"], "TASK must be one of cola, mrpc, .*, not 'sst'"),
        ([""], "TASK must be one of"),
        (["rte", "--model=albert-tiny"], "--model must be one of albert-base-v2, .*'albert-tiny'"),
        (["rte", "--seeds=0"], "--seeds must be at least 1, not 0"),
        (["rte", "--train_steps=3"], "Unknown command line flag 'train_steps'.*train_step"),
        (
            ["rte", "--data=none", "--weights=W", "--max_seq_length=23"],
            "seed-0/log.txt: none/RTE/train.tsv does not exist",
        ),
    ],
)
def test_bad_input_is_one_line(argv, message, weights, tmp_path, monkeypatch):
    argv = [each.replace("=W", f"={weights}") for each in argv]
    monkeypatch.setattr(sys, "argv", ["reproduce", *argv, f"--output_dir={tmp_path}"])
    with pytest.raises(SystemExit, match=f"(?s)error: .*{message}") as ended:
        program.main()
    assert "\n" not in ended.value.code
