"""cells.jsonl: a line a step, whole at any moment, changed by several studies at once."""

import json
import threading

import pytest

from research.experiments.kept import Kept


def test_lines_are_in_the_order_of_keys_and_metrics_in_their_own(tmp_path):
    path = tmp_path / "results/cells.jsonl"
    for key in ("b", "c", "a"):
        Kept(path).put({"key": key, "metrics": {"y": 1, "x": 0.1}})
    Kept(path).put({"key": "c", "metrics": {"z": 2}})
    Kept(path).discard("b", "none")
    assert path.read_text() == (
        '{"key": "a", "metrics": {"y": 1, "x": 0.1}}\n{"key": "c", "metrics": {"z": 2}}\n'
    )
    assert [each.name for each in path.parent.iterdir()] == ["cells.jsonl"]


def test_nothing_that_another_study_writes_is_lost(tmp_path):
    def write(first):
        kept = Kept(tmp_path / "cells.jsonl")
        for number in range(first, first + 30):
            kept.put({"key": f"{number:03}"})

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 30, 60)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    lines = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == [f"{i:03}" for i in range(90)]


def test_what_another_wrote_is_seen(tmp_path):
    kept = Kept(tmp_path / "cells.jsonl")
    assert "a" not in kept
    Kept(tmp_path / "cells.jsonl").put({"key": "a"})
    assert "a" in kept and kept.get("a") == {"key": "a"}


@pytest.mark.parametrize("line", ['{"key": "b"', '{"metrics": {}}', "3"])
def test_a_damaged_line_is_named(tmp_path, line):
    (tmp_path / "cells.jsonl").write_text(f'{{"key": "a"}}\n{line}\n')
    with pytest.raises(ValueError, match="line 2 of .*cells.jsonl is damaged"):
        Kept(tmp_path / "cells.jsonl").get("a")
