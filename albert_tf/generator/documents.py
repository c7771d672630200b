"""Files -> documents -> shards -> blocks of sentences that fit in memory."""

from __future__ import annotations

import dataclasses
import functools
import html
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from absl import logging

from albert_tf.console import errors
from albert_tf.console.settings import REQUIRED, Settings, setting
from albert_tf.generator.lines import ParquetText, TextFile
from albert_tf.storage import parquet_files

# A line of JSON must fit in memory as a whole.
MAX_JSON_LINE_BYTES = 2**25
# Longer documents are cut, so that text without blank lines can't exhaust memory.
MAX_DOCUMENT_SENTENCES = 50_000
MAX_DOCUMENT_CHARS = 2**24
# Number of sentences from which the fit of a vocabulary is estimated.
_SAMPLE = 3000

_DOC_TAG = re.compile(r'<doc\b(?:.*?\btitle="(?P<title>.*)")?.*>')
_JSON_LINES = re.compile(r"\.(jsonl|ndjson|json)(\.gz|\.bz2|\.zst)?$")
_ARCHIVE = re.compile(r"\.(tar|tar\.\w+|tgz)$")
_WHITE_SPACE = re.compile(r"\s")
# The last kana or Chinese character of a sentence.
_BEFORE_STOP = re.compile(r"(?<=[\u3040-\u9fff])[\u3040-\u9fff](?=[\u3002\uff01\uff1f])")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-\w+)*")


# --- files, and a parser for each format ----------------------------------------------------


_text = functools.partial(setting, group="Text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSettings(Settings):
    """Which text is read, and how it is stored."""

    input_file: str = _text(
        REQUIRED,
        "Text files to read, in UTF-8: paths or glob patterns, separated by commas. Names that end "
        "in .gz, .bz2 or .zst are decompressed.",
    )
    input_file_mode: str = _text(
        "r",
        "How to treat bytes that are not UTF-8. r: they are an error; rb: they are dropped.",
        choices=["r", "rb"],
    )
    input_format: str = _text(
        "lines",
        "Format of the text. lines, the release's: one sentence per line, a blank line between "
        "documents; paragraphs: one paragraph per line, a blank line between documents; jsonl: one "
        "document per line, as a JSON object; wikipedia: the output of WikiExtractor; parquet: one "
        "document per row.",
        choices=["lines", "paragraphs", "jsonl", "wikipedia", "parquet"],
    )
    text_field: str = _text(
        "text", "Name of the field, or column, with the text; for input_format=jsonl and parquet."
    )
    language: str = _text(
        "en",
        "ISO 639 code of the language whose rules split paragraphs into sentences. Not used for "
        "input_format=lines.",
    )

    def __post_init__(self) -> None:
        if not _LANGUAGE.fullmatch(self.language):
            raise ValueError(f"`language` must be a code such as en or zh, got {self.language!r}")


class Sentences(NamedTuple):
    """The next sentences of a file, and whether they complete their document."""

    sentences: list[str]
    ends_document: bool


# Splits a paragraph into sentences.
Splitter = Callable[[str], list[str]]
# Parses the file that `open_text` returns for its format.
Parser = Callable[[Any], Iterator[Sentences]]


def open_text(path: str, settings: TextSettings) -> TextFile | ParquetText:
    """Opens a file for the settings' parser."""
    if _ARCHIVE.search(path):
        raise ValueError(f"{path} is an archive: unpack it, and name the files in it")
    on_error = "strict" if settings.input_file_mode == "r" else "ignore"
    if settings.input_format == "parquet":
        return ParquetText(path, on_error)
    if path.endswith(parquet_files.ENDING):
        raise ValueError(f"{path} is not plain text: read it with `input_format=parquet`")
    if _JSON_LINES.search(path) and settings.input_format != "jsonl":
        raise ValueError(f"{path} is not plain text: read it with `input_format=jsonl`")
    return TextFile(path, on_error)


def _parse_lines(file: TextFile, split: Splitter, name: str) -> Iterator[Sentences]:
    is_known = False
    for line in file.lines():
        if line.startswith("<doc id=") and not is_known:
            is_known = True
            logging.warning(
                "%s begins with a tag, as WikiExtractor writes them, which is read as a sentence: "
                "`input_format=wikipedia` reads tags as the bounds of documents",
                file.here,
            )
        yield Sentences(split(line), not line)


def _parse_jsonl(file: TextFile, split: Splitter, name: str) -> Iterator[Sentences]:
    for line in file.whole_lines(MAX_JSON_LINE_BYTES):
        if line:
            yield from _document(file, split, _read_field(line, name, file))


def _parse_parquet(file: ParquetText, split: Splitter, name: str) -> Iterator[Sentences]:
    for text in file.cells(name):
        yield from _document(file, split, _checked_text(text, name, file))


def _document(file: TextFile | ParquetText, split: Splitter, text: str) -> Iterator[Sentences]:
    for paragraph in file.lines_within(text):
        yield Sentences(split(paragraph), False)
    yield Sentences([], True)


def _read_field(line: str, name: str, file: TextFile) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.here} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{file.here}: expected a JSON object, got a {type(record).__name__}")
    if name not in record:
        raise ValueError(
            f"{file.here} has no field {name!r}; its fields are "
            f"{', '.join(map(repr, record)) or 'none'}: set `text_field` to the field with the "
            "text"
        )
    return _checked_text(record[name], name, file)


def _checked_text(value: Any, name: str, file: TextFile | ParquetText) -> str:
    if not isinstance(value, str):
        type_name = type(value).__name__
        raise ValueError(f"{file.here}: field {name!r} must be a string, got a {type_name}")
    return value


def _parse_wikipedia(file: TextFile, split: Splitter, name: str) -> Iterator[Sentences]:
    # Lines are paragraphs between <doc ...> and </doc>; the first one may repeat the title.
    opened_by, title = "", None
    for line in file.lines():
        tag = _DOC_TAG.fullmatch(line)
        if tag and not opened_by:
            opened_by, title = file.here, html.unescape(tag["title"] or "")
        elif line == "</doc>" and opened_by:
            opened_by = ""
            yield Sentences([], True)
        elif opened_by and not tag:
            paragraph = html.unescape(line)
            if paragraph != title:
                yield Sentences(split(paragraph), False)
            title = None if line else title
        # Text outside a document or a tag within one: the file is damaged, or of another format.
        elif line:
            expected = "</doc>" if opened_by else "<doc ...>"
            raise ValueError(f"{file.here}: expected {expected}, got {line[:40]!r}")
    if opened_by:
        raise ValueError(
            f"{opened_by}: the document has no </doc>: check that the file is complete"
        )


def _make_splitter(settings: TextSettings) -> Splitter:
    """Returns the function that splits a line; unknown languages are split by general rules."""
    if settings.input_format == "lines":
        return lambda line: [line] if line else []
    with errors.of_extra("data", f"`input_format={settings.input_format}`"):
        import sentencex

    def split(paragraph: str) -> list[str]:
        # sentencex panics on a no-break space before a full stop, and looks back from each full
        # stop to the last space or slash: in Chinese, often to the start. So it gets a prepared
        # text of the same length: its pieces add up to it, so their ends fit the paragraph, too.
        prepared = _BEFORE_STOP.sub("/", _WHITE_SPACE.sub(" ", paragraph))
        pieces = sentencex.segment(settings.language, prepared)
        ends = itertools.accumulate(map(len, pieces), initial=0)
        stripped = (paragraph[start:end].strip() for start, end in itertools.pairwise(ends))
        return [sentence for sentence in stripped if sentence]

    return split


# The parser of each format takes a file, a splitter and the name of the field with the text.
PARSERS: dict[str, Callable[..., Iterator[Sentences]]] = {
    "lines": _parse_lines,
    "paragraphs": _parse_lines,
    "jsonl": _parse_jsonl,
    "wikipedia": _parse_wikipedia,
    "parquet": _parse_parquet,
}


# --- documents ------------------------------------------------------------------------------


class Document(NamedTuple):
    """A document and where it ends."""

    sentences: list[str]  # Stripped, non-empty strings; at least one.
    file_index: int  # Index of its file in the list of files.
    # Bytes of the stored file consumed when the document was complete: never decreasing, at most
    # the file's size. In a compressed file it moves in the decompressor's steps; in a .parquet file
    # it is the size times the share of rows read.
    offset: int


def read_documents(files: Sequence[str], settings: TextSettings) -> Iterator[Document]:
    """Yields one document after another, skipping those without text.

    Differs: the end of a file ends a document; the release joins it to the next file's first one.
    """
    parse = PARSERS[settings.input_format]
    parser = functools.partial(parse, split=_make_splitter(settings), name=settings.text_field)
    # A missing file, package or column is an error before the work begins.
    for path in files:
        with open_text(path, settings) as file:
            if isinstance(file, ParquetText):
                file.check(settings.text_field)
    return _read_all(files, parser, settings)


def sample_sentences(files: Sequence[str], settings: TextSettings) -> list[str]:
    """Returns the first file's first sentences, from which a vocabulary's fit is estimated."""
    documents = read_documents(files[:1], settings)  # Later files are checked by the run itself.
    sentences = (s for document in documents for s in document.sentences)
    return list(itertools.islice(sentences, _SAMPLE))


def _read_all(files: Sequence[str], parser: Parser, settings: TextSettings) -> Iterator[Document]:
    for file_index, path in enumerate(files):
        with open_text(path, settings) as file:
            for sentences in _gather(parser(file)):
                yield Document(sentences, file_index, file.consumed_bytes())


def _gather(parts: Iterator[Sentences]) -> Iterator[list[str]]:
    # A document ends where its file says so, or when it is too long.
    document: list[str] = []
    num_chars = 0
    for sentences, ends_document in parts:
        for sentence in sentences:
            document.append(sentence)
            num_chars += len(sentence)
            if len(document) == MAX_DOCUMENT_SENTENCES or num_chars >= MAX_DOCUMENT_CHARS:
                yield document
                document, num_chars = [], 0
        if ends_document and document:
            yield document
            document, num_chars = [], 0
    if document:
        yield document


# --- shards and blocks ----------------------------------------------------------------------


class Place(NamedTuple):
    """Where in the stream a document ends and the next begins."""

    file_index: int = 0  # The file of the last document.
    documents_of_file: int = 0  # Documents up to here, in that file.
    documents: int = 0  # Documents up to here, in all files.
    position: int = 0  # Stored bytes up to here, in all files.


class TextBlock(NamedTuple):
    """Consecutive documents that serve as each other's random documents."""

    shard: int  # The shard they all belong to.
    first_document: int  # Number of the first document in the corpus.
    documents: list[list[str]]  # The sentences of each.
    end: Place  # Where the last document ends.


def cut_blocks(
    read: Callable[[Sequence[str]], Iterator[Document]],
    files: Sequence[str],
    file_sizes: Sequence[int],
    num_shards: int,
    block_chars: int,
    start: Place,
    first_shard: int,
) -> Iterator[TextBlock]:
    """Reads documents and cuts them into blocks where a shard ends or a block is full.

    A shard is a region of the stored bytes and holds the documents that begin there. No shard is
    skipped, however long the document before it; a warning tells of such a document. The ends of
    blocks and shards depend only on the files, `num_shards` and `block_chars`. Documents before
    `start`, where `first_shard` begins, are skipped. `read` is read_documents with its settings.
    """
    # The position of a document is its place in all files' bytes, one after the other.
    total = max(sum(file_sizes), 1)
    begins = [0, *itertools.accumulate(file_sizes)]
    shard, place = first_shard - 1, start
    block: list[list[str]] = []
    first_document, chars = start.documents, 0
    is_warned = False
    # A resumed run reads its first file again, and skips the documents that it has done.
    rest = itertools.islice(read(files[start.file_index :]), start.documents_of_file, None)
    for document in rest:
        # A document belongs to the shard in whose region of bytes it begins; no shard is skipped.
        reached = min(place.position * num_shards // total, num_shards - 1)
        region = min(shard + 1, reached)
        if region < reached and not is_warned:
            logging.warning(
                "document %d fills more than one of the %d output files: each should hold many "
                "documents, and if the last hold none, the run fails at its end: write fewer files",
                place.documents,
                num_shards,
            )
            is_warned = True
        # A block ends with its shard, or when it is full.
        if block and (region != shard or chars >= block_chars):
            yield TextBlock(shard, first_document, block, place)
            block, first_document, chars = [], place.documents, 0
        shard = region
        block.append(document.sentences)
        chars += sum(map(len, document.sentences))
        # The place after this document: a resumed run begins there.
        file_index = start.file_index + document.file_index
        is_same_file = file_index == place.file_index
        place = Place(
            file_index,
            place.documents_of_file + 1 if is_same_file else 1,
            place.documents + 1,
            begins[file_index] + document.offset,
        )
    if block:
        yield TextBlock(shard, first_document, block, place)
