"""What a document is in each format, and what is refused."""

from __future__ import annotations

import json
import sys
import time

import pytest

from albert_tf.generator import documents
from albert_tf.generator.lines import TextFile

pytest.importorskip("sentencex", reason="needs the packages of albert_tf[data]")


def _parse(path, **settings):
    parse = documents.make_parser(documents.TextSettings(**settings))
    errors = "strict" if settings.get("mode", "r") == "r" else "ignore"
    found, document = [], []
    with TextFile(str(path), errors) as file:
        for sentences, ends_document in parse(file):
            document += sentences
            if ends_document:
                found.append(document)
                document = []
    return [*found, document]


@pytest.fixture
def write(tmp_path):
    def write_text(text, name="a.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_text


def test_paragraphs_are_split_into_sentences(write):
    path = write("Mr. Smith came. He left.\nA new one!\n\nOther text? Yes.\r\n")
    assert _parse(path, input_format="paragraphs") == [
        ["Mr. Smith came.", "He left.", "A new one!"],
        ["Other text?", "Yes."],
    ]


def test_language_decides_where_a_sentence_ends(write):
    path = write("Das ist z.B. Unsinn. Er kam am 3. Oktober. \u8fd9\u662f\u3002\u597d\u3002")
    (document,) = _parse(path, input_format="paragraphs", language="de")
    assert document == [
        "Das ist z.B. Unsinn.",
        "Er kam am 3. Oktober.",
        "\u8fd9\u662f\u3002",
        "\u597d\u3002",
    ]
    assert _parse(path, input_format="paragraphs", language="en")[0] != document


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


def test_jsonl_is_a_document_per_line(write):
    lines = [
        {"text": "One. Two.\nHeading without end\r\n\nThree.", "id": 1},
        {"text": ""},
        {"text": "Fo\0ur."},
    ]
    path = write("\ufeff" + "\n\n".join(json.dumps(line) for line in lines))
    assert _parse(path, input_format="jsonl") == [
        ["One.", "Two.", "Heading without end", "Three."],
        [],
        ["Four."],
        [],
    ]


def test_jsonl_field_has_a_name(write):
    path = write('{"text": 1, "body": "One."}')
    assert _parse(path, input_format="jsonl", text_field="body") == [["One."], []]


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


def test_what_is_no_character_can_be_left_out_of_json(write):
    path = write(b'{"text": "a\\ud800b\xffc"}')
    assert _parse(path, input_format="jsonl", mode="rb") == [["abc"], []]


def test_json_line_has_a_limit(write, monkeypatch):
    monkeypatch.setattr(documents, "MAX_JSON_LINE_BYTES", 101)
    path = write(json.dumps({"text": "word " * 17}) + "\n" + json.dumps({"text": "word " * 19}))
    with pytest.raises(ValueError, match="a.txt, line 2 has more than 101 bytes"):
        _parse(path, input_format="jsonl")


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


def test_wikipedia_documents_lose_tags_title_and_entities(write):
    assert _parse(write(WIKIPEDIA), input_format="wikipedia") == [
        ["AT&T is a firm.", "It sells 3 < 5 things.", "History.", 'AT&T "Mobile"'],
        [],
        ["One.", "Two."],
        [],
    ]


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


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.ndjson", "a.json", "a.json.zst"])
def test_json_lines_are_not_plain_text(write, name):
    """Else its keys and braces would become pieces, and words of the records."""
    path = write("{}", name)
    with pytest.raises(ValueError, match="is not plain text: read it with `input_format=jsonl`"):
        documents.open_text(str(path), documents.TextSettings())


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz"])
def test_an_archive_is_not_text(write, name):
    """Else the names of its files would be words."""
    path = str(write("One.", name))
    for input_format in ("lines", "jsonl"):
        with pytest.raises(ValueError, match=f"{name} is an archive: unpack it, and name the fil"):
            documents.open_text(path, documents.TextSettings(input_format))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_format": "xml"}, "`input_format` must be one of lines, paragraphs, jsonl,"),
        ({"mode": "w"}, "`input_file_mode` must be 'r' or 'rb', got 'w'"),
        ({"language": "english"}, "`language` must be a code such as en or zh, got 'english'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        documents.TextSettings(**settings)


def test_missing_package_for_sentences(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    documents.make_parser(documents.TextSettings())
    with pytest.raises(ValueError, match=r"'sentencex', .* pip install 'albert_tf\[data\]'"):
        documents.make_parser(documents.TextSettings(input_format="jsonl"))
