"""The data and the table of `make beside-release`. Can't see: the runs, which need the release."""

import contextlib
import json

from research.beside_release import finetuning, judging
from research.beside_release.finetuning import Run, Task

MRPC, COLA = (next(t for t in finetuning.TASKS if t.name == name) for name in ("mrpc", "cola"))


def test_each_seed_has_all_rows_in_another_order(tmp_path):
    rows = [f"{i % 2}\tid\tid\tfirst {i}\tsecond {i}" for i in range(97)]
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "train.tsv").write_bytes(
        "\r\n".join(["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows]).encode()
    )
    orders = set()
    for seed in range(3):
        finetuning.shuffle_rows(MRPC, tmp_path, seed, tmp_path / str(seed))
        text = (tmp_path / str(seed) / "MRPC" / "train.tsv").read_text(encoding="utf-8-sig")
        header, *shuffled = text.splitlines()
        assert header.startswith("Quality")
        assert shuffled != rows and sorted(shuffled) == sorted(rows)
        orders.add(tuple(shuffled))
    assert len(orders) == 3

    (tmp_path / "CoLA").mkdir()
    (tmp_path / "CoLA" / "train.tsv").write_text("a\t1\t\tOne.\nb\t0\t\tTwo.\nc\t1\t\tThree.\n")
    finetuning.shuffle_rows(COLA, tmp_path, 0, tmp_path / "0")
    shuffled = (tmp_path / "0" / "CoLA" / "train.tsv").read_text()
    assert sorted(shuffled.split()) == ["0", "1", "1", "One.", "Three.", "Two.", "a", "b", "c"]


def test_chooses_as_many_questions_with_their_paragraphs(tmp_path):
    paragraphs = [
        {"context": f"text {i}", "qas": [{"id": f"{i}-{j}"} for j in range(3)]} for i in range(7)
    ]
    data = [
        {"title": "a", "paragraphs": paragraphs[:5]},
        {"title": "b", "paragraphs": paragraphs[5:]},
    ]
    (tmp_path / "all.json").write_text(json.dumps({"version": "1.1", "data": data}))
    finetuning.choose_questions(tmp_path / "all.json", 11, tmp_path / "some" / "11.json")
    content = json.loads((tmp_path / "some" / "11.json").read_text())
    (article,) = content["data"]
    found = [(p["context"][5:], q["id"]) for p in article["paragraphs"] for q in p["qas"]]
    assert len(set(found)) == 11
    assert all(identity.startswith(f"{number}-") for number, identity in found)


def test_the_table_lists_every_run():
    task = Task("rte", 64, 16, 80, 1e-4, metrics=("eval_accuracy",), seeds=3)
    # Ours are 0.5, 0.6, 0.7; the others' are lower by 0.1, 0.2, 0.3, on average by 0.2.
    sides = {side: number for number, side in enumerate(task.sides)}
    scores = {
        Run(task, seed, side): {"eval_accuracy": 0.5 + seed / 10 - (number != 1) * (seed + 1) / 10}
        for side, number in sides.items()
        for seed in range(3)
    }
    lines = finetuning.report(scores)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:6]]
    assert [row[2] for row in cells] == list(task.sides)
    assert cells[1][3:] == ["0.5000, 0.6000, 0.7000", "0.6000", ""]
    # 0.2 -+ 4.3027 * 0.1 / sqrt(3), Student's t with 2 degrees of freedom.
    assert cells[0][3:] == ["0.4000, 0.4000, 0.4000", "0.4000", "+0.2000 (-0.0484 to +0.4484)"]
    assert "some 0.2 of these 3 intervals" in " ".join(" ".join(lines).split())


def test_a_run_is_judged_once_and_by_one_evaluator(tmp_path):
    directories = {name: tmp_path / name for name in ("old", "first", "second")}
    for directory in directories.values():
        directory.mkdir()
    (tmp_path / "old" / "score.json").write_text('{"score": 7.0}')
    made = []

    @contextlib.contextmanager
    def evaluator(first):
        made.append(first)
        yield lambda run: {"score": len(run)}

    expected = {"old": {"score": 7}, "first": {"score": 5}, "second": {"score": 6}}
    for _ in range(2):
        assert judging.judge(directories, "score.json", evaluator) == expected
    assert made == ["first"]
