"""Documents of each format, what is refused, and where blocks of them begin and end."""

import functools
import gzip
import itertools
import json
import os
import pathlib
import sys
import time

import pytest

from albert_tf.generator import documents, lines
from albert_tf.generator.documents import Document


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
    assert _read(first, second) == [
        Document(["One.", "Two."], 0, 23),
        Document(["Three."], 0, 30),
        Document(["Vi\u00e9r."], 1, 8),
    ]


def test_files_without_text_have_no_documents(tmp_path):
    empty, blank = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    empty.touch()
    blank.write_bytes(gzip.compress("\ufeff\r\n \n\0\0\n".encode()))
    assert _read(empty, blank) == []


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
    assert " ".join(sentence for document in cut for sentence in document) == (
        "First. " + "word " * 5003 + "Last."
    )
    assert max(len(sentence) for document in cut for sentence in document) <= 101
    assert max(sum(map(len, document)) for document in cut) < 997 + 101


def test_long_paragraphs_of_json_are_cut_before_they_are_split(tmp_path, monkeypatch):
    pytest.importorskip("sentencex")
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 101)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "word " * 503 + "\nLast."}))
    (document,) = _sentences(path, input_format="jsonl")
    assert " ".join(document) == "word " * 503 + "Last."
    assert max(map(len, document)) <= 101


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
        assert [document.offset for document in both[1::2]] == [
            plain.stat().st_size,
            compressed.stat().st_size,
        ]


def test_bytes_that_are_not_utf8_are_an_error_or_left_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"One.\nT\xffwo.\n")
    with pytest.raises(ValueError, match="a.txt, line 2 is not UTF-8 .*input_file_mode=rb"):
        _read(path)
    assert _sentences(path, input_file_mode="rb") == [["One.", "Two."]]


def test_a_file_that_cannot_be_opened_is_found_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
        documents.read_documents([str(tmp_path / "gone.txt")], _settings())


def test_a_file_with_a_scheme_that_cannot_be_read_is_an_error():
    with pytest.raises(OSError, match="can't read ram://gone.txt after line 0"):
        _read("ram://gone.txt")


def test_missing_packages_are_found_at_once(monkeypatch, tmp_path):
    (tmp_path / "a.txt").touch()
    for name in ("sentencex", "backports"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError, match=r"=paragraphs` needs .*'sentencex', .* 'albert_tf\[data\]'"
    ):
        documents.read_documents(["gone"], _settings(input_format="paragraphs"))
    with pytest.raises(ImportError, match="gone.zst needs the package 'backports', .* install"):
        documents.read_documents([str(tmp_path / "a.txt"), "gone.zst"], _settings())


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.gz", "b.ndjson", "b.json", "b.json.zst"])
def test_a_file_of_another_format_is_found_at_once(tmp_path, name):
    """Else its keys and braces would become pieces, and words of the records."""
    files = [str(tmp_path / each) for each in ("a.txt", name)]
    for path in files:
        pathlib.Path(path).write_text("Text.\n")
    with pytest.raises(ValueError, match=f"{name} is not plain text: read it with `input_format=j"):
        documents.read_documents(files, _settings())


def _write(path, lengths):
    """Documents of one sentence, each with a line feed and a blank line."""
    path.write_text("".join(f"{'x' * (length - 2)}\n\n" for length in lengths))
    return str(path)


def _cut(files, num_shards=1, block_chars=10**6, start=None, first_shard=0):
    sizes = [os.path.getsize(path) for path in files]
    start = start or documents.Place()
    read = functools.partial(documents.read_documents, settings=_settings())
    return list(
        documents.cut_blocks(read, files, sizes, num_shards, block_chars, start, first_shard)
    )


def _numbers(cut):
    """Per shard the numbers of its blocks' documents."""
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


def test_a_shard_has_the_documents_that_begin_in_its_region(tmp_path):
    # 100 bytes in three: documents begin at 0, 30, 40, 66 | 67 ..., 90.
    files = [_write(tmp_path / "a", [30, 10]), _write(tmp_path / "b", [26, 24, 10])]
    assert _numbers(_cut(files, num_shards=3)) == {0: [[0, 1]], 1: [[2, 3]], 2: [[4]]}


def test_no_shard_is_left_out_behind_a_long_document(tmp_path, caplog):
    path = _write(tmp_path / "a", [5, 80, 5, 10])
    assert _numbers(_cut([path], num_shards=5)) == {0: [[0, 1]], 1: [[2]], 2: [[3]]}
    (warning,) = caplog.messages
    assert warning.startswith("document 2 fills more than one of the 5 output files: each should")


def test_documents_shorter_than_a_shard_are_not_warned_of(tmp_path, caplog):
    _cut([_write(tmp_path / "a", [30, 40, 20, 10])], num_shards=2)
    assert not caplog.messages


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


@pytest.fixture
def write(tmp_path):
    def write_text(text, name="a.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_text


ENDS = "Das ist z.B. Unsinn. Er kam am 3. Oktober. \u8fd9\u662f\u3002\u597d\u3002"
JSON = [
    {"text": "One. Two.\nHeading without end\r\n\nThree.", "id": 1},
    {"text": ""},
    {"text": "Fo\0ur."},
]
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
    (  # Without tags, titles and entities.
        *("wikipedia", {}, WIKIPEDIA),
        [
            ["AT&T is a firm.", "It sells 3 < 5 things.", "History.", 'AT&T "Mobile"'],
            ["One.", "Two."],
        ],
    ),
]


@pytest.mark.parametrize(("input_format", "settings", "text", "expected"), PARSED)
def test_a_text_gives_its_documents(write, input_format, settings, text, expected):
    assert _parse(write(text), input_format=input_format, **settings) == expected
    if "language" in settings:
        assert _parse(write(text), input_format=input_format, language="en") != expected


@pytest.mark.parametrize("space", ["\u00a0", "\u202f", "\u3000"])
def test_any_white_space_may_precede_a_full_stop(write, space):
    path = write(f"It has vitamin A{space}. Then\u00a0came the U.S{space}. Army.\n")
    (document,) = _parse(path, input_format="paragraphs")[:1]
    assert " ".join(document) == f"It has vitamin A{space}. Then\u00a0came the U.S{space}. Army."
    assert document[1].startswith("Then\u00a0came")


def test_a_long_chinese_paragraph_takes_time_by_its_length(write):
    sentences = [
        "\u8fd9\u662f\u4e00\u53e5\u8bdd\u3002",
        "\u4ed6\u8bf4\uff1a\u201c\u597d\u3002\u201d",
    ]
    path = write("".join(sentences) * 25_000)
    begin = time.process_time()
    (document,) = _parse(path, input_format="paragraphs", language="zh")
    assert time.process_time() - begin < 4  # It takes 0.1 s; in the square of its length, 10 s.
    assert document == sentences * 25_000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "cut of', "a.txt, line 3 is not JSON: Unterminated string"),
        ("[" * 200_000, "a.txt, line 3 is not JSON: maximum recursion"),
        ('["text"]', "a.txt, line 3: expected a JSON object, got a list"),
        ('{"body": "x", "id": 1}', "a.txt, line 3 has no field 'text'; its fields are 'body',"),
        ("{}", "a.txt, line 3 has no field 'text'; its fields are none"),
        ('{"text": null}', "a.txt, line 3: field 'text' must be a string, got a NoneType"),
        ('{"text": ["a"]}', "a.txt, line 3: field 'text' must be a string, got a list"),
        ('{"text": "a\\ud800b"}', "a.txt, line 3 is not Unicode .*input_file_mode=rb"),
        (b'{"text": "a\xffb"}', "a.txt, line 3 is not UTF-8 .*input_file_mode=rb"),
    ],
)
def test_broken_json_line_is_named(write, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    path = write(b'{"text": "Good."}\n\n' + line + b'\n{"text": "Good."}\n')
    with pytest.raises(ValueError, match=message) as error:
        _parse(path, input_format="jsonl")
    assert "\n" not in str(error.value)


def test_json_line_has_a_limit(write, monkeypatch):
    monkeypatch.setattr(documents, "MAX_JSON_LINE_BYTES", 101)
    path = write(json.dumps({"text": "word " * 17}) + "\n" + json.dumps({"text": "word " * 19}))
    with pytest.raises(ValueError, match="a.txt, line 2 has more than 101 bytes"):
        _parse(path, input_format="jsonl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Just text.\n", "a.txt, line 1: expected <doc ...>, got 'Just text.'"),
        ('{"text": "x"}', "a.txt, line 1: expected <doc ...>, got '{"),
        ('<doc id="1">\nA.\n<doc id="2">\nB.\n</doc>', "line 3: expected </doc>, got '<doc id=\"2"),
        ('<doc id="1">\nA.\n</doc>\n</doc>', "a.txt, line 4: expected <doc ...>, got '</doc>'"),
        ('\n<doc id="1">\nA.\n', "a.txt, line 2: the document has no </doc>: check that the file"),
    ],
)
def test_what_is_no_wikipedia_extract_is_refused(write, text, message):
    with pytest.raises(ValueError, match=message):
        _parse(write(text), input_format="wikipedia")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz"])
def test_an_archive_is_not_text(write, name):
    """Else the names of its files would be words."""
    path = str(write("One.", name))
    for input_format in ("lines", "jsonl"):
        with pytest.raises(ValueError, match=f"{name} is an archive: unpack it, and name the fil"):
            documents.open_text(path, _settings(input_format=input_format))


def test_a_language_has_a_code():
    with pytest.raises(ValueError, match="`language` must be a code such as en or zh, got 'engli"):
        _settings(language="english")
