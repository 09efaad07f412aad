"""The manifest: what a packed dataset is. Written last; read as untrusted input by every reader.

Holds facts and their shape, no logic about how they came to be.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from packtool.addresses import refuse_address
from packtool.config import FormatName, StrategyName
from packtool.contract import FORMAT_VERSION
from packtool.errors import BadData, Misuse
from packtool.files import Missing, Unreadable, parse_own, read_json, read_own
from packtool.shards import SHARD_NAME

MANIFEST_NAME = "manifest.json"
CARD_NAME = "README.md"
REJECTS_NAME = "rejects.jsonl"
RUN_NAME = "run.json"
TOKENIZER_FOLDER = "tokenizer"
PARTIAL_NAME = ".partial"
"""Where everything lives while it is made."""

CONTROL_CHARACTERS = r"[\x00-\x1f\x7f-\x9f]"
"""A pattern for what a source's name may not hold."""

DOC_IDS = 2**53
"""Doc ids are below it: every reader of JSON has such a number exactly."""

Number = Annotated[int, Field(ge=0, lt=2**63)]
Rows = Annotated[int, Field(ge=0, le=DOC_IDS)]
Uint64 = Annotated[int, Field(ge=0, lt=2**64)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SourceEntry(_Part):
    """One source file, in the order of the doc ids."""

    name: str
    kind: str
    compression: str
    first: Rows
    """The doc id of its row 0; doc id = first + zero-based row."""
    rows: Rows
    """Physical rows: lines with the blank ones, array elements, Parquet rows."""
    records: Number
    """Rows that are not blank."""
    documents: Number
    """Records that became tokens."""
    tokens: Number
    checksum: Uint64
    """Sum modulo 2^64 of odd_mix(doc_id) x h over its documents."""
    digest: Sha256
    """The sha256 of its units' digests."""

    @field_validator("name")
    @classmethod
    def _below_a_folder(cls, name: str) -> str:
        if not name or name.startswith("/") or ".." in name.split("/") or re.search(CONTROL_CHARACTERS, name):
            raise ValueError(f"{name!r:.80} is not the name of a source")
        return name


class TokenizerEntry(_Part):
    """The tokenizer and the special tokens that were used."""

    name: str
    digest: Sha256
    vocabulary_size: Number
    """Every id is below it."""
    bos: str | None
    bos_ids: tuple[Number, ...]
    bos_origin: str
    eos: str | None
    eos_id: Number | None
    eos_origin: str
    pad: str | None
    pad_id: Number | None
    pad_origin: str

    @model_validator(mode="after")
    def _in_the_vocabulary(self) -> Self:
        for id in (*self.bos_ids, self.eos_id, self.pad_id):
            if id is not None and id >= self.vocabulary_size:
                raise ValueError(f"special token {id} is not in the vocabulary of {self.vocabulary_size}")
        return self


class DocumentCounts(_Part):
    """Documents: into = out + left_out."""

    into: Number
    out: Number
    left_out: Number
    truncated: Number
    """Documents among ``out`` that were cut."""


class TokenCounts(_Part):
    """Tokens: into = out + left_out + truncated."""

    into: Number
    out: Number
    left_out: Number
    truncated: Number
    trained: Number
    """Tokens among ``out`` whose label is not -100."""


class Histogram(_Part):
    """How many things have each length; lengths rising."""

    lengths: tuple[Number, ...]
    counts: tuple[Number, ...]

    @model_validator(mode="after")
    def _even(self) -> Self:
        if len(self.lengths) != len(self.counts):
            raise ValueError("lengths and counts differ in number")
        if any(a >= b for a, b in zip(self.lengths, self.lengths[1:], strict=False)):
            raise ValueError("lengths must rise")
        return self


class ShardEntry(_Part):
    """One shard file."""

    name: str
    packs: Number
    tokens: Number
    trained_tokens: Number
    bytes: Number
    sha256: Sha256
    content_digest: Sha256

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not SHARD_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a shard's name")
        return name


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    inside = path.parent == PurePosixPath(".") or path.parent == PurePosixPath(TOKENIZER_FOLDER)
    plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", path.name) is not None
    return inside and plain and str(path) == name


def is_written_name(name: object) -> bool:
    """Whether packtool gives a file of a dataset that name: nothing else in its folder is ever moved or removed."""
    return isinstance(name, str) and (
        name in (MANIFEST_NAME, CARD_NAME, REJECTS_NAME, RUN_NAME)
        or SHARD_NAME.fullmatch(name) is not None
        or (name.startswith(f"{TOKENIZER_FOLDER}/") and _is_inside(name))
    )


class FileEntry(_Part):
    """One file beside the shards."""

    name: str
    bytes: Number
    sha256: Sha256

    @field_validator("name")
    @classmethod
    def _inside(cls, name: str) -> str:
        if not _is_inside(name):
            raise ValueError(f"{name!r} is not a file of the dataset's folder")
        return name


class Manifest(_Part):
    """Everything a reader needs to know of a packed dataset; see each field."""

    format_version: Literal[1]
    packtool_version: str
    versions: dict[str, str]
    """Versions of the libraries on which the bytes depend."""
    options: dict[str, Any]
    """Every option that shapes the data, as resolved for this run."""
    sources: tuple[SourceEntry, ...]
    limited: bool
    """Whether --limit ended the reading; sources then cover what was read."""
    revisions: dict[str, str]
    """hf: sources to the revision they resolved to."""
    format: str
    tokenizer: TokenizerEntry
    template_digest: Sha256 | None
    records: Number
    bad_records: Number
    documents: DocumentCounts
    tokens: TokenCounts
    rejected: dict[str, Number]
    """Reason to rows in rejects.jsonl."""
    rejected_tokens: dict[str, Number]
    """Reason to tokens in those rows."""
    notes: dict[str, Number] = Field(default_factory=dict)
    """How many records there is something to say of, by what that is."""
    strategy: str
    max_length: Annotated[int, Field(ge=2, lt=2**31)]
    padded: bool
    packs: Annotated[int, Field(ge=1, lt=2**63)]
    lower_bound_packs: Number
    segments: Number
    max_segments: Number
    """The most segments in a pack, padding not counted."""
    longest_segment: Number
    document_lengths: Histogram
    """Documents in the packs by their length before any cut."""
    segment_lengths: Histogram
    groups: Number
    shards: tuple[ShardEntry, ...] = Field(min_length=1)
    files: tuple[FileEntry, ...]
    """Every other file but run.json and the manifest itself."""
    content_digest: Sha256
    """The sha256 of the shards' content digests: the same data gives the same one under every library version."""

    @field_validator("strategy")
    @classmethod
    def _known_strategy(cls, name: str) -> str:
        if name not in set(StrategyName):
            raise ValueError(f"{name!r:.80} is not a strategy")
        return name

    @field_validator("format")
    @classmethod
    def _known_format(cls, name: str) -> str:
        if name not in set(FormatName) - {FormatName.AUTO}:
            raise ValueError(f"{name!r:.80} is not a format of records")
        return name

    @field_validator("sources")
    @classmethod
    def _end_to_end(cls, sources: tuple[SourceEntry, ...]) -> tuple[SourceEntry, ...]:
        end = 0
        for source in sources:
            if source.first != end:
                raise ValueError(f"{source.name!r:.80} begins at {source.first}; the rows before it end at {end}")
            end += source.rows
        if end > DOC_IDS:
            raise ValueError(f"{end} rows, more than there are doc ids")
        return sources

    @model_validator(mode="after")
    def _options_held(self) -> Self:
        held = {
            "max_length": self.max_length,
            "strategy": self.strategy,
            "format": self.format,
            "pad": self.padded,
        }
        for option, value in held.items():
            told = self.options.get(option, value)
            if type(told) is not type(value) or told != value:
                raise ValueError(f"options.{option} is {told!r:.80}, but the dataset's is {value!r}")
        return self

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [shard.name for shard in self.shards] + [file.name for file in self.files]
        if len(set(names)) != len(names):
            raise ValueError("a file is listed twice")
        if any(name in (MANIFEST_NAME, RUN_NAME) for name in names):
            raise ValueError("a file is listed that cannot be")
        return self

    def to_json(self) -> bytes:
        """One field a line, in the order above; the same manifest gives the same bytes."""
        fields = self.model_dump(mode="json")
        lines = [f"  {json.dumps(name)}: {_compact(value)}" for name, value in fields.items()]
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _compact(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"    {json.dumps(entry, ensure_ascii=False)}" for entry in value) + "\n  ]"
    if isinstance(value, dict) and value and not all(isinstance(entry, list) for entry in value.values()):
        pairs = (f"    {json.dumps(key)}: {json.dumps(entry, ensure_ascii=False)}" for key, entry in value.items())
        return "{\n" + ",\n".join(pairs) + "\n  }"
    return json.dumps(value, ensure_ascii=False)


def combined_digest(content_digests: Iterable[str]) -> str:
    """The dataset's ``content_digest``: the sha256 of its shards' digests, as raw bytes in shard order."""
    return hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in content_digests)).hexdigest()


def listed_file(folder: Path, name: str) -> Path:
    """The file that a manifest in ``folder`` lists as ``name``: a plain file of that folder, or an error.

    Raises:
        BadData: it is missing, a link (or lies behind one), or not a regular file.
    """
    path = folder / name
    try:
        if path.parent != folder and path.parent.is_symlink():
            raise BadData(f"{path.parent}: a link; a dataset's files must lie in its own folder")
        mode = path.lstat().st_mode
    except OSError as error:
        raise BadData(f"{path}: listed in the manifest, but cannot be found: {error.strerror}") from None
    if stat.S_ISLNK(mode):
        raise BadData(f"{path}: a link; a dataset's files must lie in its own folder")
    if not stat.S_ISREG(mode):
        raise BadData(f"{path}: not a regular file")
    return path


def refuse_inside_dataset(option: str, path: Path) -> None:
    """Refuse to write ``path``, which ``option`` names, below a packed dataset.

    Raises:
        Misuse: it is there, or it is an address.
    """
    refuse_address(option, path)
    for folder in Path(os.path.realpath(path)).parents:
        if _holds_dataset(folder):
            raise Misuse(
                f"{option} {path}: in a dataset's folder nothing may stand but the dataset; write it elsewhere"
            )


def _holds_dataset(folder: Path) -> bool:
    try:
        values = read_json(folder / MANIFEST_NAME)
    except (Missing, Unreadable):
        return False
    return isinstance(values, dict) and {"format_version", "content_digest"} <= values.keys()


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of the packed dataset in ``folder``.

    Raises:
        BadData: there is none, or it is not one this version can trust; the message names the file.
        Misuse: an address is no folder.
    """
    refuse_address("OUT", folder)
    path = folder / MANIFEST_NAME
    try:
        raw = read_own(path)
        values = parse_own(raw)
    except Missing:
        what = "no such folder" if not folder.is_dir() else "no manifest.json in it"
        unfinished = " (a run is unfinished there)" if (folder / PARTIAL_NAME).is_dir() else ""
        raise BadData(f"{folder}: not a packed dataset: {what}{unfinished}") from None
    except Unreadable as error:
        raise BadData(f"{path}: {error}") from None
    version = values.get("format_version") if isinstance(values, dict) else FORMAT_VERSION
    if type(version) is not int or version != FORMAT_VERSION:  # to Python, true and 1.0 are 1
        raise BadData(f"{path}: format_version is {version!r:.80}; this packtool reads {FORMAT_VERSION}")
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadData(f"{path}: {where + ': ' if where else ''}{first['msg']}") from None
