"""Reads text as a stream of documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from albert_tf.generator import formats
from albert_tf.generator.formats import TextSettings

# Longer documents are cut here, so that text without blank lines can't exhaust memory.
MAX_DOCUMENT_SENTENCES = 50_000
MAX_DOCUMENT_CHARS = 2**24


class Document(NamedTuple):
    """A document and where it ends.

    Attributes:
      sentences: Stripped, non-empty strings; at least one.
      file_index: Index of its file in the list of files.
      offset: Bytes of the stored file consumed when the document was complete. It never decreases
        and is at most the file's size; in a compressed file it moves in the steps in which the
        decompressor reads, and of a .parquet file it is its rows' share.
    """

    sentences: list[str]
    file_index: int
    offset: int


def read_documents(files: Sequence[str], settings: TextSettings) -> Iterator[Document]:
    """Yields one document after another, skipping those without text.

    Args:
      files: Paths that tf.io.gfile can open; .gz, .bz2 and .zst are decompressed.
      settings: See TextSettings.

    Raises:
      ValueError: If a required package is not installed, a file is of another format, or a
        .parquet file lacks the column (at once); if the text is not UTF-8 or not in its format
        (when it is reached).
      OSError: If a local file can't be opened (at once); if one can't be read or decompressed (when
        it is reached).

    Differs: the end of a file ends a document; the release joins it to the next file's first one.
    """
    parser = formats.make_parser(settings)
    for path in files:
        formats.check_text(path, settings)  # Before the work begins.
    return _read_all(files, parser, settings)


def _read_all(
    files: Sequence[str], parser: formats.Parser, settings: TextSettings
) -> Iterator[Document]:
    for file_index, path in enumerate(files):
        with formats.open_text(path, settings) as file:
            for sentences in _gather(parser(file)):
                yield Document(sentences, file_index, file.consumed_bytes())


def _gather(parts: Iterator[formats.Sentences]) -> Iterator[list[str]]:
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
