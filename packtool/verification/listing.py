"""The files of a dataset's folder: those that the manifest lists, those that it does not, and the card.

Looks at names, sizes and hashes; what is inside a shard or a line of rejects is for others.
"""

from pathlib import Path

from packtool.card import card_head
from packtool.errors import BadData
from packtool.files import sha256_of
from packtool.manifest import (
    CARD_NAME,
    MANIFEST_NAME,
    REJECTS_NAME,
    RUN_NAME,
    TOKENIZER_FOLDER,
    FileEntry,
    Manifest,
    ShardEntry,
    combined_digest,
    listed_file,
)
from packtool.shards import shard_name
from packtool.tokenizer import KEPT_FILES, TOKENIZER_FILE
from packtool.verification.report import Finding

_CARD_BYTES = 64 << 20  # a card of 99,999 shards has a few megabytes
_BESIDE_SHARDS = frozenset({CARD_NAME, REJECTS_NAME, *(f"{TOKENIZER_FOLDER}/{name}" for name in KEPT_FILES)})
_NEEDED = (CARD_NAME, REJECTS_NAME, f"{TOKENIZER_FOLDER}/{TOKENIZER_FILE}")


def check_listing(finding: Finding, folder: Path, manifest: Manifest) -> None:
    """The manifest itself, the names it lists, and every file but the shards, which are read later."""
    finding.checked += 1
    if (folder / MANIFEST_NAME).is_symlink():
        finding.fault(f"{folder / MANIFEST_NAME}: a link; a dataset's files must lie in its own folder")
    for index, shard in enumerate(manifest.shards):
        expected = shard_name(index, len(manifest.shards))
        if shard.name != expected:
            finding.fault(f"{MANIFEST_NAME}: shard {index} is called {shard.name}; expected {expected}")
    names = {entry.name for entry in manifest.files}
    for name in _NEEDED:
        if name not in names:
            finding.fault(f"{MANIFEST_NAME}: {name} is not listed")
    if manifest.content_digest != combined_digest(shard.content_digest for shard in manifest.shards):
        finding.fault(f"{MANIFEST_NAME}: content_digest is not that of the shards' content digests")
    for entry in manifest.files:
        check_file(finding, folder, entry)


def check_file(finding: Finding, folder: Path, entry: FileEntry | ShardEntry) -> Path | None:
    """Check one listed file; its path if it is there to be read."""
    finding.checked += 1
    try:
        path = listed_file(folder, entry.name)
        size = path.stat().st_size
        if size != entry.bytes:
            finding.fault(f"{path}: {size} bytes; the manifest says {entry.bytes}")
        elif sha256_of(path) != entry.sha256:
            finding.fault(f"{path}: its sha256 is not the manifest's")
    except BadData as error:
        finding.fault(str(error))
        return None
    except OSError as error:
        finding.fault(f"{folder / entry.name}: cannot be read: {error.strerror}")
        return None
    return path


def check_stray_files(finding: Finding, folder: Path, manifest: Manifest) -> None:
    """Whatever is in the folder and its tokenizer folder, and not listed; hidden files are no part of a dataset.

    Nor is a file that packtool does not write, though it be listed.
    """
    listed = {file.name for file in manifest.files}
    known = {MANIFEST_NAME, RUN_NAME, *(shard.name for shard in manifest.shards), *(listed & _BESIDE_SHARDS)}
    folders = [folder]
    if (folder / TOKENIZER_FOLDER).is_dir() and not (folder / TOKENIZER_FOLDER).is_symlink():
        known.add(TOKENIZER_FOLDER)
        folders.append(folder / TOKENIZER_FOLDER)
    for place in folders:
        try:
            paths = sorted(place.iterdir())
        except OSError as error:
            finding.fault(f"{place}: cannot be read: {error.strerror}")
            continue
        for path in paths:
            if path.name.startswith("."):
                continue
            finding.checked += 1
            name = path.relative_to(folder).as_posix()
            if name not in known:
                told = "no file of a dataset, though listed" if name in listed else "not listed"
                finding.fault(f"{path}: {told} in the manifest; move it elsewhere")


def check_card(finding: Finding, folder: Path, manifest: Manifest) -> None:
    """The head of the card, which ``datasets`` goes by."""
    try:
        path = listed_file(folder, CARD_NAME)
        if path.stat().st_size > _CARD_BYTES:
            raise BadData(f"{path}: too large to be a card")
        text = path.read_bytes()
    except BadData as error:
        finding.miss(str(error))
        return
    except OSError as error:
        finding.miss(f"{folder / CARD_NAME}: cannot be read: {error.strerror}")
        return
    finding.checked += len(manifest.shards)
    expected = card_head(tuple(shard.name for shard in manifest.shards)).encode()
    if text.startswith(expected):
        return
    lines, wanted = text.split(b"\n"), expected.split(b"\n")
    line = next(index for index, want in enumerate(wanted) if index >= len(lines) or lines[index] != want)
    found = repr(lines[line][:60].decode("utf-8", "backslashreplace")) if line < len(lines) else "nothing"
    finding.fault(f"{path}:{line + 1}: {found}; expected {wanted[line].decode()!r}")
