"""Cuts a stream of documents into shards, and shards into blocks that fit in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from absl import logging

if TYPE_CHECKING:
    from albert_tf.generator.documents import Document


class Place(NamedTuple):
    """Where in the stream a document ends and the next begins.

    Attributes:
      file_index: The file of the last document.
      documents_of_file: Documents up to here, in that file.
      documents: Documents up to here, in all files.
      position: Stored bytes up to here, in all files.
    """

    file_index: int = 0
    documents_of_file: int = 0
    documents: int = 0
    position: int = 0


class TextBlock(NamedTuple):
    """Consecutive documents that serve as each other's random documents.

    Attributes:
      shard: The shard they all belong to.
      first_document: Corpus number of the first document.
      documents: The sentences of each.
      end: Where the last document ends.
    """

    shard: int
    first_document: int
    documents: list[list[str]]
    end: Place


def cut_blocks(
    read: Callable[[Sequence[str]], Iterator[Document]],
    files: Sequence[str],
    file_sizes: Sequence[int],
    num_shards: int,
    block_chars: int,
    start: Place,
    first_shard: int,
) -> Iterator[TextBlock]:
    """Reads documents and cuts where a shard ends or a block is full.

    A shard is a region of the stored bytes and holds the documents that begin there; but no shard
    is skipped, however long the document before it, of which a line warns. Where blocks and
    shards end depends only on the files, `num_shards` and `block_chars`.

    Args:
      read: documents.read_documents, with its settings bound.
      files: What to read.
      file_sizes: Their stored sizes in bytes.
      num_shards: Number of regions.
      block_chars: Number of characters that fill a block.
      start: Where `first_shard` begins; documents before it are skipped.
      first_shard: Number of the first shard to cut.
    """
    total = max(sum(file_sizes), 1)
    begins = [0, *itertools.accumulate(file_sizes)]
    shard, place = first_shard - 1, start
    block: list[list[str]] = []
    first_document, chars = start.documents, 0
    is_warned = False
    rest = itertools.islice(read(files[start.file_index :]), start.documents_of_file, None)
    for document in rest:
        reached = min(place.position * num_shards // total, num_shards - 1)
        region = min(shard + 1, reached)
        if region < reached and not is_warned:
            _warn_of_long_document(place.documents, num_shards)
            is_warned = True
        if block and (region != shard or chars >= block_chars):
            yield TextBlock(shard, first_document, block, place)
            block, first_document, chars = [], place.documents, 0
        shard = region
        block.append(document.sentences)
        chars += sum(map(len, document.sentences))
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


def _warn_of_long_document(number: int, num_shards: int) -> None:
    logging.warning(
        "document %d fills more than one of the %d output files: each should hold many documents, "
        "and if the last hold none, the run fails at its end: write fewer files",
        number,
        num_shards,
    )
