"""The paper's tables: averages are those of their rows, and where two tables differ is known.

Can't see: a number that stands in one table alone, and in none of its averages.
"""

from __future__ import annotations

import csv

import pytest

from albert_tf import costs
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
    # Which table 1 says to be of 12.
    "xxlarge of 24 layers": [("2", "ALBERT xxlarge"), ("13", "24 layers")],
}
GLUE = ("MNLI", "QNLI", "QQP", "RTE", "SST", "MRPC", "CoLA", "STS", "WNLI")
# Of RACE's test set. Source: Lai et al. 2017, table 2.
RACE_QUESTIONS = {"race_middle": 1436, "race_high": 3498}
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
    """Of five tasks; a SQuAD's score is the mean of F1 and EM. Printed ones are rounded to 0.1."""
    value = {name: float(row[name]) for name in SCORES}
    squads = [(value[f"squad{i}_f1"] + value[f"squad{i}_em"]) / 2 for i in (1, 2)]
    mean = sum([*squads, value["mnli"], value["sst2"], value["race"]]) / 5
    assert abs(mean - value["avg"]) <= 0.05 + 1e-9


def test_where_the_paper_contradicts_itself():
    found = set()
    for model, places in SAME.items():
        same = [claims.published(table)[row] for table, row in places]
        found |= {(model, name) for name in SCORES if len({row[name] for row in same}) > 1}
    assert found == CONTRADICTIONS


def test_no_average_of_table_9_is_that_of_its_row():
    """They are the leaderboard's, which scores some tasks by two metrics; the paper prints one."""
    printed = [row for row in rows("glue") if row["avg"]]
    assert len(printed) == 6
    for row in printed:
        scores = [float(row[task]) for task in GLUE]
        assert 0.4 < sum(scores) / len(scores) - float(row["avg"]) < 1.1, row["model"]


def test_in_table_10_race_is_the_mean_over_questions_but_for_roberta():
    """Whose high-school score is printed as 81.3; with 81.8 the row would hold."""
    printed = [row for row in rows("squad_race") if row["race_middle"]]
    assert len(printed) == 7
    differ = set()
    for row in printed:
        correct = sum(count * float(row[part]) for part, count in RACE_QUESTIONS.items())
        mean = correct / sum(RACE_QUESTIONS.values())
        # Both parts and the mean are rounded to 0.1.
        if abs(mean - float(row["race_test"])) > 0.1:
            differ.add((row["model"], round(mean, 1)))
    assert differ == {("RoBERTa", 82.8)}


def test_table_10_prints_one_score_for_bert_and_xlnet():
    """On SQuAD 2.0's test set, though they differ by 7 points on its dev set."""
    single = {row["model"]: row for row in rows("squad_race") if row["kind"] == "single"}
    bert, xlnet = single["BERT-large"], single["XLNet"]
    assert bert["squad2_test_f1"] == xlnet["squad2_test_f1"] == "89.1"
    assert float(xlnet["squad2_dev_f1"]) - float(bert["squad2_dev_f1"]) == 7


def config_of(model):
    name = model.lower().replace(" ", "_")
    return AlbertConfig.from_json_file(name + ("_v1" if name.startswith("albert") else ""))


@pytest.mark.parametrize("row", rows("models"), ids=lambda row: row["model"])
def test_table_1_is_the_shipped_configs(row):
    config = config_of(row["model"])
    sizes = (config.num_hidden_layers, config.hidden_size, config.embedding_size)
    assert sizes == tuple(int(row[key]) for key in ("layers", "hidden", "embedding"))


def test_printed_parameters_are_those_counted_but_for_xxlarge():
    """Whose 235M (233M in the text) are 222.6M. By 3 %: the paper rounds to 1M of 12M."""
    printed = {row["model"]: row["parameters"] for row in rows("models")}
    assert len(printed) == 6
    again = {row["row"]: row["parameters"] for row in rows("downstream") if row["table"] == "2"}
    assert again == printed
    counted = {model: costs.count_encoder(config_of(model)) for model in printed}
    differ = {
        model
        for model, count in counted.items()
        if abs(float(printed[model].rstrip("M")) * 1e6 - count) > 0.03 * count
    }
    assert differ == {"ALBERT xxlarge"}
    assert round(counted["ALBERT xxlarge"], -5) == 222_600_000
