"""Lines of plain and compressed files, within bounds; what can't be read is named.

Not tested here: damage in a .zst file without checksums (the zstd program writes them).
"""

import bz2
import gzip
import io
import os
import sys

import pytest

from albert_tf.generator.lines import TextFile, _split_lines

_ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
TEXT = "".join(f"Line {number} with a w\u00f6rd.\n" for number in range(20_011))


def _compress_zst(content: bytes) -> bytes:
    zstd = pytest.importorskip(_ZSTD)
    return zstd.compress(content, options={zstd.CompressionParameter.checksum_flag: 1})


COMPRESSORS = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": _compress_zst}


def _read(path, errors="strict"):
    with TextFile(str(path), errors) as file:
        return list(file.lines())


def _parts(content: bytes, max_bytes: int):
    return list(_split_lines(io.BytesIO(content), max_bytes))


def test_lines_are_stripped_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeff One.\r\n\r\n\t Zw\u00f6lf\u3000\nn\0\0ext \rone\r\rlast\r".encode())
    assert _read(path) == ["One.", "", "Zw\u00f6lf", "next", "one", "", "last"]


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_file_is_its_text_in_one_stream_or_several(tmp_path, suffix):
    compress, half = COMPRESSORS[suffix], len(TEXT) // 2
    path, parts = tmp_path / f"a.txt{suffix}", (TEXT[:half].encode(), TEXT[half:].encode())
    for content in (compress(b"".join(parts)), b"".join(map(compress, parts))):
        path.write_bytes(content)
        assert _read(path) == TEXT.splitlines()


def test_zst_file_with_a_long_window(tmp_path):
    zstd = pytest.importorskip(_ZSTD)
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
    path = tmp_path / "a.zst"
    path.write_bytes(compressor.compress(b"One.\nTwo.") + compressor.flush())
    assert _read(path) == ["One.", "Two."]


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "plain"])
def test_damaged_compressed_file_is_named(tmp_path, suffix, damage):
    whole = COMPRESSORS[suffix](os.urandom(50_021).hex().encode())
    middle = len(whole) // 2
    content = {
        "empty": b"",
        "cut": whole[:-1009],
        "flipped": whole[:middle] + bytes(7) + whole[middle + 7 :],
        "plain": b"This is no compressed text at all.\n" * 5,
    }[damage]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(content)
    with pytest.raises(OSError, match=rf"can't read .*a.txt{suffix} after line \d+: \S") as error:
        _read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", ["", *COMPRESSORS])
def test_consumed_bytes_rise_to_the_size_of_the_stored_file(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    content = os.urandom(400_009).hex("\n", -16).encode()
    # In two streams: bzip2 reads ahead, to the end of a block of up to 900 kB, 128 KiB at a time.
    compress = COMPRESSORS[suffix] if suffix else bytes
    path.write_bytes(compress(content[:410_000]) + compress(content[410_000:]))
    with TextFile(str(path), "strict") as file:
        consumed = [file.consumed_bytes() for _ in file.lines()]
    assert consumed == sorted(consumed)
    assert consumed[-1] == path.stat().st_size
    assert consumed[0] < 0.7 * consumed[-1] if suffix else consumed[:3] == [33, 66, 99]


def test_long_line_is_cut_at_white_space_and_keeps_its_number():
    content = b"one\n" + b"ab " * 100 + b"\nend"
    parts = _parts(content, 31)
    assert b" ".join(part for _, part in parts).split() == content.split()
    assert [number for number, _ in parts] == [1] + [2] * (len(parts) - 2) + [3]
    assert all(len(part) <= 31 for _, part in parts)
    assert {word for number, part in parts if number == 2 for word in part.split()} == {b"ab"}
    # A line exactly at the limit stays whole; bytes that are not text are cut, too.
    assert _parts(b"abc def\nx", 8) == [(1, b"abc def\n"), (2, b"x")]
    assert b"".join(part for _, part in _parts(b"\x80" * 1009, 16)) == b"\x80" * 1009


@pytest.mark.parametrize("char", ["x", "\u00e9", "\u6f22", "\U0001f600"])
def test_long_line_without_white_space_is_cut_between_characters(char):
    text = "x " + char * 101
    for max_bytes in (16, 17, 18, 19):
        parts = [part for _, part in _parts(text.encode(), max_bytes)]
        assert "".join(part.decode() for part in parts) == text
        assert all(max_bytes - 4 < len(part) <= max_bytes for part in parts[1:-1])


@pytest.mark.parametrize("max_bytes", range(7, 19))
def test_white_space_within_a_long_line_is_no_blank_line(max_bytes):
    content = b"abc" + b" " * 53 + b"def" + b" " * 53 + b"\n" + b" " * 53 + b"\nend"
    stripped = [(number, part.strip()) for number, part in _parts(content, max_bytes)]
    assert stripped == [(1, b"abc"), (1, b"def"), (2, b""), (3, b"end")]
