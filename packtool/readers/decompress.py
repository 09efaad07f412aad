"""A file, compressed or not, becomes blocks of the bytes inside it, in order and in bounded memory."""

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from packtool.errors import BadData
from packtool.readers.units import changed, damaged, opened
from packtool.sources import Compression

_READ = 1 << 20
_SMALL_READ = 1 << 12
_ZEROS = re.compile(rb"\0*")
_GZIP_MEMBER = 31  # zlib's number for "a gzip header and trailer, window of 32 KiB"
_ZSTD_WINDOW = 1 << 27  # what `zstd --ultra -22` needs; `--long=31` would take 2 GiB
_ZSTD_READ = 1 << 10  # 4 bytes of zstd can stand for 128 KiB, so a step gives at most 32 MiB


def read_blocks(path: Path, compression: Compression) -> Iterator[bytes]:
    """The content of a file, in blocks of 1 byte to 1 MiB.

    Multi-member gzip and multi-frame zstd are one content.

    Raises:
        BadData: the file cannot be read, is cut short, damaged or followed by something else, needs a window
            of more than 128 MiB, or changed its size meanwhile. Blocks before the fault have been yielded.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if compression is Compression.GZIP:
            yield from _gunzip(path, file)
        elif compression is Compression.ZSTD:
            yield from _unzstd(path, file)
        else:
            while block := file.read(_READ):
                yield block
        if os.fstat(file.fileno()).st_size != size:
            raise changed(path)


def _gunzip(path: Path, file: BinaryIO) -> Iterator[bytes]:
    done = 0
    members = 0
    member = zlib.decompressobj(_GZIP_MEMBER)
    inside = False  # between the first byte of a member and its last
    step = _READ
    while read := file.read(_READ):
        data = memoryview(read)
        at = 0
        while at < len(data):
            if not inside and members:  # zeros after a member are padding, as gzip has it
                at = _ZEROS.match(read, at).end()  # type: ignore[union-attr]
                if at == len(data):
                    break
            inside = True
            piece = data[at : at + step]
            try:
                block = member.decompress(piece, _READ)
            except zlib.error as error:
                raise _damaged(path, "gzip", done, str(error)) from None
            done += len(block)
            if block:
                yield block
            # zlib copies what it has not used: little of a file of many small members, each after the other
            if member.eof:
                at += len(piece) - len(member.unused_data)
                inside, member = False, zlib.decompressobj(_GZIP_MEMBER)
                members += 1
                step = _SMALL_READ
            else:
                at += len(piece) - len(member.unconsumed_tail)
                step = min(2 * step, _READ)
    if inside:
        raise _damaged(path, "gzip", done, "the file is cut short")


def _unzstd(path: Path, file: BinaryIO) -> Iterator[bytes]:
    done = 0
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame = decompressor.decompressobj()
    inside = False
    while read := file.read(_READ):
        for start in range(0, len(read), _ZSTD_READ):
            data = read[start : start + _ZSTD_READ]
            while data:
                inside = True
                try:
                    block = frame.decompress(data)
                except zstandard.ZstdError as error:
                    raise _damaged(path, "zstd", done, str(error)) from None
                done += len(block)
                for at in range(0, len(block), _READ):
                    yield block[at : at + _READ]
                data = b""
                if frame.eof:
                    data, inside, frame = frame.unused_data, False, decompressor.decompressobj()
    if inside:
        raise _damaged(path, "zstd", done, "the file is cut short")


def _damaged(path: Path, what: str, done: int, reason: str) -> BadData:
    return damaged(path, f"{what} after {done:,} decompressed bytes", reason)
