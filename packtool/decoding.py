"""Token ids in, text out: what each token stands for, also where its bytes are no character of their own.

Knows a tokenizer, and nothing of packs or of who reads the text.
"""

import codecs
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from packtool.byte_alphabet import BYTE_OF_LETTER
from packtool.tokenizer import part_kinds

Int32s = NDArray[np.int32]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BLANK_MARK = "\u2581"
"""How sentencepiece writes a blank."""


class Decoder:
    """Decodes token ids one by one, so that nothing is dropped, joined or cleaned up on the way.

    Tokens of byte-level vocabularies and of those with byte fallback are decoded through their bytes; blanks that
    sentencepiece marks are blanks; any other tokenizer is asked what a token adds behind the one before it.
    Special tokens are shown as they are written. An id outside the vocabulary is shown as ``<no token ID>``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take a tokenizer as loaded."""
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        decoding, splitting = part_kinds(tokenizer.decoder), part_kinds(tokenizer.pre_tokenizer)
        known = decoding or splitting
        self._byte_level = "ByteLevel" in known
        self._byte_fallback = "ByteFallback" in known or getattr(tokenizer.model, "byte_fallback", False)
        self._blanks_marked = self._byte_fallback or "Metaspace" in known
        self._behind: dict[tuple[int, int], str] = {}

    def texts(self, ids: Int32s) -> list[str]:
        """Each token on its own; bytes that are no character stand as escapes such as ``\\xf0``.

        Args:
            ids: int32 [n].

        Returns:
            n texts.
        """
        unique, place = np.unique(ids, return_inverse=True)
        texts = [self._bytes(id).decode("utf-8", "backslashreplace") for id in unique.tolist()]
        return [texts[index] for index in place.tolist()]

    def pieces(self, ids: Int32s, starts: Sequence[int] = (), begins: Sequence[int] = (0,)) -> list[str]:
        """What each token adds to the text of all of them.

        Joined, the pieces between two ``starts`` are the text of these tokens. A character whose bytes are in several
        tokens is the piece of the last of them, and the others have empty pieces; one that a start cuts in two
        is no character, and its bytes stand as escapes.

        Args:
            ids: int32 [n].
            starts: the indices of tokens before which the text is cut.
            begins: those of ``starts`` with which another text begins, so that nothing before it counts.

        Returns:
            n texts.
        """
        if not self._byte_level and not self._blanks_marked:
            return self._asked(ids.tolist(), set(begins))
        unique, place = np.unique(ids, return_inverse=True)
        raw = [self._bytes(id) for id in unique.tolist()]
        texts, partial = [], np.zeros(len(raw), dtype=np.bool_)
        for index, token in enumerate(raw):
            try:
                texts.append(token.decode("utf-8"))
            except UnicodeDecodeError:
                texts.append("")
                partial[index] = True
        places = place.tolist()
        pieces = [texts[index] for index in places]
        cuts = {*starts, len(places)}
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        for index in np.flatnonzero(partial[place]).tolist():
            # A token that is text by itself never goes on a character that was begun before it.
            ends = index + 1 in cuts or not partial[places[index + 1]]
            pieces[index] = decoder.decode(raw[places[index]], ends)
            if ends:
                decoder.reset()
        return pieces

    def _bytes(self, id: int) -> bytes:
        """The bytes of a token; of a vocabulary without bytes, its entry."""
        token = self._entry(id)
        if token is None:
            return f"<no token {id}>".encode()
        added = self._added.get(id)
        if added is not None and (self._byte_level or added.special):
            return token.encode()
        if self._byte_level:
            try:
                return bytes(BYTE_OF_LETTER[letter] for letter in token)
            except KeyError:
                return token.encode()
        if self._byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return (token.replace(_BLANK_MARK, " ") if self._blanks_marked else token).encode()

    def _asked(self, ids: list[int], begins: set[int]) -> list[str]:
        pieces = []
        before = -1
        for index, id in enumerate(ids):
            pair = (-1 if index in begins else before, id)
            if pair not in self._behind:
                self._behind[pair] = self._added_behind(*pair)
            pieces.append(self._behind[pair])
            before = id
        return pieces

    def _added_behind(self, before: int, id: int) -> str:
        if self._entry(id) is None:
            return f"<no token {id}>"
        alone = self._tokenizer.decode([id], skip_special_tokens=False)
        if self._entry(before) is not None:
            first = self._tokenizer.decode([before], skip_special_tokens=False)
            both = self._tokenizer.decode([before, id], skip_special_tokens=False)
            if both.startswith(first):
                return str(both[len(first) :])
        return str(alone)

    def _entry(self, id: int) -> str | None:
        token: str | None = self._tokenizer.id_to_token(id) if id >= 0 else None
        return token
