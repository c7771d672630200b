"""The paper's tables: averages are those of their rows, and where two tables differ is known."""

from __future__ import annotations

import csv

import pytest

from albert_tf.config import AlbertConfig
from experiments import claims, study

SCORES = ("squad1_f1", "squad1_em", "squad2_f1", "squad2_em", "mnli", "sst2", "race", "avg")
# Rows of the same model in several tables.
SAME = {
    "ALBERT base": [
        ("2", "ALBERT base"),
        ("3", "all-shared E=128"),
        ("4", "E=128 all-shared"),
        ("5", "SOP"),
        ("7", "no additional data"),
    ],
    "not shared, E=128": [("3", "not-shared E=128"), ("4", "E=128 not-shared")],
    "not shared, E=768": [
        ("2", "BERT base"),
        ("3", "not-shared E=768"),
        ("4", "E=768 not-shared"),
    ],
    "all shared, E=768": [("3", "all-shared E=768"), ("4", "E=768 all-shared")],
    "3 layers": [("11", "3 layers"), ("12", "H=1024")],
    "xxlarge of 12 layers": [("6", "ALBERT-xxlarge 125k 32h"), ("13", "12 layers")],
    # Which table 2 says to be of 12.
    "xxlarge of 24 layers": [("2", "ALBERT xxlarge"), ("13", "24 layers")],
}
CONTRADICTIONS = {
    ("ALBERT base", "mnli"),
    ("not shared, E=128", "mnli"),
    ("not shared, E=128", "avg"),
}


def rows(name):
    with open(study.HERE / f"published/{name}.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", rows("downstream"), ids=lambda row: f"{row['table']} {row['row']}")
def test_a_printed_average_is_that_of_its_row(row):
    """Of five tasks; a SQuAD's score is the mean of F1 and EM. Each number is rounded to 0.1."""
    value = {name: float(row[name]) for name in SCORES}
    squads = [(value[f"squad{i}_f1"] + value[f"squad{i}_em"]) / 2 for i in (1, 2)]
    mean = sum([*squads, value["mnli"], value["sst2"], value["race"]]) / 5
    assert abs(mean - value["avg"]) <= 0.1 + 1e-9


def test_where_the_paper_contradicts_itself():
    found = set()
    for model, places in SAME.items():
        same = [claims.published(table)[row] for table, row in places]
        found |= {(model, name) for name in SCORES if len({row[name] for row in same}) > 1}
    assert found == CONTRADICTIONS


def test_table_9s_average_is_not_that_of_its_row():
    """It is the leaderboard's, which has more numbers than the paper prints."""
    scores = {row["task"]: float(row["score"]) for row in rows("state_of_the_art")[8:18]}
    average = scores.pop("average")
    assert len(scores) == 9 and sum(scores.values()) / 9 - average > 1


@pytest.mark.parametrize("row", rows("models"), ids=lambda row: row["model"])
def test_table_1_is_the_shipped_configs(row):
    name = row["model"].lower().replace(" ", "_")
    name += "_v1" if name.startswith("albert") else ""
    config = AlbertConfig.from_json_file(name)
    sizes = (config.num_hidden_layers, config.hidden_size, config.embedding_size)
    assert sizes == tuple(int(row[key]) for key in ("layers", "hidden", "embedding"))
