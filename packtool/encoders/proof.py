"""The proof of a fast encoder: the same ids as the reference on hard texts, and on some of every batch.

What is compared follows from the tokenizer and from the texts alone, so every run comes to the same verdict.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, zip_longest

import numpy as np

from packtool.encoders.fast import Differs, FastEncoder
from packtool.encoders.flat_ids import FlatIds
from packtool.encoders.reference import Reference
from packtool.errors import BadData

WHOLE_CHARACTERS = 16 << 10
"""A batch of no more characters is compared whole."""
CHECKED_CHARACTERS = 2 << 10
"""Compared of a larger batch at least; of one of more than half a million characters the ``CHECKED_PART``."""
CHECKED_PART = 256
"""The reference takes forty times as long: it adds a sixth to the time of the fast one."""
_STRETCH = 1 << 9
"""Characters that are compared of a document that is longer."""
_OWN_ENTRIES = 1 << 8
"""Entries of the vocabulary that are tried as texts."""

_THOROUGHLY = 1 << 6
"""Of the first and of the last added tokens so many are tried in more surroundings; some tokenizers have thousands."""

HARD_TEXTS = (
    "", " ", "  ", "   x", "\n", "\n\n", " \n", "\n ", "\r\n", "\r", "\t", "\t\t x", "\v\f\x1c\x85", "\0", "a\0b",
    "\x7f\x80\x9f", "a", "Hello", " Hello", "Hello world", "hello  world", "HELLO World hELLO",
    "x y  z   w    v     u", "trailing ", "trailing   ", "it's I'm you're we'll they'd I've IT'S I'M 's'S'll'LL ’s",
    "don''t ' '' 's", "a.b,c;d:e!f?g", "... …… --- ___ *** ###", "]]{{}}()[]<>", "0",
    "7 12 123 1234 12345 1234567890", "3.14159 1,000,000 1e-9 0x1F ½ ² Ⅷ ٣٤ १२", "a1b22c333", "v1.2.3-rc4+build.5",
    "def f(x):\n    return x\n\n\nclass A:\n\tpass\n", "if (a&&b||!c) { x+=1; } // ok\r\n",
    "<div class=\"x\">&amp;</div>", "\\n\\t\\\\ \\u0041", "https://example.org/a_b?c=d&e=%20#f", "name@example.org",
    "SELECT * FROM t WHERE a<>b;", "$x^2 + \\frac{1}{2}$", "é", "e\u0301", "Å Å A\u030a", "ﬁ ﬂ ½ ﬀ",
    "a\u0323\u0307 a\u0307\u0323 ạ̇", "naïve café ÀÉÎÕÜ ß ẞ İ ı ŉ", "\u0301a", " \u0301", "\u200d\u200c\u200b",
    "日本語のテキスト", "中文 分词。测试，《书》", "한국어 가 각 ᄀ ᅡ ᆨ ᄀ\u1161", "שלום עולם", "العَرَبِيَّة ١٢",
    "हिन्दी क्षि", "ไทยไม่มีช่องว่าง", "Ελληνικά ΣΑΣ ς", "Русский Ёё", "\u202eabc\u202c", "😀",
    "👨‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ ☺", "😀😀😀a😀", "𝔘𝔫𝔦 𐍈 𠀀𠮷 𓀀", "\ue000\uf8ff\U000f0000\U0010fffd",
    "\ufffe\uffff\U0001ffff\U0010ffff", "\ufeffBOM", "�", "\ufdd0", "\u00a0nbsp\u00a0", "\u2028line\u2029para",
    "\u3000wide\u3000", "ａｂｃ１２３", "\u00ad\u2060soft",
    "a\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308z", "▁", "▁a ▁ ▁▁b", "Ġ", "Ġhello Ċ ĉ Â",
    "##ing </w> <0x0A> <0xE2>", "<unk> <s> </s> <pad> [UNK] [CLS] [SEP]", "<|endoftext|>",
    "<|im_start|>user\nhi<|im_end|>\n", "<| im_start |>", "a" * 300, " " * 300, "\n" * 100, "ab" * 2000,
    "0123456789" * 40, "=" * 200, "é" * 300, "😀" * 100, "字" * 400, "\u0301" * 64, "aA" * 100, "\t \t " * 50,
)  # fmt: skip


class Proof:
    """Holds a fast encoder against the reference."""

    def __init__(self, fast: FastEncoder, reference: Reference) -> None:
        """Compare on texts that are hard for any encoder, or for one of this tokenizer.

        Raises:
            Differs: the encoder gave other tokens.
        """
        self._fast = fast
        self._reference = reference
        self._compare(list(dict.fromkeys([*HARD_TEXTS, *_own_texts(reference)])))

    def check(self, texts: Sequence[str], found: FlatIds) -> None:
        """Compare what the encoder gave for some of these texts; for a small batch, for all of them.

        Args:
            texts: a batch.
            found: what the fast encoder gave for it.

        Raises:
            Differs: it should have given other tokens.
        """
        whole, stretches = chosen(texts)
        compared = [texts[index] for index in whole]
        _hold(compared, found.some(whole), self._reference.encode(compared))
        if stretches:
            self._compare([texts[index][start:stop] for index, start, stop in stretches])

    def _compare(self, texts: list[str]) -> None:
        found = self._fast.encode(texts)
        try:
            expected = self._reference.encode(texts)
        except BadData:
            # One of the texts is beyond the tokenizer itself; only the others say anything.
            if len(texts) > 1:
                for text in texts:
                    self._compare([text])
            return
        _hold(texts, found, expected)


def _hold(texts: Sequence[str], found: FlatIds, expected: FlatIds) -> None:
    """Raises Differs, with the first text that has other ids than expected, if one has."""
    if np.array_equal(found.lengths, expected.lengths) and np.array_equal(found.ids, expected.ids):
        return
    every = range(len(texts))
    pairs = zip(texts, found.each(every), expected.each(every), strict=True)
    raise differs(next(text for text, ours, theirs in pairs if not np.array_equal(ours, theirs)))


def differs(text: str) -> Differs:
    """What there is to say of an encoder that gave other tokens for a text."""
    shown = ascii(text if len(text) <= 60 else text[:60] + "...")
    return Differs(f"it gave other tokens than {Reference.name} for {shown}")


def chosen(texts: Sequence[str]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Which texts of a batch are compared: all of a small one, else some from its start to its end.

    The first, the last and the longest are among them, and half are of those that are not plain ASCII, if any are.

    Returns:
        The numbers of those compared as they are, rising; (number, start, stop) of stretches of longer ones.
    """
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    size = int(lengths.sum())
    if size <= WHOLE_CHARACTERS:
        return list(range(len(texts))), []
    whole: list[int] = []
    stretches: list[tuple[int, int, int]] = []
    left = max(CHECKED_CHARACTERS, size // CHECKED_PART)
    for index in _in_turn(texts, int(lengths.argmax())):
        if left <= 0:
            break
        length = int(lengths[index])
        if length <= _STRETCH:
            whole.append(index)
        else:
            # The start of the first, then ever farther inside.
            start = (length - _STRETCH) * (len(stretches) % 4) // 3
            stretches.append((index, start, start + _STRETCH))
        left -= min(length, _STRETCH)
    return sorted(whole), stretches


def _in_turn(texts: Sequence[str], longest: int) -> Iterator[int]:
    """Numbers of texts, each once: first, last and longest; then spread evenly, one in two not ASCII."""
    foreign = np.flatnonzero(~np.fromiter(map(str.isascii, texts), np.bool_, len(texts))).tolist()
    spread = zip_longest((foreign[place] for place in _halving(len(foreign))), _halving(len(texts)))
    seen: set[int | None] = {None}
    for number in chain((0, len(texts) - 1, longest), chain.from_iterable(spread)):
        if number not in seen:
            seen.add(number)
            yield number


def _halving(n: int) -> Iterator[int]:
    """The numbers below ``n``, some twice, the middle ones of ever smaller parts: 8 gives 4, 2, 6, 1, 3, 5, 7, 0."""
    parts = 2
    while parts <= 2 * n:
        yield from (n * part // parts for part in range(1, parts, 2))
        parts *= 2


def _own_texts(reference: Reference) -> Iterator[str]:
    """Texts that are hard for one tokenizer: its added tokens between other text, and entries of its vocabulary."""
    tokenizer = reference.tokenizer
    added = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    for content in added:
        yield f"a{content} b"
    for content in dict.fromkeys((*added[:_THOROUGHLY], *added[-_THOROUGHLY:])):
        yield f"{content}a {content} b{content}{content}\n{content}"
        yield content[:-1] + " " + content[1:]
    for one, other in pairwise(added[:_THOROUGHLY]):
        yield f"{one}{other} x{one}y"
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    ids = sorted({size * part // _OWN_ENTRIES for part in range(_OWN_ENTRIES)} - {size})
    entries = [tokenizer.decode([id], skip_special_tokens=False) for id in ids]
    yield from entries
    for one, other in pairwise(entries):
        yield f"{one}{other} {one.upper()}"
