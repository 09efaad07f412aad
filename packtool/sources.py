"""What the user names (files, globs, folders, datasets of the hub) becomes an ordered list of files to read.

It knows a file's kind and compression from its name and first byte; it knows nothing of records or columns.
"""

import errno
import glob
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import zstandard

from packtool.addresses import address_in, without_secrets
from packtool.errors import BadData, Misuse, printable
from packtool.hub import quiet_clients

BOM = b"\xef\xbb\xbf"


class Kind(StrEnum):
    """How a file holds its records."""

    LINES = "lines"
    ARRAY = "array"
    PARQUET = "parquet"
    ARROW = "arrow"


class Compression(StrEnum):
    """What a file of lines or an array is wrapped in."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read."""

    name: str
    """How manifest and rejects call it: relative to the deepest common folder of the run's files, with ``/``;
    a file of the hub's is ``hf:NAME@REVISION:CONFIG:SPLIT/FILE``."""
    path: Path
    """Absolute."""
    kind: Kind
    compression: Compression


@dataclass(frozen=True, slots=True)
class FoundSources:
    """The sources of a run, in the order in which their records count."""

    sources: tuple[Source, ...]
    """May be empty: folders without data are only warned of."""
    warnings: tuple[str, ...]
    """One line each: what was passed over, and what is empty."""
    revisions: dict[str, str]
    """For each ``hf:`` argument, the revision it stood for."""


def find_sources(arguments: Sequence[str | Path]) -> FoundSources:
    """Find the files that the arguments stand for.

    The order is that of the arguments; what a glob or a folder gives is sorted by path. Folders are walked
    with their subfolders; a folder of ``datasets.save_to_disk`` gives its data files in its own order.

    Raises:
        Misuse: an argument that is missing, of an unknown kind, given twice, or cannot be read twice.
        BadData: a file that may not be read.
    """
    found = _Found()
    for argument in arguments:
        _find(os.fspath(argument), found)
    _refuse_repeated(found.files)
    folders = [str(file.path.parent) for file in found.files if file.name is None]
    common = os.path.commonpath(folders) if folders else ""
    sources: list[Source] = []
    for file in found.files:
        name = file.name or _storable(file.path.relative_to(common).as_posix())
        kind, compression = _kind_of(file.path)
        if kind in (Kind.LINES, Kind.ARRAY) and file.path.stat().st_size == 0:
            found.warnings.append(f"{shown(file.path)} is empty")
        sources.append(Source(name=name, path=file.path, kind=kind, compression=compression))
    return FoundSources(tuple(sources), tuple(found.warnings), found.revisions)


def shown(path: str | Path, limit: int = 300) -> str:
    """A path for a message: on one line, without control characters, not endless."""
    text = os.fspath(path)
    if len(text) > limit:
        text = f"{text[: limit // 2]}…{text[-limit // 2 :]}"
    return printable(text)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    name: str | None = None


@dataclass(slots=True)
class _Found:
    """What has been found so far, over all arguments."""

    files: list[_File] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    revisions: dict[str, str] = field(default_factory=dict)


# --- arguments ---------------------------------------------------------------------------------------------

_KNOWN = ".jsonl, .ndjson and .json (also with .gz or .zst), .parquet, .arrow"


def _find(argument: str, found: _Found) -> None:
    if argument == "-":
        raise Misuse("- (standard input) cannot be a source: a run reads its input more than once; use a file")
    if argument.startswith("hf:"):
        _find_on_hub(argument, found)
    elif "\0" in argument:
        raise Misuse(f"{shown(argument)}: a path cannot hold a NUL")
    elif os.path.lexists(argument):  # before globs, so that a file named a[1].jsonl can be given
        _find_path(Path(argument), found)
    elif (address := address_in(argument)) is not None:
        raise Misuse(f"{address} cannot be a source: download it, or name a hub dataset as hf:NAME")
    elif glob.has_magic(argument):
        _find_glob(argument, found)
    else:
        raise Misuse(f"{shown(argument)} does not exist")


def _find_path(path: Path, found: _Found) -> None:
    mode = _mode(path)
    if stat.S_ISDIR(mode):
        _find_in_folder(path, found)
        return
    if reason := _unreadable_again(mode):
        raise Misuse(f"{shown(path)} is {reason}: a run reads its input more than once; use a file")
    if _suffixes(path) is None:
        raise Misuse(f"{shown(path)} is of no known kind; packtool reads {_KNOWN}")
    found.files.append(_File(_absolute(path)))


def _find_glob(pattern: str, found: _Found) -> None:
    matches = sorted(glob.glob(pattern, recursive=True), key=os.fsencode)  # noqa: PTH207 (Path has no absolute ones)
    if not matches:
        raise Misuse(f"{shown(pattern)} matches no file")
    passed_over: list[str] = []
    for match in matches:
        path = Path(match)
        if _is_folder(path):
            if "**" not in pattern:  # with ** the files below match by themselves
                _find_in_folder(path, found)
        elif reason := _why_not_data(path):
            passed_over.append(f"{shown(path)} ({reason})")
        else:
            found.files.append(_File(_absolute(path)))
    if passed_over:
        found.warnings.append(f"{shown(pattern)}: passed over {_listed(passed_over)}")


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        raise Misuse(f"{shown(path)} is a link to a file that does not exist") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Misuse(f"{shown(path)} is a loop of symbolic links") from None
        raise BadData(f"{shown(path)}: {error.strerror}") from None


def _unreadable_again(mode: int) -> str | None:
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISFIFO(mode):
        return "a pipe (FIFO)"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"


def _why_not_data(path: Path) -> str | None:
    """Why a file met in a folder or by a glob is passed over; None if it is data."""
    if path.name.startswith("."):
        return "hidden"
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return "a loop of symbolic links" if error.errno == errno.ELOOP else "a link to nothing"
    return _unreadable_again(mode) or (None if _suffixes(path) else "not data")


def _absolute(path: Path) -> Path:
    """The file's own name in its real folder: a link keeps its name, which says what kind of file it is."""
    return Path(os.path.realpath(path.parent)) / path.name


def _storable(name: str) -> str:
    """A file name that is not UTF-8 still has to go into a JSON file."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _refuse_repeated(files: list[_File]) -> None:
    seen: dict[str, Path] = {}
    for file in files:
        real = os.path.realpath(file.path)
        if real in seen:
            other = "" if seen[real] == file.path else f" (also as {shown(seen[real])})"
            raise Misuse(f"{shown(file.path)} is given twice{other}: its records would count twice")
        seen[real] = file.path


def _listed(names: list[str]) -> str:
    most = 10
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


# --- folders -----------------------------------------------------------------------------------------------


def _find_in_folder(folder: Path, found: _Found) -> None:
    if _is_packed(folder):
        raise Misuse(f"{shown(folder)} is a dataset that packtool made: give the files that it was made from")
    before = len(found.files)
    passed_over: list[str] = []
    for path in _walk(folder, (), passed_over):
        found.files.append(_File(_absolute(path)))
    if passed_over:
        found.warnings.append(f"{shown(folder)}: passed over {_listed(passed_over)}")
    if len(found.files) == before:
        found.warnings.append(f"{shown(folder)} holds no data; packtool reads {_KNOWN}")


def _walk(folder: Path, above: tuple[str, ...], passed_over: list[str]) -> Iterator[Path]:
    """Data files of a folder and its subfolders, sorted; the others go to ``passed_over`` with a reason."""
    try:
        entries = sorted(folder.iterdir(), key=lambda path: os.fsencode(path.name))
    except OSError as error:
        raise BadData(f"{shown(folder)}: {error.strerror}") from None
    real = os.path.realpath(folder)
    if (saved := _saved_dataset(folder)) is not None:
        yield from saved
        return
    for path in entries:
        if not _is_folder(path):
            if reason := _why_not_data(path):
                passed_over.append(f"{shown(path)} ({reason})")
            else:
                yield path
        elif path.name.startswith("."):
            passed_over.append(f"{shown(path)} (hidden)")
        elif os.path.realpath(path) in (*above, real):
            passed_over.append(f"{shown(path)} (a loop of symbolic links)")
        elif _is_packed(path):
            passed_over.append(f"{shown(path)} (made by packtool)")
        else:
            yield from _walk(path, (*above, real), passed_over)


def _is_packed(folder: Path) -> bool:
    """Whether the folder is a dataset of packtool's, finished or not."""
    manifest = _json(folder / "manifest.json")
    return (isinstance(manifest, dict) and "format_version" in manifest) or _is_folder(folder / ".partial")


def _is_folder(path: Path) -> bool:
    """Whether it is a folder, or a link to one.

    Raises:
        BadData: that cannot be seen.
    """
    try:
        return path.is_dir()
    except OSError as error:
        raise BadData(f"{shown(path)}: {error.strerror}") from None


def _saved_dataset(folder: Path) -> list[Path] | None:
    """The data files of a folder of ``datasets.save_to_disk``, in order; None if it is no such folder."""
    splits = _json(folder / "dataset_dict.json")
    if isinstance(splits, dict) and isinstance(splits.get("splits"), list):
        if "train" not in splits["splits"]:
            names = ", ".join(shown(str(name)) for name in splits["splits"])
            raise Misuse(f"{shown(folder)} has no split train; give the folder of one of its splits: {names}")
        if (train := _saved_dataset(folder / "train")) is None:
            raise Misuse(f"{shown(folder / 'train')} is not whole: it has no state.json")
        return train
    state = _json(folder / "state.json")
    if not isinstance(state, dict) or not isinstance(state.get("_data_files"), list):
        return None
    if state.get("_indices_data_files"):
        raise Misuse(f"{shown(folder)} selects rows by an index: save it again after flatten_indices()")
    paths: list[Path] = []
    for entry in state["_data_files"]:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
            raise Misuse(f"{shown(folder)} is not whole: {shown(str(name))}, named in state.json, is not there")
        paths.append(folder / name)
    return paths


def _json(path: Path) -> object:
    """The content of a small JSON file, or None if there is none."""
    try:
        return json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None


# --- kinds -------------------------------------------------------------------------------------------------

_KINDS = {
    ".jsonl": Kind.LINES,
    ".ndjson": Kind.LINES,
    ".json": Kind.LINES,
    ".parquet": Kind.PARQUET,
    ".arrow": Kind.ARROW,
}
_COMPRESSIONS = {".gz": Compression.GZIP, ".zst": Compression.ZSTD}


def compression_of(name: str) -> Compression:
    """What a file's name says of the compression around it."""
    return _COMPRESSIONS.get(Path(name.lower()).suffix, Compression.NONE)


def _suffixes(path: Path) -> tuple[str, Compression] | None:
    """The extension that says the kind and the compression around it; None if packtool does not read it."""
    name = Path(path.name.lower())
    compression = compression_of(name.name)
    inner = name.suffix if compression is Compression.NONE else Path(name.stem).suffix
    if inner not in _KINDS or (compression is not Compression.NONE and _KINDS[inner] is not Kind.LINES):
        return None
    return inner, compression


def _kind_of(path: Path) -> tuple[Kind, Compression]:
    suffixes = _suffixes(path)
    if suffixes is None:
        raise Misuse(f"{shown(path)} is of no known kind; packtool reads {_KNOWN}")
    inner, compression = suffixes
    try:
        with path.open("rb"):
            pass
        if inner == ".json" and _first_byte(path, compression) == b"[":
            return Kind.ARRAY, compression
    except OSError as error:
        raise BadData(f"{shown(path)}: {error.strerror or error}") from None
    return _KINDS[inner], compression


def _first_byte(path: Path, compression: Compression) -> bytes:
    """The first byte that is neither BOM nor white space; empty if the first megabyte has none."""
    try:
        with path.open("rb") as file:
            if compression is Compression.GZIP:
                start = gzip.GzipFile(fileobj=file).read(1 << 20)
            elif compression is Compression.ZSTD:
                start = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file).read(1 << 20)
            else:
                start = file.read(1 << 20)
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError):
        return b""  # the reader says what is wrong with it
    return start.removeprefix(BOM).lstrip(b" \t\r\n")[:1]


# --- the hub -----------------------------------------------------------------------------------------------

_HUB = re.compile(
    r"hf:(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?"
    r"(?::(?P<config>[^:/@]*)(?::(?P<split>[^:/@]+))?)?"
)


def _find_on_hub(argument: str, found: _Found) -> None:
    """Let ``datasets`` fetch a dataset into its cache, whose Arrow files become the sources."""
    match = _HUB.fullmatch(argument)
    if match is None:
        raise Misuse("a source that starts with hf: must read hf:NAME[@REVISION][:CONFIG[:SPLIT]]")
    name = match["name"]
    if os.path.lexists(name):  # datasets would read that instead
        raise Misuse(f"{shown(argument)}: {name} is a file or folder here; give it without hf:")

    import datasets  # slow to import, and needed for nothing else

    try:
        with quiet_clients():
            builder = datasets.load_dataset_builder(name, match["config"] or None, revision=match["revision"])
            builder.download_and_prepare()
        splits = [str(split) for split in builder.info.splits or {}]
    except Exception as error:  # datasets promises no set of exceptions
        raise Misuse(f"{shown(argument)}: datasets cannot load it: {_reason(error)}") from None
    split = match["split"] or "train"
    if split not in splits:
        names = ", ".join(splits)
        raise Misuse(f"{shown(argument)} has no split {shown(split)}; name one as hf:NAME:CONFIG:SPLIT: {names}")
    try:
        with quiet_clients():
            dataset = builder.as_dataset(split=split)
    except Exception as error:
        raise Misuse(f"{shown(argument)}: datasets cannot open it: {_reason(error)}") from None
    revision = str(builder.hash)
    prefix = f"hf:{name}@{revision}:{builder.config.name}:{split}"
    files = [Path(file["filename"]).absolute() for file in dataset.cache_files]
    if not files:
        found.warnings.append(f"{shown(argument)} holds no data")
    found.files.extend(_File(path, f"{prefix}/{_storable(path.name)}") for path in files)
    found.revisions[argument] = revision


def _reason(error: Exception) -> str:
    """The first line of what another library says, without tokens, passwords or signatures."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return shown(without_secrets(line))
