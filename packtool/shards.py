"""The shard contract: the six columns, how packs are written to one Parquet file, and how they are read back.

Knows nothing of documents' texts, plans or the manifest. Arrays are flat: ``PackBatch`` holds the packs of
one row group laid end to end.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.fs import LocalFileSystem

from packtool.contract import FORMAT_VERSION, IGNORED, PADDING_DOC
from packtool.errors import BadData, one_line
from packtool.files import Unreadable, fsync_folder, naming, parse_own, sha256_of, temporary_name
from packtool.parquet.footer import RowGroup, read_row_groups
from packtool.parquet.pages import chunk_size

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

ROW_GROUP_TOKENS = 256 * 1024
TOKEN_COLUMNS = ("input_ids", "labels", "position_ids")
SEGMENT_COLUMNS = ("seq_lengths", "doc_ids", "doc_offsets")
SCHEMA = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.int32())),
        pa.field("labels", pa.list_(pa.int32())),
        pa.field("position_ids", pa.list_(pa.int32())),
        pa.field("seq_lengths", pa.list_(pa.int32())),
        pa.field("doc_ids", pa.list_(pa.int64())),
        pa.field("doc_offsets", pa.list_(pa.int32())),
    ]
)
_READABLE_ROW_GROUPS = 4
"""So many times the tokens of a row group a column may hold; one that says it holds more is not read."""
_READABLE_BYTES_PER_TOKEN = 16
"""Of a page, decompressed; a value takes at most 8, and a little for where lists begin."""
_LONGEST_READABLE = 1 << 25
"""Tokens of a pack, whatever the manifest tells: what is not read cannot fill the memory."""
SHARD_NAME = re.compile(r"train-(\d{5})-of-(\d{5})\.parquet")

_KEY_PREFIX = b"packtool."
# A damaged footer can also hold a column name that is not UTF-8.
_UNREADABLE = (OSError, UnicodeDecodeError, pa.ArrowException)
# Chosen by the measurements of docs/benchmarks.md: positions and lengths shrink to almost nothing as deltas.
_WRITER_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "write_statistics": False,
    "column_encoding": {
        "input_ids.list.element": "PLAIN",
        "labels.list.element": "PLAIN",
        "position_ids.list.element": "DELTA_BINARY_PACKED",
        "seq_lengths.list.element": "DELTA_BINARY_PACKED",
        "doc_ids.list.element": "PLAIN",
        "doc_offsets.list.element": "PLAIN",
    },
}


def shard_name(index: int, count: int) -> str:
    """The final name of shard ``index`` of ``count``."""
    return f"train-{index:05d}-of-{count:05d}.parquet"


def row_group_packs(max_length: int) -> int:
    """Packs in a row group: about 256k tokens, at least one pack."""
    return max(1, ROW_GROUP_TOKENS // max_length)


@dataclass(frozen=True, slots=True)
class PackBatch:
    """The packs of one row group, flat.

    Padding, where there is any, is part of every array: one segment of doc id -1 at the end of its pack.
    """

    input_ids: Int32s
    """int32 [T]."""
    labels: Int32s
    """int32 [T], not shifted; -100 where a token carries no loss."""
    position_ids: Int32s
    """int32 [T], restarting at 0 for every segment."""
    seq_lengths: Int32s
    """int32 [S], the tokens of each segment."""
    doc_ids: Int64s
    """int64 [S]."""
    doc_offsets: Int32s
    """int32 [S]."""
    pack_tokens: Int32s
    """int32 [P], list length of the token columns for each pack, padding included; sums to T."""
    pack_segments: Int32s
    """int32 [P], list length of the segment columns for each pack, padding included; sums to S."""

    @property
    def packs(self) -> int:
        """P."""
        return len(self.pack_tokens)

    @property
    def is_padding(self) -> NDArray[np.bool_]:
        """bool [S], which segments are padding."""
        padding: NDArray[np.bool_] = self.doc_ids == PADDING_DOC
        return padding

    def digest_into(self, digest: "hashlib._Hash") -> None:
        """Feed the logical content, independent of how Parquet stores it, to ``digest``."""
        sizes = np.array([self.packs], dtype="<i8")
        for array in (sizes, self.pack_tokens, self.pack_segments):
            digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
        for name in TOKEN_COLUMNS + SEGMENT_COLUMNS:
            array = getattr(self, name)
            digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)

    def to_arrow(self) -> pa.Table:
        """The batch as a table of the six columns, without copying the values."""
        lists: list[pa.Array] = []
        for name in TOKEN_COLUMNS:
            lists.append(_list_array(self.pack_tokens, getattr(self, name)))
        for name in SEGMENT_COLUMNS:
            lists.append(_list_array(self.pack_segments, getattr(self, name)))
        return pa.table(lists, schema=SCHEMA)

    def real_sums(self) -> tuple[Int64s, Int64s, Int64s]:
        """Per pack, padding left out: tokens, sum of squared segment lengths, segments; each int64 [P]."""
        real = np.where(self.is_padding, 0, self.seq_lengths).astype(np.int64)
        starts = _starts(self.pack_segments)
        tokens = np.add.reduceat(real, starts)
        squares = np.add.reduceat(real * real, starts)
        segments = np.add.reduceat((~self.is_padding).astype(np.int64), starts)
        return tokens, squares, segments


def _list_array(counts: Int32s, values: NDArray[Any]) -> pa.Array:
    ends = np.cumsum(counts, dtype=np.int64)
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    offsets[1:] = ends
    if len(ends) and ends[-1] > np.iinfo(np.int32).max:
        raise ValueError("a row group of more than 2^31 tokens")
    return pa.ListArray.from_arrays(_arrow_array(offsets), _arrow_array(values))


def _arrow_array(values: NDArray[Any]) -> pa.Array:
    # pa.array would import pandas, where it is installed, to ask whether this is a column of it.
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])


def _starts(counts: Int32s) -> Int64s:
    starts: Int64s = np.cumsum(counts, dtype=np.int64) - counts
    return starts


@dataclass(frozen=True, slots=True)
class PackSums:
    """What a shard's key-value metadata says of each of its packs, padding left out."""

    tokens: Int64s
    """int64 [P]."""
    squares: Int64s
    """int64 [P], the sum of the squared segment lengths: what attention costs."""
    segments: Int64s
    """int64 [P]."""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A finished shard, as the manifest lists it."""

    name: str
    packs: int
    tokens: int
    """Without padding."""
    trained_tokens: int
    bytes: int
    sha256: str
    content_digest: str


# pyarrow takes a relative path with a colon in it for a URI, and writes or reads wherever that points to: every path
# given to it here is absolute, and of the local file system.


class ShardWriter:
    """Writes one shard, a row group a call, under a temporary name until it is closed well.

    Use as a context manager; ``info`` is there after the block.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Write to ``path``, a file that is later published as ``name``."""
        self.info: ShardInfo | None = None
        self._path = path
        self._name = name
        self._temporary = temporary_name(path)
        with naming(path):
            self._writer = pq.ParquetWriter(
                self._temporary.absolute(), SCHEMA, filesystem=LocalFileSystem(), **_WRITER_OPTIONS
            )
        self._sums: list[tuple[Int64s, Int64s, Int64s]] = []
        self._digest = hashlib.sha256()
        self._trained = 0

    def __enter__(self) -> Self:
        return self

    def write(self, batch: PackBatch) -> None:
        """Append ``batch`` as one row group."""
        self._sums.append(batch.real_sums())
        self._trained += int(np.count_nonzero(batch.labels != IGNORED))
        batch.digest_into(self._digest)
        with naming(self._path):
            self._writer.write_table(batch.to_arrow(), row_group_size=batch.packs)

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        try:
            if kind is None:
                with naming(self._path):
                    self._finish()
        finally:
            try:
                self._writer.close()
            except OSError:
                pass  # it writes the footer once more to a disk that is full
            self._temporary.unlink(missing_ok=True)

    def _finish(self) -> None:
        tokens, squares, segments = (np.concatenate(parts) for parts in zip(*self._sums, strict=True))
        self._writer.add_key_value_metadata(
            {
                "packtool.format_version": str(FORMAT_VERSION),
                "packtool.pack_tokens": json.dumps(tokens.tolist(), separators=(",", ":")),
                "packtool.pack_squares": json.dumps(squares.tolist(), separators=(",", ":")),
                "packtool.pack_segments": json.dumps(segments.tolist(), separators=(",", ":")),
            }
        )
        self._writer.close()
        with self._temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        self.info = ShardInfo(
            name=self._name,
            packs=len(tokens),
            tokens=int(tokens.sum()),
            trained_tokens=self._trained,
            bytes=self._temporary.stat().st_size,
            sha256=sha256_of(self._temporary),
            content_digest=self._digest.hexdigest(),
        )
        self._temporary.replace(self._path)
        fsync_folder(self._path.parent)


def open_shard(path: Path, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a shard for reading; its ``footer`` is read, unless an earlier reading of it is given.

    Raises:
        BadData: the file is missing or is not a readable Parquet file.
    """
    try:
        return pq.ParquetFile(path.absolute(), metadata=footer, filesystem=LocalFileSystem())
    except _UNREADABLE as error:
        raise BadData(f"{path}: not a readable shard: {one_line(error)}") from None


def read_sums(path: Path) -> PackSums:
    """The per-pack sums of a shard, from its footer alone.

    Raises:
        BadData: the shard cannot be read, or its metadata is missing or does not fit its rows.
    """
    file = open_shard(path)
    metadata = file.metadata.metadata or {}
    arrays = []
    for key in (b"pack_tokens", b"pack_squares", b"pack_segments"):
        try:
            values = parse_own(metadata[_KEY_PREFIX + key])
            if set(map(type, values)) - {int}:
                raise TypeError("not all of them are whole numbers")
            array = np.array(values, dtype=np.int64)
        except (KeyError, ValueError, OverflowError, TypeError, Unreadable):
            raise BadData(f"{path}: the metadata {(_KEY_PREFIX + key).decode()} is missing or damaged") from None
        if array.shape != (file.metadata.num_rows,):
            raise BadData(f"{path}: {(_KEY_PREFIX + key).decode()} does not fit the shard's rows")
        arrays.append(array)
    return PackSums(*arrays)


def read_row_group(path: Path, file: pq.ParquetFile, group: int, first_pack: int) -> PackBatch:
    """The packs of row group ``group`` of a shard that ``open_shard`` opened and ``check_schema`` passed.

    Args:
        path: the shard, for messages.
        file: the open shard.
        group: which row group.
        first_pack: the number that messages give to its first pack.

    Raises:
        BadData: the row group is damaged, or has lists that are null or of uneven length.
    """
    flat, counts = read_columns(path, file, group, first_pack, SCHEMA.names)
    return PackBatch(**flat, pack_tokens=counts["input_ids"], pack_segments=counts["seq_lengths"])


def read_layout(path: Path) -> list[RowGroup]:
    """The row groups of a shard as its footer has them, read without pyarrow, for ``check_row_group``.

    Raises:
        BadData: the footer is damaged, or cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as file:
            return read_row_groups(partial(_pread, file.fileno()), os.fstat(file.fileno()).st_size)
    except (OSError, ValueError) as error:
        raise BadData(f"{path}: not a readable shard: {one_line(error)}") from None


def check_row_group(path: Path, layout: list[RowGroup], group: int, max_length: int) -> None:
    """Refuse a row group that is too large to be one of packs, or not of one piece, before it is read.

    It is judged by the headers of its pages: sizes of what is encoded bound nothing. A pack may be too long, and
    there may be a few too many, which ``packtool verify`` finds.

    Args:
        path: the shard, for messages.
        layout: of the shard.
        group: which row group.
        max_length: of the dataset, as the manifest says.

    Raises:
        BadData: it holds far more than the tokens of a row group, or its pages do not agree with the footer.
    """
    place = f"{path}: row group {group}"
    if not 0 <= group < len(layout) or len(layout[group].chunks) != len(SCHEMA):
        raise BadData(f"{place} has not the columns of a shard")
    rows = layout[group].rows
    most = max(_READABLE_ROW_GROUPS * ROW_GROUP_TOKENS, min(max_length, _LONGEST_READABLE) + ROW_GROUP_TOKENS)
    try:
        with path.open("rb", buffering=0) as file:
            sizes = [chunk_size(partial(_pread, file.fileno()), chunk) for chunk in layout[group].chunks]
    except (OSError, ValueError) as error:
        raise BadData(f"{place} is damaged: {one_line(error)}") from None
    for name, size in zip(SCHEMA.names, sizes, strict=True):
        if max(size.values, rows) > most or size.largest_page > _READABLE_BYTES_PER_TOKEN * most:
            raise BadData(
                f"{place}: column {name} says it has {max(size.values, rows):,} values in pages of up to "
                f"{size.largest_page:,} bytes, too much for packs of max_length {max_length:,}; do not train on it, "
                "pack again"
            )
        if size.values < rows or size.rows not in (rows, None):
            raise BadData(f"{place} is damaged: column {name} has {size.values} values for {rows} packs")


def _pread(handle: int, start: int, length: int) -> bytes:
    return os.pread(handle, length, start) if start >= 0 else b""


def read_columns(
    path: Path,
    file: pq.ParquetFile,
    group: int,
    first_pack: int,
    names: Sequence[str],
    use_threads: bool = False,
) -> tuple[dict[str, NDArray[Any]], dict[str, Int32s]]:
    """Only the columns ``names`` of a row group, for readers who need no others; as ``read_row_group``.

    With ``use_threads`` columns are decoded side by side, by the threads that Arrow keeps.

    Returns:
        for each name the values of all packs, flat, in the column's type, not writable; and for each name int32 [P],
        how many of them are of each pack. The token columns agree in these, and the segment columns.

    Raises:
        BadData: the row group is damaged, or has lists that are null or of uneven length.
    """
    try:
        table = file.read_row_group(group, columns=list(names), use_threads=use_threads)
    except _UNREADABLE as error:
        raise BadData(f"{path}: row group {group} is damaged: {one_line(error)}") from None
    flat: dict[str, NDArray[Any]] = {}
    counts: dict[str, Int32s] = {}
    for name in names:
        lists = _one_array(table.column(name))
        if lists.null_count or lists.values.null_count:
            raise BadData(f"{path}: column {name} holds a null in packs {first_pack} to {first_pack + len(lists) - 1}")
        offsets = _numpy_array(lists.offsets)
        flat[name] = _numpy_array(lists.values)[offsets[0] : offsets[-1]]
        counts[name] = np.diff(offsets)
    for columns in (TOKEN_COLUMNS, SEGMENT_COLUMNS):
        read = [name for name in columns if name in counts]
        for name in read[1:]:
            uneven = np.flatnonzero(counts[name] != counts[read[0]])
            if len(uneven):
                pack = int(uneven[0])
                raise BadData(
                    f"{path}: pack {first_pack + pack}: {name} has {counts[name][pack]} entries, "
                    f"{read[0]} has {counts[read[0]][pack]}"
                )
    return flat, counts


def check_schema(path: Path, schema: pa.Schema) -> None:
    """Refuse a shard whose columns or types are not those of the contract.

    Raises:
        BadData: naming the column.
    """
    if schema.names != SCHEMA.names:
        raise BadData(f"{path}: columns are {', '.join(schema.names)}; expected {', '.join(SCHEMA.names)}")
    for field in SCHEMA:
        found = schema.field(field.name).type
        if not (pa.types.is_list(found) and found.value_type == field.type.value_type):
            raise BadData(f"{path}: column {field.name} is {found}; expected {field.type}")


def _one_array(column: pa.ChunkedArray) -> pa.ListArray:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _numpy_array(array: pa.Array) -> NDArray[Any]:
    # Array.to_numpy would import pandas, where it is installed: longer than a thousand packs take to read.
    dtype = np.dtype(f"i{array.type.bit_width // 8}")
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize)
