"""Documents of each format, and where blocks of them begin and end."""

import functools
import gzip
import itertools
import json
import os
import time

import pytest

from albert_tf.generator import documents, lines
from albert_tf.generator.documents import Document
from tests.kit import tiny


def _settings(**settings):
    return documents.TextSettings(input_file="", **settings)


def _read(*paths, **settings):
    return list(documents.read_documents([str(path) for path in paths], _settings(**settings)))


def _sentences(*paths, **settings):
    return [document.sentences for document in _read(*paths, **settings)]


def test_blank_lines_and_ends_of_files_end_documents(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes("\n\nOne.\r\n  Two.  \n\ufeff \t\n\nThree.".encode())
    second.write_bytes("Vi\u00e9r.\n\n\n".encode())
    expected = [(["One.", "Two."], 0, 23), (["Three."], 0, 30), (["Vi\u00e9r."], 1, 8)]
    assert _read(first, second) == [Document(*each) for each in expected]
    blank = tiny.write(tmp_path / "b.txt.gz", gzip.compress("\ufeff\r\n \n\0\0\n".encode()))
    assert _read(tiny.write(tmp_path / "c.txt", ""), blank) == []


def test_tags_of_wikiextractor_are_pointed_out_once(tmp_path, caplog):
    tagged = tiny.write(tmp_path / "a.txt", '<doc id="1" title="A">\nOne.\n</doc>\n' * 2)
    plain = tiny.write(tmp_path / "b.txt", 'A tag <doc id="1"> in a sentence.\n<docile>\n')
    assert len(_sentences(plain, tagged)[1]) == 6
    (said,) = caplog.messages
    assert said.startswith(f"{tagged}, line 1 ") and "`input_format=wikipedia`" in said


def test_document_without_end_is_cut_by_sentences_and_by_length(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_DOCUMENT_SENTENCES", 3)
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{number}\n" for number in range(7)))
    assert _sentences(path) == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    monkeypatch.setattr(documents, "MAX_DOCUMENT_CHARS", 2)
    assert _sentences(path) == [["0", "1"], ["2", "3"], ["4", "5"], ["6"]]


def test_endless_line_becomes_bounded_sentences_of_bounded_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 101)
    monkeypatch.setattr(documents, "MAX_DOCUMENT_CHARS", 997)
    path = tmp_path / "a.txt"
    path.write_text("First.\n" + "word " * 5003 + "\nLast.\n")
    cut = _sentences(path)
    joined = " ".join(sentence for document in cut for sentence in document)
    assert joined == "First. " + "word " * 5003 + "Last."
    assert max(len(sentence) for document in cut for sentence in document) <= 101
    assert max(sum(map(len, document)) for document in cut) < 997 + 101
    # Before it is split.
    path = tiny.write(tmp_path / "a.jsonl", json.dumps({"text": "word " * 503 + "\nLast."}))
    (document,) = _parse(path, input_format="jsonl")[:1]
    assert max(map(len, document)) <= 101
    joined = " ".join(itertools.chain(*_parse(path, input_format="jsonl")))
    assert joined == "word " * 503 + "Last."


def test_text_is_the_same_in_every_format(tmp_path):
    pytest.importorskip("sentencex")
    expected = [["One is here.", "Two is there."], ["Three has come."]]
    contents = {
        "lines": "One is here.\nTwo is there.\n\nThree has come.\n",
        "paragraphs": "One is here. Two is there.\n\nThree has come.\n",
        "jsonl": '{"text": "One is here. Two is there."}\n{"text": "Three has come."}\n',
        "wikipedia": "<doc>\nOne is here. Two is there.\n</doc>\n<doc>\nThree has come.\n</doc>",
    }
    for input_format, content in contents.items():
        plain, compressed = tmp_path / input_format, tmp_path / f"{input_format}.gz"
        plain.write_text(content)
        compressed.write_bytes(gzip.compress(content.encode()))
        both = _read(plain, compressed, input_format=input_format)
        assert [document.sentences for document in both] == expected * 2
        assert [document.file_index for document in both] == [0, 0, 1, 1]
        sizes = [path.stat().st_size for path in (plain, compressed)]
        assert [document.offset for document in both[1::2]] == sizes


def _write(path, lengths):
    """Writes documents of one sentence, each followed by a line feed and a blank line."""
    path.write_text("".join(f"{'x' * (length - 2)}\n\n" for length in lengths))
    return str(path)


def _cut(files, num_shards=1, block_chars=10**6, start=None, first_shard=0):
    sizes = [os.path.getsize(path) for path in files]
    start = start or documents.Place()
    read = functools.partial(documents.read_documents, settings=_settings())
    cut = documents.cut_blocks(read, files, sizes, num_shards, block_chars, start, first_shard)
    return list(cut)


def _numbers(cut):
    """Returns, for each shard, the numbers of the documents in its blocks."""
    return {
        shard: [
            list(range(block.first_document, block.first_document + len(block.documents)))
            for block in of_shard
        ]
        for shard, of_shard in itertools.groupby(cut, lambda block: block.shard)
    }


def test_a_block_ends_with_the_document_that_fills_it(tmp_path):
    path = _write(tmp_path / "a", [12, 12, 12, 52, 12])
    cut = _cut([path], block_chars=20)
    assert _numbers(cut) == {0: [[0, 1], [2, 3], [4]]}
    assert cut[1].documents == [["x" * 10], ["x" * 50]]
    assert cut[0].end == documents.Place(0, 2, 2, 24)


def test_a_shard_has_the_documents_that_begin_in_its_region(tmp_path, caplog):
    # 100 bytes in three regions: documents begin at 0, 30, 40, 66 | 67 ..., 90.
    files = [_write(tmp_path / "a", [30, 10]), _write(tmp_path / "b", [26, 24, 10])]
    assert _numbers(_cut(files, num_shards=3)) == {0: [[0, 1]], 1: [[2, 3]], 2: [[4]]}
    assert not caplog.messages


def test_no_shard_is_left_out_behind_a_long_document(tmp_path, caplog):
    path = _write(tmp_path / "a", [5, 80, 5, 10])
    assert _numbers(_cut([path], num_shards=5)) == {0: [[0, 1]], 1: [[2]], 2: [[3]]}
    (warning,) = caplog.messages
    assert warning.startswith("document 2 fills more than one of the 5 output files: each should")


def test_the_rest_is_cut_the_same_from_the_end_of_any_shard(tmp_path):
    lengths = [3 + number * 7 % 31 for number in range(60)]
    files = [_write(tmp_path / str(k), lengths[k * 20 : k * 20 + 20]) for k in range(3)]
    whole = _cut(files, num_shards=7, block_chars=50)
    numbers = _numbers(whole)
    assert set(numbers) == set(range(7))
    # Every document is in one block.
    assert sum(itertools.chain(*numbers.values()), []) == list(range(60))
    for before, after in itertools.pairwise(whole):
        if before.shard != after.shard:
            rest = _cut(files, 7, 50, before.end, after.shard)
            assert rest == [block for block in whole if block.shard >= after.shard]
    assert _cut(files, 7, 50, whole[-1].end, 7) == []


def test_text_is_read_no_further_than_a_block_needs():
    reads = itertools.count()

    def read(files):
        for number in reads:
            yield documents.Document(["x" * 10], 0, 10 * number + 10)

    cut = documents.cut_blocks(read, ["a"], [10**9], 1, 1000, documents.Place(), 0)
    first, second = next(cut), next(cut)
    assert len(first.documents) == len(second.documents) == 100
    assert next(reads) == 201


def _parse(path, **settings):
    pytest.importorskip("sentencex", reason="needs the packages of albert_tf[data]")
    return _sentences(path, **settings)


ONE_TWO = ["One.", "Two."]
ENDS = "Das ist z.B. Unsinn. Er kam am 3. Oktober. \u8fd9\u662f\u3002\u597d\u3002"
JSON = [{"text": "One. Two.\nHeading without end\r\n\nThree.", "id": 1}]
JSON += [{"text": ""}, {"text": "Fo\0ur."}]
WIKIPEDIA = """\
<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="AT&T "Mobile"">
AT&T "Mobile"

AT&amp;T is a firm. It sells 3 &lt; 5 things.
History.
AT&T "Mobile"

</doc>
<doc id="25" revid="7" url="https://en.wikipedia.org/wiki?curid=25" title="Redirect">
Redirect

</doc>

<doc id="39">
One. Two.
</doc>
"""
# A format, other settings, a text, and its documents.
PARSED = [
    (
        *("paragraphs", {}, "Mr. Smith came. He left.\nA new one!\n\nOther text? Yes.\r\n"),
        [["Mr. Smith came.", "He left.", "A new one!"], ["Other text?", "Yes."]],
    ),
    (  # A language decides where a sentence ends.
        *("paragraphs", {"language": "de"}, ENDS),
        [["Das ist z.B. Unsinn.", "Er kam am 3. Oktober.", "\u8fd9\u662f\u3002", "\u597d\u3002"]],
    ),
    (
        *("jsonl", {}, "\ufeff" + "\n\n\ufeff".join(map(json.dumps, JSON))),
        [["One.", "Two.", "Heading without end", "Three."], ["Four."]],
    ),
    ("jsonl", {"text_field": "body"}, '{"text": 1, "body": "One."}', [["One."]]),
    ("jsonl", {"input_file_mode": "rb"}, b'{"text": "a\\ud800b\xffc"}', [["abc"]]),
    ("lines", {"input_file_mode": "rb"}, b"One.\nT\xffwo.\n", [ONE_TWO]),
    (  # Without tags, titles and entities.
        *("wikipedia", {}, WIKIPEDIA),
        [["AT&T is a firm.", "It sells 3 < 5 things.", "History.", 'AT&T "Mobile"'], ONE_TWO],
    ),
]


@pytest.mark.parametrize(("input_format", "settings", "text", "expected"), PARSED)
def test_a_text_gives_its_documents(tmp_path, input_format, settings, text, expected):
    path = tiny.write(tmp_path / "a.txt", text)
    assert _parse(path, input_format=input_format, **settings) == expected
    if "language" in settings:
        assert _parse(path, input_format=input_format, language="en") != expected


@pytest.mark.parametrize("space", ["\u00a0", "\u202f", "\u3000"])
def test_any_white_space_may_precede_a_full_stop(tmp_path, space):
    text = f"It has vitamin A{space}. Then\u00a0came the U.S{space}. Army."
    path = tiny.write(tmp_path / "a.txt", f"{text}\n")
    (document,) = _parse(path, input_format="paragraphs")[:1]
    assert " ".join(document) == text
    assert document[1].startswith("Then\u00a0came")


def test_a_long_chinese_paragraph_takes_time_by_its_length(tmp_path):
    sentences = ["这是一句话。", "他说：“好。”"]
    path = tiny.write(tmp_path / "a.txt", "".join(sentences) * 25_000)
    begin = time.process_time()
    (document,) = _parse(path, input_format="paragraphs", language="zh")
    assert time.process_time() - begin < 4  # It takes 0.1 s; in quadratic time, 10 s.
    assert document == sentences * 25_000
