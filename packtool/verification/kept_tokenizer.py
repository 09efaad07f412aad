"""The tokenizer that a dataset keeps, held against what the manifest says of it."""

import os
from pathlib import Path

from packtool.errors import BadData, Misuse
from packtool.manifest import MANIFEST_NAME, TOKENIZER_FOLDER, Manifest, listed_file
from packtool.tokenizer import KEPT_FILES, TokenizerFiles, find_tokenizer, load, vocabulary_size
from packtool.verification.report import Finding


def check_tokenizer(finding: Finding, folder: Path, manifest: Manifest) -> None:
    """Digest, size of the vocabulary, and the special tokens with their ids."""
    entry = manifest.tokenizer
    try:
        files = kept_tokenizer(folder)
        digest = files.digest
        tokenizer = load(files)
        size = vocabulary_size(tokenizer)
    except (BadData, Misuse) as error:
        finding.fault(str(error))
        return
    except OSError as error:
        finding.fault(f"{folder / TOKENIZER_FOLDER}: cannot be read: {error.strerror}")
        return
    finding.checked += 2
    if digest != entry.digest:
        finding.fault(f"{folder / TOKENIZER_FOLDER}: its digest is not the manifest's")
    if size != entry.vocabulary_size:
        finding.fault(
            f"{MANIFEST_NAME}: tokenizer.vocabulary_size is {entry.vocabulary_size}; the tokenizer's is {size}"
        )
    special = {"eos": (entry.eos, entry.eos_id), "pad": (entry.pad, entry.pad_id)}
    if len(entry.bos_ids) == 1:
        special["bos"] = (entry.bos, entry.bos_ids[0])
    for name, (token, id) in special.items():
        if token is None and id is None:
            continue
        finding.checked += 1
        found = None if token is None else tokenizer.token_to_id(token)
        if found != id:
            finding.fault(f"{MANIFEST_NAME}: tokenizer.{name} is {token!r:.60} with id {id}; the tokenizer has {found}")


def kept_tokenizer(folder: Path) -> TokenizerFiles:
    """The tokenizer in a dataset's folder.

    Raises:
        Misuse: there is none.
        BadData: a file of it is a link, or no regular file.
    """
    for name in KEPT_FILES:
        if os.path.lexists(folder / TOKENIZER_FOLDER / name):
            listed_file(folder, f"{TOKENIZER_FOLDER}/{name}")
    return find_tokenizer(str((folder / TOKENIZER_FOLDER).absolute()))
