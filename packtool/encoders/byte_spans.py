"""Byte spans of tokens from their ids alone, for vocabularies over the byte alphabet of GPT-2.

Used for a text only where the bytes of its tokens, put together, are the bytes of the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from packtool.byte_alphabet import BYTE_OF_LETTER
from packtool.encoders.flat_ids import FlatIds, Int32s
from packtool.tokenizer import part_kinds

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

_NO_BYTES = b"\xff"
"""Stands for a token whose bytes are not known: no text has it, so no text with the token passes."""
_MOST_HOLES = 1 << 22
"""Ids below the largest that no entry has."""
_SPLITTERS = frozenset({"ByteLevel", "Split", "Digits", "Punctuation"})
"""Pre-tokenizers that cut a text and change none of its characters, or map its bytes to the alphabet."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Where tokens stand in the bytes of all texts laid end to end."""

    known: Bools
    """bool [n], whether the tokens of each text are known to stand for it; the others' spans mean nothing."""
    stops: Int64s
    """int64 [T], never falling, one past the last byte of each token; it starts where the one before stops."""
    text: bytes
    """The UTF-8 of all texts."""


class TokenBytes:
    """The bytes each token of a vocabulary stands for."""

    def __init__(self, values: Bytes, starts: Int32s, lengths: Int32s) -> None:
        """Take bytes, and where among them those of each id are; every id has at least one."""
        self._values = values
        self._starts = starts
        self._lengths = lengths

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """Those of a tokenizer; None where a token of it may stand for other characters than its own.

        That is any but a byte-level BPE whose text is not normalized, or only to NFC: what NFC changes has other
        bytes, and what has the same bytes was not changed, so that the offsets of ``tokenizers`` are the same spans.
        """
        if not isinstance(tokenizer.model, models.BPE) or not _keeps_characters(tokenizer):
            return None
        entries = tokenizer.get_vocab(with_added_tokens=False)
        added = tokenizer.get_added_tokens_decoder()
        ids = np.fromiter(entries.values(), np.int64, len(entries))
        size = 1 + max([*added, int(ids.max(initial=0))])
        if size > len(entries) + len(added) + _MOST_HOLES:
            return None  # what follows takes memory for each
        if (np.bincount(ids, minlength=size) > 1).any():
            return None  # one id for two entries
        values, stops, lengths = _bytes_of(list(entries))
        contents = [token.content.encode() for token in added.values()]
        whole = [_NO_BYTES, values.tobytes(), *contents]
        starts_of = np.zeros(size, np.int64)  # an id without an entry has no known bytes
        lengths_of = np.ones(size, np.int64)
        starts_of[ids], lengths_of[ids] = np.where(lengths > 0, 1 + stops - lengths, 0), np.maximum(lengths, 1)
        start = 1 + len(values)
        for id, content in zip(added, contents, strict=True):
            starts_of[id], lengths_of[id] = (start, len(content)) if content else (0, 1)
            start += len(content)
        return cls(np.frombuffer(b"".join(whole), np.uint8), starts_of.astype(np.int32), lengths_of.astype(np.int32))

    def spans(self, texts: Sequence[str], found: FlatIds) -> Spans:
        """Where the tokens of texts stand in their bytes.

        Args:
            texts: of less than 2^31 bytes together.
            found: the ids of each.
        """
        encoded = [text.encode() for text in texts]
        whole = b"".join(encoded)
        text_stops = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        values, stops = self._laid_out(found.ids)
        token_stops = np.concatenate(([0], stops))[found.stops]
        if np.array_equal(token_stops, text_stops) and values == whole:
            return Spans(np.ones(len(texts), np.bool_), stops, whole)
        starts = [0, *token_stops[:-1].tolist()]
        pieces = zip(encoded, starts, token_stops.tolist(), strict=False)
        known = np.array([values[start:stop] == text for text, start, stop in pieces], np.bool_)
        own = stops + np.repeat(text_stops - token_stops, found.lengths)
        stops = np.where(np.repeat(known, found.lengths), own, np.repeat(text_stops, found.lengths))
        return Spans(known, stops, whole)

    def _laid_out(self, ids: Int32s) -> tuple[bytes, Int64s]:
        """The bytes of tokens end to end, and one past the last byte of each."""
        if not len(ids):
            return b"", np.zeros(0, np.int64)
        known = (ids >= 0) & (ids < len(self._lengths))
        ids = np.where(known, ids, 0)
        starts = np.where(known, self._starts[ids], 0)
        lengths = np.where(known, self._lengths[ids], 1)
        stops = np.cumsum(lengths, dtype=np.int64)
        # For starts 7 2 and lengths 3 2 the places 7 8 9 2 3 are the sums of the steps 7 1 1 -7 1.
        steps = np.ones(int(stops[-1]), np.int32)
        steps[0] = starts[0]
        steps[stops[:-1]] = starts[1:] - (starts[:-1] + lengths[:-1] - 1)
        return self._values[np.cumsum(steps, dtype=np.int32)].tobytes(), stops


def character_places(spans: Spans, texts: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Where characters stand in the bytes of all texts laid end to end.

    Returns:
        places: int64, the first byte of every character of all texts, and one past the last byte of all.
        firsts: int64 [n], the number of each text's first character.
    """
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    firsts = np.cumsum(lengths) - lengths
    if len(spans.text) == int(lengths.sum()):
        return np.arange(len(spans.text) + 1), firsts
    raw = np.frombuffer(spans.text, np.uint8)
    return np.append(np.flatnonzero((raw & 0xC0) != 0x80), len(raw)), firsts


def _keeps_characters(tokenizer: Tokenizer) -> bool:
    splitters = part_kinds(tokenizer.pre_tokenizer)
    return part_kinds(tokenizer.normalizer) <= {"NFC"} and "ByteLevel" in splitters and splitters <= _SPLITTERS


def _byte_of_character() -> NDArray[np.int16]:
    """From a character of the byte alphabet to its byte; -1 elsewhere, and the last one stands for all beyond."""
    byte_of = np.full(max(map(ord, BYTE_OF_LETTER)) + 2, -1, np.int16)
    byte_of[[ord(letter) for letter in BYTE_OF_LETTER]] = list(BYTE_OF_LETTER.values())
    return byte_of


def _bytes_of(entries: list[str]) -> tuple[Bytes, Int64s, Int64s]:
    """The bytes of entries over the byte alphabet.

    Returns:
        values: uint8, end to end.
        stops: int64 [n], one past the last of each.
        lengths: int64 [n]; 0 where an entry has other characters, or none.
    """
    byte_of = _byte_of_character()
    characters = np.frombuffer("".join(entries).encode("utf-32-le", "surrogatepass"), "<u4")
    values = byte_of[np.minimum(characters, len(byte_of) - 1)]
    lengths = np.fromiter(map(len, entries), np.int64, len(entries))
    stops = np.cumsum(lengths)
    foreign = np.concatenate(([0], np.cumsum(values < 0)))
    lengths[foreign[stops] > foreign[stops - lengths]] = 0
    return values.astype(np.uint8), stops, lengths
