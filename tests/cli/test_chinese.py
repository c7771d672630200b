"""CLUE's tasks by their recipes, in its file format, from a checkpoint of albert_zh."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

import albert_tf
from albert_tf.cli import finetune
from albert_tf.conversion import labels as labels_file
from albert_tf.tasks.glue import TextExample
from tests import finetune_runs as runs

WEIGHTS = runs.GOLDEN / "albert_zh"
RECIPES = pathlib.Path(__file__).parents[2] / "configs" / "recipes"
TITLES = ["花呗可以提额度", "妈妈喜欢旅游", "军事新闻", "教育新闻2019", "我喜欢喝汤！", "金融"]


def write(path: pathlib.Path, rows: list[dict]) -> pathlib.Path:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tnews(folder: pathlib.Path) -> list[str]:
    """Writes files as in tnews_public.zip; returns their flags."""
    rows = [
        {"label": label, "label_desc": f"news_{label}", "sentence": title, "keywords": "花呗,额度"}
        for title, label in zip(TITLES, ["104", "112", "110", "108", "112", "104"], strict=True)
    ]
    test = [{"id": i, "sentence": title, "keywords": ""} for i, title in enumerate(TITLES[:3])]
    return [
        f"--train_file={write(folder / 'train.json', rows)}",
        f"--eval_file={write(folder / 'dev.json', rows[1:])}",
        f"--predict_file={write(folder / 'test.json', test)}",
    ]


def command(recipe: str, folder: pathlib.Path, *arguments: str) -> list[str]:
    places = [f"--init_checkpoint={WEIGHTS}", f"--output_dir={folder / 'out'}"]
    return [f"--flagfile={RECIPES / recipe}.flags", *places, *arguments]


def test_tnews_is_learnt_from_the_checkpoint(tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    changes = ["--max_seq_length=40", "--train_batch_size=3", "--learning_rate=1e-3"]
    changes += ["--num_train_epochs=20", "--save_checkpoints_steps=40", "--static_lengths=1"]
    runs.main(command("tnews", tmp_path, *tnews(tmp_path), *changes))
    assert f"vocabulary: {WEIGHTS}/vocab.txt" in caplog.text
    assert "E = H = 24): training updates all of its 44 x 24 numbers" in caplog.text
    config = albert_tf.AlbertConfig.from_json_file(tmp_path / "out/albert_config.json")
    assert config.embedding_size == config.hidden_size == 24
    labels = labels_file.read(str(tmp_path / "out"))
    assert labels == ("104", "108", "110", "112")
    probabilities = np.loadtxt(tmp_path / "out/test_results.tsv")
    assert [labels[i] for i in probabilities.argmax(1)] == ["104", "112", "110"]


PAIRS = [("双十一花呗提额在哪", "里可以提花呗额度", "0"), ("花呗很好", "花呗好", "1")]


@pytest.mark.parametrize(
    ("recipe", "file", "content"),
    [
        ("afqmc", "dev.json", None),
        ("lcqmc", "dev.json", None),
        (
            "lcqmc",
            "dev.tsv",
            "\n".join("\t".join(row) for row in [("sentence1", "sentence2", "label"), *PAIRS]),
        ),
    ],
)
def test_pairs_are_read_in_the_format_they_are_published_in(tmp_path, recipe, file, content):
    path = tmp_path / file
    if content:
        path.write_text(content, encoding="utf-8")
    else:
        names = ("sentence1", "sentence2", "label")
        write(path, [dict(zip(names, row, strict=True)) for row in PAIRS])
    files = [f"--train_file={path}", f"--eval_file={path}"]
    settings = runs.parse(command(recipe, tmp_path, "--do_eval", *files))
    task = finetune.make_task(settings)
    assert task.classes == ("0", "1")
    first = 2 if content else 1
    assert settings.row.read(settings, "dev", task) == [
        TextExample(str(first + i), a, b, int(label)) for i, (a, b, label) in enumerate(PAIRS)
    ]
