"""Every option of a run, validated once: from flags, keyword arguments or a TOML file, to plain JSON.

A config says what was asked for. What follows from the data (the format found, the strategy of that
format) is not in it.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from packtool.addresses import address_in, refuse_address
from packtool.contract import MOST_SHARDS
from packtool.errors import Misuse

INT32_MAX = 2**31 - 1


class StrategyName(StrEnum):
    """How documents are laid into packs."""

    BFD = "bfd"
    BFD_SPLIT = "bfd_split"
    WRAPPED = "wrapped"
    IN_ORDER = "in_order"


class Overlong(StrEnum):
    """What becomes of a document longer than max_length."""

    AUTO = "auto"
    DROP = "drop"
    TRUNCATE = "truncate"
    TRUNCATE_TURNS = "truncate_turns"
    SPLIT = "split"
    ERROR = "error"


class FormatName(StrEnum):
    """What a record looks like."""

    AUTO = "auto"
    TEXT = "text"
    PROMPT_COMPLETION = "prompt_completion"
    MESSAGES = "messages"
    TOKENS = "tokens"


class AddToken(StrEnum):
    """Whether a begin or end token is put around a document."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


class OnBadRecord(StrEnum):
    """What a bad record does to the run."""

    ERROR = "error"
    SKIP = "skip"


class EncoderName(StrEnum):
    """What makes texts into tokens."""

    AUTO = "auto"
    TOKENIZERS = "tokenizers"
    FASTOKENS = "fastokens"


_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def _count(value: Any) -> Any:
    """Read ``64M`` or ``256Ki`` as the number it stands for; leave what is no text to the validation."""
    if isinstance(value, bool):
        raise ValueError(f"takes a number, and got {str(value).lower()}")
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(-?[0-9]{1,20}(?:_[0-9]{1,20}){0,6})\s*(k|M|G|Ki|Mi|Gi)?\s*", value)
    if match is None:
        raise ValueError(f"takes a whole number such as 4096, 64M or 256Ki, and got {value[:60]!r}")
    return int(match[1]) * _SUFFIXES[match[2] or ""]


def _percent(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"takes a percentage, and got {str(value).lower()}")
    if isinstance(value, str):
        return value.strip().removesuffix("%").strip()
    return value


def _count_or_percent(value: Any) -> Any:
    """Read ``10k`` as ``10000``, and ``0.50 %`` as ``0.5%``."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            percent = float(_percent(value))
        except ValueError:
            percent = -1.0
        if not 0 <= percent <= 100:
            raise ValueError(f"takes a number such as 100, or a percentage from 0% to 100%, and got {value[:60]!r}")
        return f"{percent:g}%"
    count = _count(value)
    if not isinstance(count, int) or count < 0:
        raise ValueError(f"takes a number such as 100, or a percentage such as 1%, and got {str(value)[:60]!r}")
    return str(count)


def _field_names(value: Any) -> Any:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        if any(not isinstance(part, str) or not part.strip() for pair in value.items() for part in pair):
            raise ValueError("takes names of fields and of columns, for example text=body")
        return value
    if not isinstance(value, list | tuple):
        return value
    names: dict[str, str] = {}
    for entry in value:
        name, equals, column = str(entry).partition("=")
        if not equals or not name.strip() or not column.strip():
            raise ValueError(f"takes NAME=COLUMN, for example text=body, and got {str(entry)!r}")
        if name.strip() in names:
            raise ValueError(f"names {name.strip()!r} twice")
        names[name.strip()] = column.strip()
    return names


def _one_or_many(value: Any) -> Any:
    values = [value] if isinstance(value, str | Path) else value
    if not isinstance(values, list | tuple):
        return values
    return [str(entry) if isinstance(entry, Path) else entry for entry in values]


def _template_args(value: Any) -> Any:
    """NAME=VALUE pairs, where VALUE is JSON if it can be read as such, else text; or a table of them."""
    arguments = _read_template_args(value)
    for name, argument in arguments.items() if isinstance(arguments, dict) else ():
        if name in ("messages", "tools", "documents", "add_generation_prompt"):
            raise ValueError(f"cannot set {name!r}, which the conversation itself gives")
        try:
            json.dumps(argument, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise ValueError(f"takes JSON values, and {name!r} is none") from None
    return arguments


def _read_template_args(value: Any) -> Any:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    arguments: dict[str, Any] = {}
    for entry in value:
        name, equals, text = str(entry).partition("=")
        if not equals or not name.strip().isidentifier():
            raise ValueError(f"takes NAME=VALUE, for example enable_thinking=false, and got {str(entry)[:60]!r}")
        if name.strip() in arguments:
            raise ValueError(f"names {name.strip()!r} twice")
        try:
            arguments[name.strip()] = json.loads(text)
        except (ValueError, RecursionError):
            arguments[name.strip()] = text
    return arguments


def _roles(value: Any) -> Any:
    roles = value.split(",") if isinstance(value, str) else value
    if not isinstance(roles, list | tuple):
        return value
    named = tuple(dict.fromkeys(role.strip() if isinstance(role, str) else role for role in roles))
    if not named or any(not isinstance(role, str) or not role for role in named):
        raise ValueError("takes assistant, last, all, or roles such as assistant,tool")
    if len(named) > 1 and {"last", "all"} & set(named):
        raise ValueError("takes last or all alone, without other roles")
    return named


def _listed(value: Any) -> Any:
    """One value, a list of them, or text with commas; each once."""
    values = value.split(",") if isinstance(value, str) else value
    if not isinstance(values, list | tuple):
        values = [value]
    return list(dict.fromkeys(entry.strip() if isinstance(entry, str) else entry for entry in values))


_EXCLUSIVE = ("shards", "shard_tokens")

Count = Annotated[int, BeforeValidator(_count)]
Text = Annotated[str, Field(min_length=1)]
Length = Annotated[Count, Field(ge=2, le=INT32_MAX)]
"""Of a pack, in tokens. At least 2: the first token of a segment never trains."""
MIN_SAMPLE = 100
"""Records in a sample at least: fewer say nothing of how sure they are."""


class SharedOptions(BaseModel):
    """What ``pack`` and ``plan`` have in common: what is read, how it becomes tokens, and how those are planned."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    passed_over: ClassVar[frozenset[str]] = frozenset()
    """Names that a config file may hold for another command."""

    sources: Annotated[tuple[Text, ...], BeforeValidator(_one_or_many)] = Field(min_length=1)
    """Files, globs, folders, or ``hf:NAME``, in order."""
    tokenizer: Text
    """A tokenizer.json, a folder with one, or a hub name."""
    overlong: Overlong = Overlong.AUTO
    format: FormatName = FormatName.AUTO
    field: Annotated[dict[str, str], BeforeValidator(_field_names)] = Field(default_factory=dict)
    """Field name to column name."""
    bos: AddToken = AddToken.AUTO
    eos: AddToken = AddToken.AUTO
    eos_token: Text | None = None
    prompt_template: Path | None = None
    """A jinja2 file that makes the prompt from a record's fields."""
    chat_template: Text | None = None
    """A file, or the name of one of the tokenizer's templates; None: the tokenizer's own."""
    template_arg: Annotated[dict[str, Any], BeforeValidator(_template_args)] = Field(default_factory=dict)
    """Variables for the chat template, as JSON values."""
    template_date: date | None = None
    """What the chat template's strftime_now prints; None: the day of the run's first start."""
    train_on: Annotated[tuple[str, ...], BeforeValidator(_roles)] = ("assistant",)
    """Roles whose turns train; or ``last``, the last assistant turn; or ``all``, every token."""
    end_of_turn: bool = True
    """Whether the end of a trained turn trains."""
    seed: Count = 0
    shuffle: bool | None = None
    """None: yes, except for strategies that keep the order."""
    max_segments: Annotated[Count, Field(ge=1, le=INT32_MAX)] | None = None
    limit: Annotated[Count, Field(ge=1)] | None = None
    """Only the first N records in source order."""
    on_bad_record: OnBadRecord = OnBadRecord.ERROR
    max_bad_records: Annotated[str, BeforeValidator(_count_or_percent)] | None = None
    """With ``skip``: how many bad records there may be, ``"100"`` or ``"1%"`` of all; None: any number."""
    max_record_bytes: Annotated[Count, Field(ge=1)] = 64 * 2**20
    max_left_out: Annotated[float, BeforeValidator(_percent), Field(ge=0, le=100)] = 1.0
    """Percent of records that a template may refuse."""
    group_tokens: Annotated[Count, Field(ge=1)] | None = None
    """None: 64M or 4,096 packs, whichever is more."""
    workers: Annotated[Count, Field(ge=1, le=4096)] | None = None
    """None: the CPUs this process may use."""
    encoder: EncoderName = EncoderName.AUTO
    """Changes no token: a fast encoder is used only as long as it gives what ``tokenizers`` gives."""
    cache_dir: Path | None = None
    quiet: bool = False
    """For the command line: neither progress nor summary."""

    @field_validator("bos", "eos", mode="before")
    @classmethod
    def _toml_booleans(cls, value: Any) -> Any:
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value

    @field_validator("seed")
    @classmethod
    def _seed_is_64_bits(cls, value: int) -> int:
        if not 0 <= value < 2**64:
            raise ValueError(f"takes a number from 0 to 2^64 - 1, and got {value}")
        return value

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _tokenizer_is_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    @field_validator("output", "prompt_template", "chat_template", "cache_dir", mode="before", check_fields=False)
    @classmethod
    def _no_address(cls, value: Any) -> Any:
        if isinstance(value, str | Path) and (address := address_in(value)) is not None:
            raise ValueError(f"takes a path of this machine, and got {address}")
        return value

    @field_validator("output", "prompt_template", "cache_dir", mode="before", check_fields=False)
    @classmethod
    def _no_empty_path(cls, value: Any) -> Any:
        # An unset shell variable would otherwise mean the folder one stands in.
        if value == "":
            raise ValueError("takes a path, and got none")
        return value

    @field_validator("output", "prompt_template", "cache_dir", check_fields=False)
    @classmethod
    def _user_folders(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        if "\0" in str(value):
            raise ValueError("holds a NUL character")
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise ValueError("has a name that is not UTF-8; give one that is") from None
        try:
            return value.expanduser()
        except RuntimeError:
            raise ValueError(f"{str(value)[:60]!r} names a user who has no home folder here") from None

    @property
    def worker_count(self) -> int:
        """Workers to run: what was asked for, else the CPUs this process may use."""
        if self.workers is not None:
            return self.workers
        return usable_cpus()

    @classmethod
    def checked(cls, values: Mapping[str, Any], origin: str = "", flags: Mapping[str, Any] | None = None) -> Self:
        """Build a config from option names and values, with misuse as one line.

        Args:
            values: long option names with ``_`` to values.
            origin: the file the values come from, for the message.
            flags: more of them, from the command line, which win.

        Raises:
            Misuse: an unknown name (with the nearest known one), a wrong value, or options that exclude each other.
        """
        flags = flags or {}
        where = f"{origin}: " if origin else ""
        for given, place in ((values, where), (flags, "")):
            for name in given:
                if name not in cls.model_fields:
                    raise Misuse(f"{place}{unknown_name(name, cls.model_fields)}")
        kept = dict(values)
        for one, other in (_EXCLUSIVE, _EXCLUSIVE[::-1]):
            if one in flags and other not in flags:
                kept.pop(other, None)  # the flag stands in for what the file says of the same thing
        try:
            return cls(**{**kept, **flags})
        except ValidationError as error:
            option = error.errors(include_url=False)[0]["loc"]
            raise Misuse(f"{'' if option and option[0] in flags else where}{_one_line(error)}") from None

    @classmethod
    def from_toml(cls, path: Path, flags: Mapping[str, Any]) -> Self:
        """Build a config from a TOML file, where ``flags`` (long option names with ``_``) win.

        Raises:
            Misuse: the file cannot be read, is not TOML, or holds a name or value that does not fit.
        """
        refuse_address("--config", path)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise Misuse(f"{path}: cannot read the config: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise Misuse(f"{path}: not TOML: {error}") from None
        for name, value in values.items():
            if isinstance(value, dict) and name not in cls.model_fields and name not in cls.passed_over:
                raise Misuse(f"{path}: options stand at the top of the file, not in a table such as [{name[:60]}]")
        return cls.checked({name: values[name] for name in values if name not in cls.passed_over}, str(path), flags)


class PackConfig(SharedOptions):
    """The options of ``packtool pack``; each attribute is the long flag with ``_`` for ``-``.

    Raises:
        Misuse: from ``PackConfig.checked`` and ``PackConfig.from_toml``, one line that names the option.
        pydantic.ValidationError: from the constructor itself, with the same content.
    """

    passed_over: ClassVar[frozenset[str]] = frozenset({"sample"})

    output: Path
    """The folder the dataset is written to."""
    max_length: Length = 4096
    """Tokens in a pack."""
    strategy: StrategyName | None = None
    """None: ``bfd_split`` for text and for tokens without labels or mask, else ``bfd``."""
    pad_token: Text | None = None
    pad: bool = False
    """Fill each pack to max_length with one masked segment."""
    shard_tokens: Annotated[Count, Field(ge=1)] | None = None
    """None: 64M; fewer in a small dataset, which then has up to four shards of at least 4M."""
    shards: Annotated[Count, Field(ge=1, le=MOST_SHARDS)] | None = None
    overwrite: bool = False

    @field_validator("output")
    @classmethod
    def _loads_alone(cls, value: Path) -> Path:
        # No card can help: datasets looks for its files below the folder's own name, wildcards in it included.
        if found := set(str(value)) & set("*?["):
            raise ValueError(
                f"holds {min(found)}, which datasets.load_dataset takes for a wildcard, so that it would read other "
                "folders, or none; choose another name"
            )
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.shards is not None and self.shard_tokens is not None:
            raise ValueError("--shards and --shard-tokens exclude each other; give one of them")
        return self


class PlanConfig(SharedOptions):
    """The options of ``packtool plan``; each attribute is the long flag with ``_`` for ``-``.

    Raises:
        Misuse: from ``PlanConfig.checked`` and ``PlanConfig.from_toml``, one line that names the option.
        pydantic.ValidationError: from the constructor itself, with the same content.
    """

    passed_over: ClassVar[frozenset[str]] = frozenset(
        {"output", "pad", "pad_token", "shard_tokens", "shards", "overwrite"}
    )

    max_length: Annotated[tuple[Length, ...], BeforeValidator(_listed), Field(min_length=1)] = (2048, 4096, 8192)
    """Tokens in a pack, each to be tried."""
    strategy: Annotated[tuple[StrategyName, ...], BeforeValidator(_listed), Field(min_length=1)] | None = None
    """None: every strategy that goes with the other options."""
    sample: Annotated[Count, Field(ge=MIN_SAMPLE)] | None = None
    """Estimate from so many records; None: read them all."""

    def pack_config(self, strategy: StrategyName, max_length: int) -> PackConfig:
        """The options of the run that these options plan, with one strategy and one length; it has no output."""
        shared = {name: getattr(self, name) for name in self.model_fields_set & SharedOptions.model_fields.keys()}
        return PackConfig(**shared, output=Path(), strategy=strategy, max_length=max_length)


def usable_cpus() -> int:
    """The CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def unknown_name(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """One line for a name that is not known, with the nearest that is."""
    near = difflib.get_close_matches(name.replace("-", "_"), list(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
    return f"unknown name {name!r}; {hint}"


_NEEDED = {"sources": "SOURCE", "output": "-o/--output OUT", "tokenizer": "-t/--tokenizer TOKENIZER"}
"""In the order in which they are asked for."""


def _one_line(error: ValidationError) -> str:
    errors = error.errors(include_url=False)
    missing = {each["loc"][0]: each for each in errors if each["type"] == "missing"}
    first = next((missing[name] for name in _NEEDED if name in missing), errors[0])
    name = ".".join(part for part in first["loc"] if isinstance(part, str))  # not which of several values
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing" or (name == "sources" and first["type"] == "too_short"):
        return f"{_NEEDED.get(name, name)} is missing"
    if not name:
        return message
    if first["loc"][0] == "sources":
        return f"SOURCE: {message[:1].lower()}{message[1:]}"
    got = "" if first["type"] == "value_error" else f" (got {str(first['input'])[:60]!r})"
    return f"{'--' + name.replace('_', '-')}: {message[:1].lower()}{message[1:]}{got}"
