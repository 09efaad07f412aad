"""The benchmark's data, made of what the machine has: a folder in; JSONL files and a note of what was found out.

Python's own and installed sources, manual pages and message catalogs in many languages, and documentation.
Nothing is downloaded, and no text is used twice in a file. Turns of conversations are cut from the same documents.
"""

import ast
import gettext
import gzip
import hashlib
import re
import site
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

import orjson

CODE_SUFFIXES = frozenset({".py", ".pyi", ".h", ".hpp", ".c", ".pyx", ".js"})
PROSE_SUFFIXES = frozenset({".md", ".rst", ".txt", ".html"})
_LARGEST_FILE = 2_000_000
_SHORTEST_MESSAGE = 60
_SHARE_OF_INSTRUCTIONS = 10
"""Instructions come to a tenth of the texts: they are cut from parsed modules, and parsing takes a while."""
_CONVERSATIONS_PER_MEGABYTE = 500
_MOST_EXCHANGES = 4
_SHORTEST_CONVERSATION = 300
"""Letters of a document that conversations are cut from."""
_LETTERS_OF_QUESTION, _LETTERS_OF_ANSWER = (20, 200), (50, 600)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Files made for one run."""

    text: Path
    instructions: Path
    conversations: Path
    found: dict[str, str]
    """What each file holds, in words."""


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    share: int
    """Its part of the bytes, while there is enough of it."""
    documents: Callable[[], Iterator[str]]


def build(folder: Path, megabytes: int) -> Corpus:
    """Make the corpus, or take what an earlier call made in ``folder``.

    Args:
        folder: where it goes.
        megabytes: how much text, in 10^6 bytes of JSONL; less where the machine has less.
    """
    text = folder / f"text-{megabytes}.jsonl"
    instructions = folder / f"instructions-{megabytes}.jsonl"
    conversations = folder / f"conversations-{megabytes}.jsonl"
    notes = folder / f"corpus-{megabytes}.json"
    if not notes.exists() or not conversations.exists():
        limit = megabytes * 1_000_000
        found = {
            text.name: _write(text, limit, _texts()),
            instructions.name: _write(
                instructions, max(limit // _SHARE_OF_INSTRUCTIONS, 100_000), _named("functions", _instructions())
            ),
            conversations.name: _write(
                conversations,
                limit,
                _named("conversations", islice(_conversations(), megabytes * _CONVERSATIONS_PER_MEGABYTE)),
            ),
        }
        notes.write_bytes(orjson.dumps(found))
    return Corpus(text, instructions, conversations, orjson.loads(notes.read_bytes()))


def _write(path: Path, limit: int, records: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    with path.open("wb") as file:
        for kind, record in records:
            line = orjson.dumps(record) + b"\n"
            file.write(line)
            sizes[kind] += len(line)
            counts[kind] += 1
            if sizes.total() >= limit:
                break
    parts = ", ".join(f"{kind} {counts[kind]:,} ({sizes[kind] / 1e6:.1f} MB)" for kind in sorted(counts))
    return f"{counts.total():,} records, {sizes.total() / 1e6:.1f} MB: {parts}"


def _texts() -> Iterator[tuple[str, dict[str, str]]]:
    """Documents of all kinds, mixed by their shares of the bytes so far; what runs out leaves its place."""
    kinds = [
        _Kind("code", 45, _code),
        _Kind("manual sections", 30, _manual_sections),
        _Kind("messages", 15, _messages),
        _Kind("documentation", 10, _documentation),
    ]
    streams = {kind.name: kind.documents() for kind in kinds}
    shares = {kind.name: kind.share for kind in kinds}
    written = dict.fromkeys(streams, 0.0)
    seen: set[bytes] = set()
    while streams:
        name = min(streams, key=lambda name: written[name])
        document = next(streams[name], None)
        if document is None:
            del streams[name]
            continue
        key = hashlib.blake2b(document.encode(), digest_size=12).digest()
        if key in seen:
            continue
        seen.add(key)
        written[name] += (len(document) + 1) / shares[name]
        yield name, {"text": document}


def _named(name: str, records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for record in records:
        yield name, record


def _code() -> Iterator[str]:
    return _files(_python_folders(), CODE_SUFFIXES)


def _documentation() -> Iterator[str]:
    folders = [*_python_folders(), Path("/usr/share/doc"), Path("/usr/share/games/fortunes"), Path("/usr/share/dictd")]
    return _files(folders, PROSE_SUFFIXES | {""})


def _manual_sections() -> Iterator[str]:
    """Each section of each manual page, roff markup and all but its comments."""
    for page in _files([Path("/usr/share/man")], frozenset("." + digit for digit in "123456789")):
        text = re.sub(r'^[.\']\\".*\n', "", page, flags=re.MULTILINE)
        for section in re.split(r"^(?=\.S[Hh] )", text, flags=re.MULTILINE):
            if section.strip():
                yield section


def _messages() -> Iterator[str]:
    """Translations in many languages: short documents."""
    for path in _mixed(Path("/usr/share/locale").glob("*/LC_MESSAGES/*.mo")):
        try:
            with path.open("rb") as file:
                # The typed interface translates one message; a corpus needs them all.
                catalog: dict[object, str] = vars(gettext.GNUTranslations(file))["_catalog"]
        except (OSError, ValueError, LookupError):  # some catalogs have damaged headers
            continue
        for key, message in catalog.items():
            if key and len(message) >= _SHORTEST_MESSAGE:
                yield message


def _instructions() -> Iterator[dict[str, str]]:
    """Functions with a docstring: it is the prompt, the function is the completion."""
    for module in _files(_python_folders(), frozenset({".py"})):
        try:
            tree = ast.parse(module)
        except (SyntaxError, ValueError, RecursionError):
            continue
        lines = module.splitlines(keepends=True)
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 2:
                continue
            docstring = ast.get_docstring(node)
            if docstring and len(docstring) > 40:
                head = "".join(lines[node.lineno - 1 : node.body[0].lineno - 1])
                body = "".join(lines[node.body[1].lineno - 1 : node.end_lineno])
                if head.strip() and body.strip():
                    yield {"prompt": f"{docstring}\n\n", "completion": head + body}


def _conversations() -> Iterator[dict[str, Any]]:
    """One to four questions and answers, every other one with a system prompt, each turn a piece of a document."""
    random = Random(0)
    for _, record in _texts():
        text, place = record["text"], 0
        if len(text) < _SHORTEST_CONVERSATION:
            continue
        messages: list[dict[str, str]] = []
        roles = ["system"] * random.randrange(2) + ["user", "assistant"] * random.randint(1, _MOST_EXCHANGES)
        for role in roles:
            letters = random.randint(*(_LETTERS_OF_ANSWER if role == "assistant" else _LETTERS_OF_QUESTION))
            content = text[place : place + letters].strip()
            place += letters
            if not content:
                break
            messages.append({"role": role, "content": content})
        # A document that is too short ends it early; it ends with an answer all the same.
        while messages and messages[-1]["role"] != "assistant":
            messages.pop()
        if messages:
            yield {"messages": messages}


def _python_folders() -> list[Path]:
    return [Path(sysconfig.get_path("stdlib")), *map(Path, site.getsitepackages())]


def _files(folders: Iterable[Path], suffixes: frozenset[str]) -> Iterator[str]:
    """The text of each file of these kinds, gzipped or not; those that are not UTF-8 are left out."""
    for path in _mixed(chain.from_iterable(map(_below, folders))):
        plain = path.with_suffix("") if path.suffix == ".gz" else path
        if plain.suffix not in suffixes or path.is_symlink() or not path.is_file():
            continue
        try:
            raw = path.read_bytes()
            raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
            if len(raw) <= _LARGEST_FILE and (text := raw.decode("utf-8")).strip():
                yield text
        except (OSError, EOFError, zlib.error, UnicodeDecodeError):
            continue


@cache
def _below(folder: Path) -> tuple[Path, ...]:
    return tuple(folder.rglob("*"))


def _mixed(paths: Iterable[Path]) -> list[Path]:
    """In an order that is always the same and favours no package or language."""
    return sorted(paths, key=lambda path: hashlib.blake2b(str(path).encode(), digest_size=8).digest())
