"""Where shards and blocks of a stream of documents begin and end."""

from __future__ import annotations

import functools
import itertools
import os

import pytest

from albert_tf.generator import documents


def _write(path, lengths):
    """Documents of one sentence, each with a line feed and a blank line."""
    path.write_text("".join(f"{'x' * (length - 2)}\n\n" for length in lengths))
    return str(path)


def _cut(files, num_shards=1, block_chars=10**6, start=None, first_shard=0):
    sizes = [os.path.getsize(path) for path in files]
    start = start or documents.Place()
    read = functools.partial(documents.read_documents, settings=documents.TextSettings())
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
    assert {block.shard for block in whole} == set(range(7))
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


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_every_document_is_in_one_block(tmp_path, num_shards):
    path = _write(tmp_path / "a", [3 + number % 13 for number in range(101)])
    cut = _cut([path], num_shards, block_chars=40)
    numbers = functools.reduce(list.__add__, itertools.chain(*_numbers(cut).values()))
    assert numbers == list(range(101))
