"""The tokenizer a run uses: found on disk or on the hub, with its special tokens settled and said where from.

Knows nothing of records. Nothing but ``tokenizer.json`` and the config files beside it is ever read, and no
code of a model is ever run.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer, processors

from packtool.addresses import address_in, refuse_address
from packtool.config import AddToken
from packtool.errors import Misuse, one_line
from packtool.files import naming, sha256_of
from packtool.growth import MOST_GROWTH, text_growth
from packtool.hub import quiet_clients
from packtool.panics import is_panic, unseen_panics

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_FILE = "special_tokens_map.json"
TEMPLATE_FILE = "chat_template.jinja"
KEPT_FILES = (TOKENIZER_FILE, CONFIG_FILE, SPECIAL_FILE, TEMPLATE_FILE)
"""What is copied into a dataset: enough to decode it and to load the tokenizer in transformers."""

_PROBES = ("a", "the 1 quick", "\n ")
_PANIC_PROBES = ("", "aaa", "xaax", "\U0001f600a\u00e9", "\n", " ", "  x", "1", ".", "a" * 50)
"""Texts on which a step that matches nothing, or endlessly, has made the library panic."""
_OWN_PROBES = 256
"""Tokens of the vocabulary that are tried as texts where it cannot encode ``_PROBES``."""


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
        path = _path_of(self.name)
        return self.name if path is None else Path(os.path.abspath(path)).name  # noqa: PTH100 (links keep their names)

    @property
    def path(self) -> Path:
        """The tokenizer.json."""
        return self.files[0]

    @property
    def digest(self) -> str:
        """The sha256 over the names and contents of all of them."""
        digest = hashlib.sha256()
        for name, file in self.kept():
            content = file.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()

    @property
    def encoding_digest(self) -> str:
        """The sha256 of the tokenizer.json, which alone says which tokens a text becomes."""
        return sha256_of(self.path)

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
        with naming(path):
            raw = path.read_bytes()
        try:
            values = json.loads(raw.decode())
        except (ValueError, RecursionError) as error:
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

    A hub name may end in ``@REVISION``.

    Raises:
        Misuse: there is none by that name, or it is of a kind that is refused by name.
    """
    if (address := address_in(name)) is not None:
        raise Misuse(f"{address} cannot be a tokenizer: download it, or give its name on the hub")
    path = _path_of(name)
    if path is not None:
        return _on_disk(name, path)
    if _is_path_like(name):
        raise Misuse(f"{name}: no such tokenizer file or folder")
    return _from_hub(name)


def load(files: TokenizerFiles) -> Tokenizer:
    """Load a tokenizer without embedded truncation, padding and dropout (random merges).

    Raises:
        Misuse: tokenizer.json is damaged, of a kind this version of ``tokenizers`` does not know, has ids that are no
            int32, or makes texts far longer than they are.
    """
    with naming(files.path):
        raw = files.path.read_bytes()  # what the system has against it is no fault of its content
    raw = _to_be_loaded(files.path, raw)
    _refuse_what_crashes(files.path, raw)
    try:
        with unseen_panics():
            tokenizer = Tokenizer.from_buffer(raw)
            _try_out(tokenizer)
    except BaseException as error:
        # The library raises plain Exception for whatever is wrong with the file.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise _not_loadable(files.path, error) from None
    return tokenizer


def _not_loadable(path: Path, error: BaseException) -> Misuse:
    return Misuse(f"{path}: not a tokenizer this version can load: {one_line(error)}")


_CAN_CRASH = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')


def _refuse_what_crashes(path: Path, raw: bytes) -> None:
    """Load a file in a process of its own first, where the library may end the process that loads it.

    ``tokenizers`` 0.23 does so where merges are shorter than the prefix of their parts. Few files have one.

    Raises:
        Misuse: it does.
    """
    if _CAN_CRASH.search(raw) is None:
        return
    load = "import sys; from tokenizers import Tokenizer; Tokenizer.from_buffer(sys.stdin.buffer.read()).encode('a b')"
    try:
        tried = subprocess.run([sys.executable, "-I", "-c", load], input=raw, capture_output=True, check=False)
    except OSError:
        return  # no such process can be had, as where Python is part of another program
    if tried.returncode < 0:
        raise Misuse(f"{path}: damaged: the tokenizers library crashes on it")


def _to_be_loaded(path: Path, raw: bytes) -> bytes:
    """The JSON without what is switched off, which the library would obey, or refuse, while it loads the rest.

    Raises:
        Misuse: it is no JSON, has ids that are no int32, or steps that blow a text up.
    """
    try:
        facts = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _not_loadable(path, error) from None
    if (growth := text_growth(facts)) > MOST_GROWTH:
        raise Misuse(
            f"{path}: its steps can make a text {growth:,.0f} times longer or more, and {MOST_GROWTH} times is the "
            "most that is taken; take out what replaces a text by a far longer one"
        )
    if (largest := _largest_id(facts)) > _INT32_MAX:
        raise Misuse(f"{path}: the id {largest} is above {_INT32_MAX}, the largest that fits a dataset (int32)")
    return orjson.dumps(facts) if switch_off(facts) else raw


def switch_off(facts: Any) -> bool:
    """Take out of a parsed tokenizer.json what would cut texts, fill them up or merge at random.

    Args:
        facts: changed in place; what is not as it should be is left for the library to refuse.

    Returns:
        whether there was any of it.
    """
    found = False
    model = facts.get("model") if isinstance(facts, dict) else None
    for part, names in ((facts, ("truncation", "padding")), (model, ("dropout",))):
        for name in names:
            if isinstance(part, dict) and part.get(name) is not None:
                part[name] = None
                found = True
    return found


_INT32_MAX = 2**31 - 1


def _largest_id(facts: Any) -> int:
    model = facts.get("model") if isinstance(facts, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    added = facts.get("added_tokens") if isinstance(facts, dict) else None
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    return max((id for id in ids if type(id) is int), default=-1)


def _try_out(tokenizer: Tokenizer) -> None:
    """Let a tokenizer panic now, if it is one that does."""
    for text in (*_PROBES, "".join(_PROBES) + "\u00e9\ufb01", *_PANIC_PROBES):
        try:
            tokenizer.encode(text, add_special_tokens=False)
        except Exception:
            continue  # no token for what is not in its vocabulary: that is said where such a text is met


def part_kinds(part: Any) -> set[str]:
    """The types of a normalizer, pre-tokenizer or decoder: those a sequence is made of; none where there is no part.

    Args:
        part: as a tokenizer that was loaded from its file has it.
    """
    return set() if part is None else set(_kinds(json.loads(part.__getstate__())))


def _kinds(described: dict[str, Any]) -> list[str]:
    if described["type"] != "Sequence":
        return [described["type"]]
    inner = next(value for value in described.values() if isinstance(value, list))
    return [kind for each in inner for kind in _kinds(each)]


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
    adds_tokens: bool,
    bos: AddToken,
    eos: AddToken,
    eos_token: str | None,
    pad_token: str | None,
) -> SpecialTokens:
    """Settle what stands at the ends of a document and what pads.

    Args:
        files: where the tokenizer and its configs are.
        tokenizer: as loaded, with its post-processor.
        adds_tokens: whether documents are made from strings; tokens and rendered chats get nothing added.
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
    pad = _pad(_special(tokenizer, "pad_token", pad_token, "--pad-token", config, special), known_eos)
    if not adds_tokens:
        for option, value in (("--bos", bos), ("--eos", eos)):
            if value is AddToken.YES:
                raise Misuse(
                    f"{option} yes: nothing is added to records of tokens, nor to what a chat template renders"
                )
        return SpecialTokens((), NO_TOKEN, NO_TOKEN, pad)
    bos_ids, bos_entry = _bos(files, tokenizer, bos, config, special)
    if eos is AddToken.NO:
        return SpecialTokens(bos_ids, bos_entry, NO_TOKEN, pad)
    if known_eos.id is None:
        known = "no EOS token is known"
        if known_eos.token is not None:
            known = f"the eos_token {known_eos.token!r} of {known_eos.origin} is not in the vocabulary"
        raise Misuse(
            f"{files.path}: {known}, and a text must end with one: put a {CONFIG_FILE} with its eos_token "
            f"beside it, or give --eos-token TOKEN{_suffix_hint(files, tokenizer)}"
        )
    return SpecialTokens(bos_ids, bos_entry, known_eos, pad)


def chat_templates(files: TokenizerFiles, asked: str | None) -> tuple[tuple[tuple[str, str], ...], str]:
    """The chat templates of a tokenizer, or the one that was asked for.

    Args:
        files: where the tokenizer is.
        asked: a file, or the name of one of the tokenizer's templates; None for what it has: chat_template.jinja,
            else tokenizer_config.json.

    Returns:
        (name, source) pairs with a "default", and perhaps a "tool_use" for conversations with tools; and where
        they come from.

    Raises:
        Misuse: there is none, or none by that name; a file cannot be read.
    """
    refuse_address("--chat-template", asked)
    if asked is not None and (path := _path_of(asked)) is not None and path.is_file():
        return (("default", _read_template(path)),), asked
    templates, origin = _own_templates(files)
    if asked is not None:
        if asked not in templates:
            known = f"it has {', '.join(sorted(templates))}" if templates else "it has none"
            raise Misuse(f"--chat-template {asked}: neither a file nor a template of {files.name} ({known})")
        return (("default", templates[asked]),), f"{origin} ({asked})"
    if "default" not in templates:
        raise Misuse(
            f"{files.name}: the tokenizer has no chat template, and the records are conversations; "
            "give --chat-template FILE"
        )
    return tuple((name, templates[name]) for name in ("default", "tool_use") if name in templates), origin


def special_token_texts(files: TokenizerFiles, tokenizer: Tokenizer) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """What a chat template sees of the special tokens, and all of their texts.

    Returns:
        (name, text) pairs such as ("bos_token", "<s>"), from the config files; the texts of all special tokens.
    """
    named: dict[str, str] = {}
    for file in (SPECIAL_FILE, CONFIG_FILE):
        for name, value in files.config(file).items():
            if name.endswith("_token") and (text := _content(value)):
                named[name] = text
    added = tokenizer.get_added_tokens_decoder().values()
    return tuple(sorted(named.items())), sorted(token.content for token in added if token.special)


def _own_templates(files: TokenizerFiles) -> tuple[dict[str, str], str]:
    """The tokenizer's templates by name, and the file they are in."""
    templates: dict[str, str] = {}
    origin = CONFIG_FILE
    config = files.config(CONFIG_FILE).get("chat_template")
    if isinstance(config, str):
        templates["default"] = config
    elif isinstance(config, list):
        templates |= {
            entry["name"]: entry["template"]
            for entry in config
            if isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("name", "template"))
        }
    for path in sorted((files.path.parent / "additional_chat_templates").glob("*.jinja")):
        if not path.is_file():
            continue
        _refuse_link_out(path)
        templates[path.stem] = _read_template(path)
    for path in files.files:
        if path.name == TEMPLATE_FILE:
            templates["default"] = _read_template(path)
            origin = str(path)
    return templates, origin


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Misuse(f"{path}: cannot read the chat template: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Misuse(f"{path}: the chat template is not UTF-8") from None


_LONGEST_HUB_NAME = 200


def _path_of(name: str) -> Path | None:
    """The file or folder of that name; None where there is none."""
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError):
        return None  # too long for a file, in a folder that may not be entered, ~ of nobody


def _is_path_like(name: str) -> bool:
    # A hub name is NAME or OWNER/NAME, perhaps with @REVISION, and nothing else.
    return (
        len(name) > _LONGEST_HUB_NAME
        or re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w./-]+)?", name, re.ASCII) is None
        or name.endswith((".json", ".model"))
    )


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
    found = tuple(folder / file for file in KEPT_FILES if (folder / file).is_file())
    for file in found:
        if file.name != TOKENIZER_FILE:
            _refuse_link_out(file)
    return found


def _refuse_link_out(path: Path) -> None:
    """What lies beside a tokenizer is copied into the dataset, so a link must not bring in a file from elsewhere."""
    home, target = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path))
    # The hub's cache keeps the files of a snapshot as links to its blobs.
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if not (target.is_relative_to(home) or target.is_relative_to(blobs)):
        raise Misuse(f"{path}: a link out of the tokenizer's folder; put the file itself there, or remove the link")


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
        with quiet_clients():
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
    """A special token: the user's, else the configs'. Its id is None where a config's is not in the vocabulary."""
    if given is not None:
        id = tokenizer.token_to_id(given)
        if id is None:
            raise Misuse(f"{option}: {given!r} is not in the tokenizer's vocabulary")
        return SpecialToken(given, id, option)
    for values, origin in ((config, CONFIG_FILE), (special, SPECIAL_FILE)):
        if token := _content(values.get(key)):
            return SpecialToken(token, tokenizer.token_to_id(token), origin)
    return NO_TOKEN


def _pad(pad: SpecialToken, eos: SpecialToken) -> SpecialToken:
    if pad.id is not None:
        return pad
    if eos.id is None:
        return NO_TOKEN
    why = "there is no pad token" if pad.token is None else f"the pad token {pad.token!r} is not in the vocabulary"
    return SpecialToken(eos.token, eos.id, f"the EOS token ({eos.origin}), as {why}")


def _content(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _bos(
    files: TokenizerFiles, tokenizer: Tokenizer, mode: AddToken, config: dict[str, Any], special: dict[str, Any]
) -> tuple[tuple[int, ...], SpecialToken]:
    if mode is AddToken.NO:
        return (), NO_TOKEN  # whatever the post-processor does, it is not asked
    prefix, _ = _added_by_post_processor(files, tokenizer)
    bos = _special(tokenizer, "bos_token", None, "", config, special)
    if prefix:
        if unknown := [id for id in prefix if tokenizer.id_to_token(id) is None]:
            raise Misuse(
                f"{files.path}: its post-processor puts the id {unknown[0]} first, which is not in the vocabulary; "
                "mend the file, or pack without it: --bos no"
            )
        names = " ".join(str(tokenizer.id_to_token(id)) for id in prefix)
        if mode is AddToken.AUTO:
            _refuse_contradiction(files, config, names, bos if prefix != (bos.id,) else NO_TOKEN)
        return prefix, SpecialToken(names, prefix[0], "the tokenizer's post-processor")
    if mode is AddToken.AUTO:
        if config.get("add_bos_token") is True:
            raise Misuse(
                f"{CONFIG_FILE} says add_bos_token: true, but the post-processor of {files.path} adds none; "
                "choose with --bos yes or --bos no"
            )
        return (), NO_TOKEN
    if bos.id is None:
        absent = f" (its bos_token {bos.token!r} is not in the vocabulary)" if bos.token else ""
        raise Misuse(
            f"--bos yes: neither {CONFIG_FILE} nor the post-processor of {files.path} knows a BOS token{absent}"
        )
    return (bos.id,), bos


def _refuse_contradiction(files: TokenizerFiles, config: dict[str, Any], names: str, other: SpecialToken) -> None:
    says = config.get("add_bos_token")
    if says is False:
        raise Misuse(
            f"the post-processor of {files.path} puts {names!r} first, but {CONFIG_FILE} beside it says "
            "add_bos_token: false; choose with --bos yes or --bos no"
        )
    if says is True and other.token is not None:
        raise Misuse(
            f"the post-processor of {files.path} puts {names!r} first, but {CONFIG_FILE} beside it says "
            f"add_bos_token: true with bos_token {other.token!r}; choose with --bos yes ({names!r}) or --bos no"
        )


def _added_by_post_processor(files: TokenizerFiles, tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text, found by encoding some with it and without.

    The marks of ``special_tokens_mask`` tell its tokens from those of the text, which may be the same.

    Raises:
        Misuse: it does anything else to a text.
    """
    if tokenizer.post_processor is None:
        return (), ()
    try:
        with unseen_panics():
            return _added_to_all(files, tokenizer)
    except BaseException as error:
        if not is_panic(error):
            raise
        raise _not_loadable(files.path, error) from None


def _added_to_all(files: TokenizerFiles, tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    for probe, bare in _probes(tokenizer):
        full = tokenizer.encode(probe)
        marks = full.special_tokens_mask
        before = next((index for index, mark in enumerate(marks) if not mark), len(marks))
        after = next((index for index, mark in enumerate(reversed(marks)) if not mark), 0)
        added = (tuple(full.ids[:before]), tuple(full.ids[len(marks) - after :]))
        if full.ids[before : len(marks) - after] != bare or (found is not None and added != found):
            raise Misuse(
                f"{files.path}: its post-processor does more than to put the same tokens around every text; "
                "pack without it: --bos no"
            )
        found = added
    if found is None:
        raise Misuse(
            f"{files.path}: no text was found that it can encode, so what its post-processor adds is not known; "
            "choose with --bos no"
        )
    return found


def _probes(tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """A few texts, and the one or more tokens of each without any post-processor."""
    found: list[tuple[str, list[int]]] = []
    own = (tokenizer.id_to_token(id) or "" for id in range(_OWN_PROBES))
    post_processor = tokenizer.post_processor
    # Asked for no special tokens, one may still double or drop the text; only without it the tokens are the text's.
    tokenizer.post_processor = processors.Sequence([])
    try:
        for probe in chain(_PROBES, own):
            try:
                ids = tokenizer.encode(probe).ids
            except Exception:
                continue  # a word outside a vocabulary that has no token for the unknown
            if ids:
                found.append((probe, ids))
            if len(found) == len(_PROBES):
                break
    finally:
        tokenizer.post_processor = post_processor
    return found


def _suffix_hint(files: TokenizerFiles, tokenizer: Tokenizer) -> str:
    try:
        _, suffix = _added_by_post_processor(files, tokenizer)
    except Misuse:
        return ""
    token = tokenizer.id_to_token(suffix[-1]) if suffix else None
    return f" (its post-processor ends a text with {token!r}: --eos-token '{token}')" if token else ""
