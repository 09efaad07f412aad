"""Encoding: texts and character spans in, flat token ids and runs of trained tokens out.

Knows nothing of records, files or packs. Nothing after this module knows of text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Never, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from packtool.deadlines import in_time
from packtool.encoders.byte_spans import Spans, TokenBytes, character_places
from packtool.encoders.flat_ids import FlatIds, Int32s
from packtool.encoders.proof import differs
from packtool.encoders.proven import Encoders
from packtool.errors import BadData
from packtool.rendering import Rendered
from packtool.tokenized import Tokenized

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

__all__ = ["Bools", "EncodedDocuments", "Int32s", "TextEncoder", "runs_of", "trained_tokens"]


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """Documents as flat arrays. A run is a maximal stretch of tokens that carry loss."""

    ids: Int32s
    """int32 [T], the documents' tokens laid end to end."""
    lengths: Int32s
    """int32 [n]."""
    run_counts: Int32s
    """int32 [n], runs of each document."""
    run_starts: Int32s
    """int32 [R], the first token of each run, counted in its document."""
    run_stops: Int32s
    """int32 [R], one past the last."""
    torn_borders: int = 0
    """Documents in which one token has the end of the prompt and the start of the completion."""

    @classmethod
    def from_tokenized(cls, documents: Sequence[Tokenized]) -> Self:
        """Documents that came as tokens."""
        lengths = np.array([len(document.ids) for document in documents], dtype=np.int32)
        ids = np.concatenate([document.ids for document in documents]) if documents else np.empty(0, np.int32)
        trained = np.ones(len(ids), dtype=np.bool_)
        stop = 0
        for document in documents:
            start, stop = stop, stop + len(document.ids)
            if document.trained is not None:
                trained[start:stop] = document.trained
        return cls(ids.astype(np.int32, copy=False), lengths, *runs_of(trained, lengths))


def runs_of(trained: NDArray[np.bool_], lengths: Int32s) -> tuple[Int32s, Int32s, Int32s]:
    """The runs of trained tokens of each document.

    For ``trained`` 0 1 1 | 1 0 1 and lengths 3 3 the counts are 1 2, the starts 1 0 2, the stops 3 1 3.

    Args:
        trained: bool [T].
        lengths: int32 [n], sums to T.

    Returns:
        counts int32 [n], starts int32 [R], stops int32 [R].
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    firsts = ends - lengths
    before = np.zeros(len(trained), dtype=np.bool_)
    before[1:] = trained[:-1]
    before[firsts[lengths > 0]] = False  # a run never goes on into the next document
    after = np.zeros(len(trained), dtype=np.bool_)
    after[:-1] = trained[1:]
    after[ends[lengths > 0] - 1] = False
    starts = np.flatnonzero(trained & ~before)
    stops = np.flatnonzero(trained & ~after) + 1
    owner = np.searchsorted(ends, starts, side="right")
    counts = np.bincount(owner, minlength=len(lengths)).astype(np.int32)
    return counts, (starts - firsts[owner]).astype(np.int32), (stops - firsts[owner]).astype(np.int32)


class TextEncoder:
    """Encodes rendered texts with ``tokenizers``, or faster with an encoder that is held against it."""

    def __init__(self, encoders: Encoders, bos_ids: tuple[int, ...], eos_id: int | None) -> None:
        """Encode with ``encoders``; ``bos_ids`` and ``eos_id`` are put around every text."""
        self._reference = encoders.reference
        self._fast = encoders.fast
        self._proof = encoders.proof
        self._path = encoders.reference.path
        self._bos = np.array(bos_ids, dtype=np.int32)
        self._eos = eos_id

    @property
    def name(self) -> str:
        """Of the encoder whose ids these are."""
        return self._reference.name if self._fast is None else self._fast.name

    @cached_property
    def _token_bytes(self) -> TokenBytes | None:
        return TokenBytes.of(self._reference.tokenizer)

    @in_time()
    def encode(self, documents: Sequence[Rendered]) -> EncodedDocuments:
        """Encode texts, each with BOS and EOS where they were asked for, and neither of them twice.

        A token trains if it overlaps a trained span by at least one character; EOS, where it is added, trains.
        In a document without spans every token trains. A text that spells BOS or EOS itself, at its start or
        end, gets no second one. A text without tokens of its own gives a document of length 0.

        Raises:
            BadData: the tokenizer cannot encode a text, for want of a token for what is not in its vocabulary.
            Differs: the fast encoder gave other tokens than ``tokenizers`` for one of the texts compared.
        """
        texts = [document.text for document in documents]
        if all(document.spans is None for document in documents):
            return self.encode_texts(texts)
        if self._token_bytes is None:
            encodings = self._reference.encode_with_offsets(texts)
            found = FlatIds.of([encoding.ids for encoding in encodings])
            trained, torn = _by_offsets(documents, encodings)
        else:
            found = self._encoded(texts)
            trained, torn = self._by_bytes(documents, texts, found, self._token_bytes)
        return self._with_ends(found, trained, torn)

    @in_time()
    def encode_texts(self, texts: Sequence[str]) -> EncodedDocuments:
        """The same of texts of which every token trains."""
        return self._with_ends(self._encoded(texts), None, 0)

    def _encoded(self, texts: Sequence[str]) -> FlatIds:
        if self._fast is None or self._proof is None:
            return self._reference.encode(texts)
        found = self._fast.encode(texts)
        self._proof.check(texts, found)
        return found

    def _by_bytes(
        self, documents: Sequence[Rendered], texts: list[str], found: FlatIds, token_bytes: TokenBytes
    ) -> tuple[Bools, int]:
        """Which tokens train, and the torn borders: from the ids where they stand for the text, else by offsets."""
        spans = token_bytes.spans(texts, found)
        trained, torn = _by_byte_spans(documents, texts, spans)
        if any(document.spans is None for document in documents):
            trained |= np.repeat([document.spans is None for document in documents], found.lengths)
        others = np.flatnonzero(~spans.known).tolist()
        if not others:
            return trained, torn
        encodings = self._reference.encode_with_offsets([texts[index] for index in others])
        for index, encoding, ids in zip(others, encodings, found.each(others), strict=True):
            if encoding.ids != ids.tolist():
                self._refuse(texts[index])
        marks, torn_others = _by_offsets([documents[index] for index in others], encodings)
        trained[np.repeat(~spans.known, found.lengths)] = marks
        return trained, torn + torn_others

    def _refuse(self, text: str) -> Never:
        if self._fast is not None:
            raise differs(text)
        raise BadData(f"{self._path}: the tokenizer gives other tokens with offsets than without; report it")

    def _with_ends(self, found: FlatIds, trained: Bools | None, torn: int) -> EncodedDocuments:
        """The same with BOS and EOS; ``trained`` None: every token trains, and each document is one run."""
        ids, lengths = found.ids, found.lengths
        stops = found.stops
        starts = stops - lengths
        some = lengths > 0
        adds_bos = some & ~self._begin_with_bos(ids, starts, lengths) if len(self._bos) else np.zeros_like(some)
        adds_eos = np.zeros_like(some)
        if self._eos is not None:
            adds_eos[some] = ids[stops[some] - 1] != self._eos
        if adds_bos.any() or adds_eos.any():
            before = adds_bos * np.int64(len(self._bos))
            full = before + lengths + adds_eos
            ends = np.cumsum(full)
            own = np.ones(int(full.sum()), dtype=np.bool_)
            eos_places = ends[adds_eos] - 1
            bos_places = ((ends - full)[adds_bos][:, None] + np.arange(len(self._bos))).ravel()
            own[eos_places] = False
            own[bos_places] = False
            whole = np.empty(len(own), dtype=np.int32)
            whole[own] = ids
            if self._eos is not None:
                whole[eos_places] = self._eos
            whole[bos_places] = np.tile(self._bos, int(adds_bos.sum()))
            if trained is not None:
                marks = np.zeros(len(own), dtype=np.bool_)
                marks[own] = trained
                marks[eos_places] = True
                trained = marks
            ids, lengths = whole, full.astype(np.int32)
        if trained is None:
            some_stops = lengths[some]
            return EncodedDocuments(ids, lengths, some.astype(np.int32), np.zeros_like(some_stops), some_stops)
        return EncodedDocuments(ids, lengths, *runs_of(trained, lengths), torn)

    def _begin_with_bos(self, ids: Int32s, starts: Int64s, lengths: Int32s) -> Bools:
        begin = lengths >= len(self._bos)
        for place, id in enumerate(self._bos):
            begin[begin] = ids[starts[begin] + place] == id
        return begin


def _by_offsets(documents: Sequence[Rendered], encodings: Sequence[Encoding]) -> tuple[Bools, int]:
    """Which tokens train, by their offsets, and the torn borders."""
    trained = [np.empty(0, dtype=np.bool_)]
    torn = 0
    for document, encoding in zip(documents, encodings, strict=True):
        # Twice as fast as np.array of the pairs, and most of what labels cost.
        flat = np.fromiter(chain.from_iterable(encoding.offsets), np.int64, 2 * len(encoding.ids))
        starts, stops = flat[::2], flat[1::2]
        if document.spans is None:
            trained.append(np.ones(len(starts), dtype=np.bool_))
        else:
            trained.append(trained_tokens(starts, stops, _bounds(document.spans)))
        if document.border is not None:
            torn += bool(np.any((starts < document.border) & (document.border < stops)))
    return np.concatenate(trained), torn


def _by_byte_spans(documents: Sequence[Rendered], texts: Sequence[str], spans: Spans) -> tuple[Bools, int]:
    """The same by the bytes that tokens stand for, all texts at once; only where those are known.

    A token trains if its bytes overlap those of a trained character: all characters it has bytes of are its own,
    and spans begin and end between characters.
    """
    places, firsts = character_places(spans, texts)
    starts = np.concatenate(([0], spans.stops[:-1])) if len(spans.stops) else spans.stops
    characters = [
        (first + start, first + stop)
        for document, first, known in zip(documents, firsts.tolist(), spans.known.tolist(), strict=True)
        if known
        for start, stop in document.spans or ()
    ]
    trained = trained_tokens(starts, spans.stops, places[_bounds(characters)])
    borders = places[
        [
            first + document.border
            for document, first, known in zip(documents, firsts.tolist(), spans.known.tolist(), strict=True)
            if known and document.border is not None
        ]
    ]
    return trained, _torn(starts, spans.stops, borders)


def _bounds(spans: Sequence[tuple[int, int]]) -> Int64s:
    return np.array([span for span in spans if span[0] < span[1]], dtype=np.int64).reshape(-1, 2)


def _torn(starts: Int64s, stops: Int64s, borders: Int64s) -> int:
    """How many of these places lie inside a token; tokens are laid end to end."""
    token = np.searchsorted(stops, borders, side="right")
    inside = token < len(stops)
    return int(np.sum(starts[token[inside]] < borders[inside]))


def trained_tokens(starts: Int64s, stops: Int64s, bounds: Int64s) -> Bools:
    """Which tokens overlap a trained span.

    Args:
        starts: int64 [T], where each token starts.
        stops: int64 [T], one past its end; a token may be empty, and then does not train.
        bounds: int64 [S, 2], half-open spans, rising, disjoint and not empty, in the same measure.

    Returns:
        bool [T].
    """
    # The first span that ends after the token starts is the only one that can be the first to overlap it.
    span = np.searchsorted(bounds[:, 1], starts, side="right")
    overlaps: Bools = (np.append(bounds[:, 0], np.iinfo(np.int64).max)[span] < stops) & (starts < stops)
    return overlaps
