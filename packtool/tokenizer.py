"""The tokenizer a run uses: found on disk or on the hub, with its special tokens settled and said where from.

Knows nothing of records. Nothing but ``tokenizer.json`` and the config files beside it is ever read, and no
code of a model is ever run.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from packtool.config import AddToken
from packtool.errors import BadData, Misuse

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_FILE = "special_tokens_map.json"
KEPT_FILES = (TOKENIZER_FILE, CONFIG_FILE, SPECIAL_FILE, "chat_template.jinja")
"""What is copied into a dataset: enough to decode it and to load the tokenizer in transformers."""

_PROBES = ("a", "the 1 quick", "\n ")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer on disk."""

    name: str
    """As the user gave it."""
    files: tuple[Path, ...]
    """Those of ``KEPT_FILES`` that exist; tokenizer.json first."""

    @property
    def short_name(self) -> str:
        """The name without the folders that lead to it, so that a dataset does not depend on where they are."""
        return Path(self.name).name if Path(self.name).expanduser().exists() else self.name

    @property
    def path(self) -> Path:
        """The tokenizer.json."""
        return self.files[0]

    @property
    def digest(self) -> str:
        """The sha256 over the names and contents of the files."""
        digest = hashlib.sha256()
        for name, file in self.kept():
            content = file.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()

    def kept(self) -> Iterator[tuple[str, Path]]:
        """(name in a dataset's tokenizer folder, file), tokenizer.json first whatever it is called here."""
        for index, file in enumerate(self.files):
            yield (TOKENIZER_FILE if index == 0 else file.name), file

    def config(self, name: str) -> dict[str, Any]:
        """The object in the config file ``name`` beside the tokenizer; empty where there is no such file.

        Raises:
            Misuse: the file is no JSON object.
        """
        path = next((file for file in self.files if file.name == name), None)
        if path is None:
            return {}
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise Misuse(f"{path}: cannot be read as JSON: {error}") from None
        if not isinstance(values, dict):
            raise Misuse(f"{path}: not a JSON object")
        return values


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token that packtool adds or pads with, and who says so."""

    token: str | None
    id: int | None
    origin: str


NO_TOKEN = SpecialToken(None, None, "")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What is put before and after a document, and what fills a pack."""

    bos_ids: tuple[int, ...]
    """Put before every document; usually none or one."""
    bos: SpecialToken
    eos: SpecialToken
    """Ends every document exactly once; ``NO_TOKEN`` where none is added."""
    pad: SpecialToken


def find_tokenizer(name: str) -> TokenizerFiles:
    """Find a tokenizer: an existing path wins; a path-like name never reaches the network; else the hub.

    Raises:
        Misuse: there is none by that name, or it is of a kind that is refused by name.
    """
    path = Path(name).expanduser()
    if path.exists():
        return _on_disk(name, path)
    if _is_path_like(name):
        raise Misuse(f"{name}: no such tokenizer file or folder")
    return _from_hub(name)


def load(files: TokenizerFiles) -> Tokenizer:
    """Load a tokenizer with embedded truncation and padding switched off.

    Raises:
        Misuse: tokenizer.json is damaged or of a kind this version of ``tokenizers`` does not know.
    """
    try:
        tokenizer = Tokenizer.from_file(str(files.path))
    except Exception as error:
        # The library raises plain Exception for whatever is wrong with the file.
        raise Misuse(
            f"{files.path}: not a tokenizer this version can load: {' '.join(str(error).split())[:200]}"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def without_post_processor(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, adding nothing and leaving offsets as they are.

    A post-processor adds special tokens, which packtool does itself, and may trim white space off the
    character offsets, after which indentation would not train.
    """
    tokenizer.post_processor = processors.Sequence([])
    return tokenizer


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id, added tokens included."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def settle_special_tokens(
    files: TokenizerFiles,
    tokenizer: Tokenizer,
    *,
    renders_text: bool,
    bos: AddToken,
    eos: AddToken,
    eos_token: str | None,
    pad_token: str | None,
) -> SpecialTokens:
    """Settle what stands at the ends of a document and what pads.

    Args:
        files: where the tokenizer and its configs are.
        tokenizer: as loaded, with its post-processor.
        renders_text: whether documents are made from strings; documents that come as tokens get nothing added.
        bos: ``auto`` takes what the tokenizer's own post-processor puts in front.
        eos: ``auto`` means yes.
        eos_token: the token's text, instead of the config's.
        pad_token: the same for padding; else the config's, else EOS.

    Raises:
        Misuse: EOS is needed and not known, a named token is not in the vocabulary, or tokenizer.json and
            tokenizer_config.json disagree on BOS.
    """
    config = files.config(CONFIG_FILE)
    special = files.config(SPECIAL_FILE)
    known_eos = _special(tokenizer, "eos_token", eos_token, "--eos-token", config, special)
    pad = _special(tokenizer, "pad_token", pad_token, "--pad-token", config, special)
    if pad.id is None and known_eos.id is not None:
        pad = SpecialToken(
            known_eos.token, known_eos.id, f"the EOS token ({known_eos.origin}), as there is no pad token"
        )
    if not renders_text:
        for option, value in (("--bos", bos), ("--eos", eos)):
            if value is AddToken.YES:
                raise Misuse(f"{option} yes: records of tokens are taken as they are; nothing is added to them")
        return SpecialTokens((), NO_TOKEN, NO_TOKEN, pad)
    bos_ids, bos_entry, suffix = _bos(files, tokenizer, bos, config, special)
    if eos is AddToken.NO:
        return SpecialTokens(bos_ids, bos_entry, NO_TOKEN, pad)
    if known_eos.id is None:
        hint = f" (its post-processor ends a text with {suffix!r}: --eos-token '{suffix}')" if suffix else ""
        raise Misuse(
            f"{files.path}: no EOS token is known, and a text must end with one: put a {CONFIG_FILE} with eos_token "
            f"beside it, or give --eos-token TOKEN{hint}"
        )
    return SpecialTokens(bos_ids, bos_entry, known_eos, pad)


def _is_path_like(name: str) -> bool:
    # A hub name is NAME or OWNER/NAME, and nothing else.
    return name.startswith((".", "/", "~")) or name.endswith((".json", ".model", "/")) or name.count("/") > 1


def _on_disk(name: str, path: Path) -> TokenizerFiles:
    if path.is_dir():
        if not (path / TOKENIZER_FILE).is_file():
            for other in ("tekken.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"):
                if (path / other).exists():
                    _refuse_kind(path / other)
            raise Misuse(f"{path}: has no {TOKENIZER_FILE}")
        return TokenizerFiles(name, _beside(path))
    _refuse_kind(path)
    if not path.is_file():
        raise Misuse(f"{path}: not a file or folder")
    beside = tuple(file for file in _beside(path.parent) if file.name != TOKENIZER_FILE)
    return TokenizerFiles(name, (path, *beside))


def _beside(folder: Path) -> tuple[Path, ...]:
    return tuple(folder / file for file in KEPT_FILES if (folder / file).is_file())


def _refuse_kind(path: Path) -> None:
    if path.name == "tekken.json":
        raise Misuse(f"{path}: tekken tokenizers are not supported; use a repository that has a {TOKENIZER_FILE}")
    if path.suffix == ".model":
        raise Misuse(
            f"{path}: a bare sentencepiece model is not supported; convert it to a {TOKENIZER_FILE} "
            "(transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...) does)"
        )


def _from_hub(name: str) -> TokenizerFiles:
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    try:
        folder = snapshot_download(repository, revision=revision or None, allow_patterns=list(KEPT_FILES))
    except Exception as error:
        # Whatever the hub client raises, the way out is the same; its text may hold URLs, so only the kind is said.
        raise Misuse(
            f"{name}: no such file or folder, and not to be had from the hub ({type(error).__name__}); "
            "give a path to a tokenizer.json, or check the name and the network"
        ) from None
    files = _beside(Path(folder))
    if not files or files[0].name != TOKENIZER_FILE:
        raise Misuse(f"{name}: the hub's repository has no {TOKENIZER_FILE}")
    return TokenizerFiles(name, files)


def _special(
    tokenizer: Tokenizer, key: str, given: str | None, option: str, config: dict[str, Any], special: dict[str, Any]
) -> SpecialToken:
    named = [(given, option), (_content(config.get(key)), CONFIG_FILE), (_content(special.get(key)), SPECIAL_FILE)]
    for token, origin in named:
        if token:
            id = tokenizer.token_to_id(token)
            if id is None:
                raise Misuse(f"{origin}: {key} {token!r} is not in the tokenizer's vocabulary")
            return SpecialToken(token, id, origin)
    return NO_TOKEN


def _content(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _bos(
    files: TokenizerFiles, tokenizer: Tokenizer, mode: AddToken, config: dict[str, Any], special: dict[str, Any]
) -> tuple[tuple[int, ...], SpecialToken, str | None]:
    prefix, suffix = _added_by_post_processor(files, tokenizer)
    suffix_token = tokenizer.id_to_token(suffix[-1]) if suffix else None
    if mode is AddToken.NO:
        return (), NO_TOKEN, suffix_token
    if prefix:
        says_otherwise = mode is AddToken.AUTO and config.get("add_bos_token") is False
        if not says_otherwise:
            token = " ".join(str(tokenizer.id_to_token(id)) for id in prefix)
            return prefix, SpecialToken(token, prefix[0], "the tokenizer's post-processor"), suffix_token
        raise Misuse(
            f"{files.path}'s post-processor puts a BOS token first, but {CONFIG_FILE} beside it says "
            "add_bos_token: false; choose with --bos yes or --bos no"
        )
    if mode is AddToken.AUTO:
        if config.get("add_bos_token") is True:
            raise Misuse(
                f"{CONFIG_FILE} says add_bos_token: true, but the post-processor of {files.path} adds none; "
                "choose with --bos yes or --bos no"
            )
        return (), NO_TOKEN, suffix_token
    bos = _special(tokenizer, "bos_token", None, "", config, special)
    if bos.id is None:
        raise Misuse(f"--bos yes: neither {CONFIG_FILE} nor the post-processor of {files.path} knows a BOS token")
    return (bos.id,), bos, suffix_token


def _added_by_post_processor(files: TokenizerFiles, tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text, found by encoding with it and without."""
    found: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    for probe in _PROBES:
        bare = tokenizer.encode(probe, add_special_tokens=False).ids
        full = tokenizer.encode(probe).ids
        extra = len(full) - len(bare)
        starts = [start for start in range(extra + 1) if full[start : start + len(bare)] == bare] if bare else []
        if not starts:
            continue
        # A token of the text itself never looks like a special one, so the first match is the only one.
        added = (tuple(full[: starts[0]]), tuple(full[starts[0] + len(bare) :]))
        if found is not None and added != found:
            raise Misuse(f"{files.path}: its post-processor does not add the same tokens to every text; use --bos no")
        found = added
    if found is None:
        raise BadData(f"{files.path}: its post-processor changes the tokens of a text; it cannot be used")
    return found
