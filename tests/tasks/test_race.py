import json

import pytest

from albert_tf.tasks import race
from albert_tf.text.sentence_piece import preprocess_text

PASSAGE = {
    "id": "middle7.txt",
    "article": "Tom has a cat.",
    "questions": ["Who has a cat?", "_ has a _ ."],
    "options": [["Tom", "Ann", "Bob", "Eve"], ["cat", "Tom", "dog", "pig"]],
    "answers": ["A", "D"],
}


def write(folder, name: str, *passages, level: str = "middle"):
    path = folder / "RACE" / "dev" / level / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(passage) for passage in passages))
    return folder


def read(folder, split: str, levels=race.LEVELS, preprocess=str):
    return race.read_race(folder, split, levels, preprocess=preprocess)


def test_examples_are_those_that_the_release_reads(golden):
    stored = json.loads((golden / "features/race.json").read_text())["examples"]
    examples = read(golden / "features/race_data", "train", preprocess=preprocess_text)
    for example, row in zip(examples, stored, strict=True):
        assert example.guid.rpartition("-")[0] == row["example_id"]
        assert preprocess_text(example.context) == row["context"]
        assert list(example.endings) == row["endings"]
        assert example.label == row["label"]


def test_levels_are_read_alone_or_together(golden):
    folder = golden / "features/race_data"
    middle, high = (read(folder, "dev", (level,)) for level in ("middle", "high"))
    assert middle and high and read(folder, "dev", race.LEVELS) == middle + high


def test_both_layouts_give_the_same(tmp_path):
    other = {**PASSAGE, "id": "middle10.txt", "article": "Ann has a dog."}
    one_file = write(tmp_path / "a", "all.txt", PASSAGE, other)
    tree = write(tmp_path / "b", "10.txt", other)
    write(tree, "7.txt", PASSAGE)
    examples = read(one_file, "dev", ("middle",))
    assert examples == read(tree, "dev", ("middle",))
    labels = [("middle7.txt-1", 0), ("middle7.txt-2", 3), ("middle10.txt-1", 0)]
    expected = [(*row, "middle") for row in [*labels, ("middle10.txt-2", 3)]]
    assert [(e.guid, e.label, e.level) for e in examples] == expected
    assert examples[0].endings[1] == "Who has a cat? Ann"
    assert examples[1].endings[0] == "cat has a cat ."


@pytest.mark.parametrize(
    ("question", "option", "ending"),
    [
        ("He is a _.", "doctor ", "he is a doctor."),
        ("He is a \uff3f.", "Doctor", "he is a doctor."),  # a full-width blank
        ("_ is  a\u3000_", "\tIt\n", "it is a it"),
        ("Who is it? ", " Ann", "who is it? ann"),
        ("ΑΣ_", "b", "αςb"),  # lower-cased before the option is put in: a final sigma
        ("\u00b4_", "x", " x"),  # an accent by itself leaves the space that it stands on
    ],
)
def test_question_and_option_are_normalised(tmp_path, tokenizer, question, option, ending):
    options = [option, "a", "b", "c"]
    passage = {**PASSAGE, "questions": [question], "options": [options], "answers": ["A"]}
    folder = write(tmp_path, "all.txt", passage)
    (example,) = read(folder, "dev", ("middle",), tokenizer.preprocess)
    assert example.endings[0] == ending
    # The release tokenizes the joined text as it is, without normalising it again.
    assert tokenizer.encode(ending) == tokenizer.convert_tokens_to_ids(tokenizer.tokenize(ending))
