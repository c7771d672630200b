"""Reads text as a stream of documents: one sentence per line, a blank line between documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import tensorflow as tf

# A longer document is cut here, so that text without blank lines can't fill the memory.
MAX_DOCUMENT_SENTENCES = 50_000


class Document(NamedTuple):
    """A document and where it ends.

    Attributes:
        sentences: as stripped strings, none of them empty; one at least.
        file_index: number of its file in the list of files.
        offset: bytes of the stored file that were consumed when the document was complete.
    """

    sentences: list[str]
    file_index: int
    offset: int


def list_input_files(patterns: str) -> list[str]:
    """Files of comma-separated names and globs, in the order of the patterns.

    Raises:
        FileNotFoundError: a pattern matches no file.
    """
    files: list[str] = []
    for pattern in patterns.split(","):
        matches = sorted(path for path in tf.io.gfile.glob(pattern) if not tf.io.gfile.isdir(path))
        if not matches:
            raise FileNotFoundError(
                f"input_file: no file matches {pattern!r}; name files or globs, separated by commas"
            )
        files.extend(matches)
    return files


def read_documents(files: Iterable[str], mode: str = "r") -> Iterator[Document]:
    """Yields one document after the other.

    Args:
        files: paths that tf.io.gfile can open.
        mode: "r" insists on UTF-8, "rb" leaves out the bytes that are not UTF-8.

    Raises:
        ValueError: a line is not UTF-8 under mode "r"; another mode.
        OSError: a file can't be read.

    Differs: the end of a file ends a document; the release joins it to the next file's first one.
    """
    if mode not in ("r", "rb"):
        raise ValueError(f"input_file_mode must be 'r' or 'rb', got {mode!r}")
    for file_index, path in enumerate(files):
        sentences: list[str] = []
        offset = 0
        for sentence, offset in _read_lines(path, "strict" if mode == "r" else "ignore"):
            if sentence:
                sentences.append(sentence)
            if sentences and (not sentence or len(sentences) == MAX_DOCUMENT_SENTENCES):
                yield Document(sentences, file_index, offset)
                sentences = []
        if sentences:
            yield Document(sentences, file_index, offset)


def _read_lines(path: str, errors: str) -> Iterator[tuple[str, int]]:
    number = 0
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            for line in file:
                number += 1
                yield line.decode("utf-8", errors).strip(), file.tell()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number} is not UTF-8 ({error.reason}); convert the file, or leave such "
            "bytes out with --input_file_mode=rb"
        ) from error
    except tf.errors.OpError as error:
        raise OSError(f"can't read {path} beyond line {number}: {error.message}") from error
