"""Decompression: all members and frames, every kind of damage by name, and no more memory than a few blocks."""

import gzip
import random
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import BadData
from packtool.readers import decompress
from packtool.readers.decompress import read_blocks
from packtool.sources import Compression

TEXT = b"".join(b'{"text": "%d"}\n' % random.Random(number).getrandbits(200) for number in range(30_000))
SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"  # a frame of zstd that holds nothing to decompress


def compressed(data: bytes, compression: Compression) -> bytes:
    return gzip.compress(data, 1, mtime=0) if compression is Compression.GZIP else zstandard.compress(data)


both = pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])


@both
def test_members_and_frames_are_one_content(tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "a"
    parts = [TEXT[:10], b"", TEXT[10:1_000_000], TEXT[1_000_000:]]
    path.write_bytes(b"".join(compressed(part, compression) for part in parts))
    blocks = list(read_blocks(path, compression))
    assert b"".join(blocks) == TEXT
    assert {len(block) for block in blocks} <= set(range(1, (1 << 20) + 1))


@both
@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_content_does_not_depend_on_how_the_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: Compression, block: int
) -> None:
    path = tmp_path / "a"
    # one byte of the file stands for many of the content, which have to wait for the next block
    data = b"x" * 2000 + TEXT[:3000]
    path.write_bytes(compressed(data, compression) + compressed(b"x" * 300, compression))
    monkeypatch.setattr(decompress, "_READ", block)
    blocks = list(read_blocks(path, compression))
    assert b"".join(blocks) == data + b"x" * 300
    assert max(map(len, blocks)) == block


def test_what_gzip_and_zstd_put_around_the_content_is_no_content(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"abc") + bytes(5000))
    assert b"".join(read_blocks(path, Compression.GZIP)) == b"abc"
    path.write_bytes(gzip.compress(b"") + bytes(5000))
    assert b"".join(read_blocks(path, Compression.GZIP)) == b""
    path.write_bytes(SKIPPABLE + zstandard.compress(b"abc") + SKIPPABLE + zstandard.compress(b"def"))
    assert b"".join(read_blocks(path, Compression.ZSTD)) == b"abcdef"


@both
@given(where=st.floats(0.001, 0.999))
def test_a_file_cut_short_is_named_after_what_was_whole(
    tmp_path_factory: pytest.TempPathFactory, compression: Compression, where: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.jsonl.x"
    whole = compressed(TEXT, compression)
    path.write_bytes(whole[: max(1, int(len(whole) * where))])
    read: list[bytes] = []
    with pytest.raises(BadData, match=rf"cut\.jsonl\.x: damaged {compression}.*cut short"):
        read.extend(read_blocks(path, compression))
    assert TEXT.startswith(b"".join(read))


@both
def test_garbage_after_the_content_and_flipped_bytes_are_named(tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "a.x"
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    whole = gzip.compress(TEXT, 1) if compression is Compression.GZIP else whole
    path.write_bytes(whole + b"garbage")
    blocks = read_blocks(path, compression)
    with pytest.raises(BadData, match=rf"a\.x: damaged {compression} after {len(TEXT):,} decompressed bytes"):
        list(blocks)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    path.write_bytes(flipped)
    with pytest.raises(BadData, match=rf"a\.x: damaged {compression}"):
        list(read_blocks(path, compression))


def test_a_window_beyond_128_mib_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=30)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path.write_bytes(compressor.compress(b"abc") + compressor.flush())
    with pytest.raises(BadData, match=r"a\.zst: damaged zstd.*memory"):
        list(read_blocks(path, Compression.ZSTD))


@both
def test_a_bomb_takes_no_memory(tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "bomb"
    size = 300 << 20
    if compression is Compression.GZIP:
        with gzip.open(path, "wb", 1) as file:
            for _ in range(size >> 20):
                file.write(bytes(1 << 20))
    else:
        path.write_bytes(zstandard.compress(bytes(size)))
    tracemalloc.start()
    try:
        assert sum(len(block) for block in read_blocks(path, compression)) == size
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_members_without_number_are_each_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # zlib copies what follows a member; with all that was read given to it, a file's time grew with its square
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"", mtime=0) * 4000 + gzip.compress(TEXT[:500_000], mtime=0))
    given: list[int] = []
    original = zlib.decompressobj

    class Counted:
        def __init__(self, window: int) -> None:
            self._member = original(window)

        def decompress(self, data: bytes, most: int) -> bytes:
            given.append(len(data))
            return self._member.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._member, name)

    monkeypatch.setattr(decompress.zlib, "decompressobj", Counted)
    assert b"".join(read_blocks(path, Compression.GZIP)) == TEXT[:500_000]
    assert sum(given) <= path.stat().st_size + len(given) * 4096 + (1 << 20)


def test_zeros_between_members_are_padding_too(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"abc") + bytes(5000) + gzip.compress(b"def") + bytes(3))
    assert b"".join(read_blocks(path, Compression.GZIP)) == b"abcdef"
    path.write_bytes(gzip.compress(b"abc") + bytes(5000) + b"x")
    with pytest.raises(BadData, match="damaged gzip after 3 decompressed bytes"):
        list(read_blocks(path, Compression.GZIP))
