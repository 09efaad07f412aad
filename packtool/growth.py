"""How much longer a tokenizer.json can make a text: a bound found from what it says, before anything of it is run.

Takes the parsed file, gives a factor; knows nothing of vocabularies.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

MOST_GROWTH = 100
"""Times: more than any normalizer needs. Unicode's own longest is 18, and all bytes spelled out are 4."""

_SEQUENCES = ("normalizers", "pretokenizers", "decoders")
_MAY_BE_EMPTY = re.compile(r"[*?|^$(]|\\[bBAzZGK]|\{[0,]")
"""What a regular expression has that may match where there is no character, and so without end of them."""


def text_growth(facts: Any) -> float:
    """How many times longer the parts of a tokenizer can make a text that is encoded, or the text of tokens.

    A bound, in characters, which holds for each character of the text by itself: a step that replaces one text by
    another shares out the length of the new one among the characters of the old one, and what later steps make of
    the new one counts for it. Normal forms of Unicode, which do not grow again by being repeated, count as one.

    Args:
        facts: the JSON in tokenizer.json; what is not as it should be counts as nothing, as it cannot be loaded.

    Returns:
        the bound, or some number above ``MOST_GROWTH``.
    """
    if not isinstance(facts, dict):
        return 1.0
    encoding = [*_steps(facts.get("normalizer")), *_steps(facts.get("pre_tokenizer"))]
    return max(_growth(encoding), _growth([*_steps(facts.get("decoder"))]))


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(part, dict):
        return
    # A file of an older library says no types, so that the fields tell.
    inner = next((part[name] for name in _SEQUENCES if isinstance(part.get(name), list)), None)
    if inner is None:
        yield part
        return
    for each in inner:
        yield from _steps(each)


class _Sizes:
    """What each character becomes by the steps that were looked at, which is from the last one backwards."""

    def __init__(self) -> None:
        self._others = 1.0
        self._known: dict[str, float] = {}
        self.worst = 1.0

    def of(self, text: str) -> float:
        return sum(self._known.get(character, self._others) for character in text)

    def raise_each(self, characters: str, size: float) -> None:
        for character in characters:
            self._known[character] = max(self._known.get(character, self._others), size)
        self.worst = max(self.worst, size)

    def raise_all(self, size: float) -> None:
        """Any character may become something of that size, instead of what it becomes by the later steps."""
        self._others = max(self._others, size)
        self._known = {character: max(known, size) for character, known in self._known.items()}
        self.worst = max(self.worst, size)

    def add_to_all(self, size: float) -> None:
        self._others += size
        self._known = {character: known + size for character, known in self._known.items()}
        self.worst += size

    def any_becomes_any(self, times: float) -> None:
        self.worst *= times
        self._others = self.worst
        self._known = {}


def _growth(steps: list[Mapping[str, Any]]) -> float:
    sizes = _Sizes()
    for step in reversed(steps):
        pattern, content = step.get("pattern"), step.get("content")
        if isinstance(pattern, dict) and isinstance(content, str):
            _replace(sizes, pattern, content)
        elif isinstance(prepended := step.get("prepend"), str):
            sizes.add_to_all(sizes.of(prepended))  # to each stretch between two added tokens
        elif step.get("type") == "ByteLevel" or "trim_offsets" in step:
            sizes.any_becomes_any(5)  # four bytes, and a blank before them
        elif "handle_chinese_chars" in step:
            sizes.any_becomes_any(3)  # blanks around each
        elif isinstance(charsmap := step.get("precompiled_charsmap"), str):
            sizes.any_becomes_any(_longest(charsmap))
        elif isinstance(replacement := step.get("replacement"), str):
            sizes.raise_each(" ", sizes.of(replacement))
            sizes.add_to_all(sizes.of(replacement))  # before each word
        elif step.get("type") not in _KEEPING:
            sizes.any_becomes_any(1)
        if sizes.worst > MOST_GROWTH:
            break
    return sizes.worst


_KEEPING = ("Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "CharDelimiterSplit", "Strip", "Fuse")


def _replace(sizes: _Sizes, pattern: Mapping[str, Any], content: str) -> None:
    size = sizes.of(content)
    if isinstance(text := pattern.get("String"), str) and text:
        sizes.raise_each(text, size / len(text))
    elif isinstance(text := pattern.get("Regex"), str) and not _MAY_BE_EMPTY.search(text):
        sizes.raise_all(size)
    else:
        sizes.add_to_all(size)


def _longest(charsmap: str) -> int:
    """The most characters that SentencePiece's map has for one: behind a trie, texts that end in a null byte."""
    try:
        raw = base64.b64decode(charsmap)
    except ValueError:
        return 1
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    return max(1, *(len(text.decode(errors="replace")) for text in texts.split(b"\0")))
