"""Encoding: texts and character spans in, flat token ids and runs of trained tokens out.

Knows nothing of records, files or packs. Nothing after this module knows of text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from packtool.errors import BadData
from packtool.rendering import Rendered
from packtool.tokenized import Tokenized
from packtool.tokenizer import TokenizerFiles, load, without_post_processor

Int32s = NDArray[np.int32]


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
    """Encodes rendered texts with ``tokenizers``, the reference for every other encoder."""

    name = "tokenizers"

    def __init__(self, files: TokenizerFiles, bos_ids: tuple[int, ...], eos_id: int | None) -> None:
        """Load the tokenizer; ``bos_ids`` and ``eos_id`` are put around every text."""
        self._path = files.path
        self._tokenizer: Tokenizer = without_post_processor(load(files))
        self._bos = list(bos_ids)
        self._eos = eos_id

    def encode(self, documents: Sequence[Rendered]) -> EncodedDocuments:
        """Encode texts, each with BOS and EOS where they were asked for, and neither of them twice.

        A token trains if it overlaps a trained span by at least one character; EOS, where it is added, trains.
        In a document without spans every token trains. A text that spells BOS or EOS itself, at its start or
        end, gets no second one. A text without tokens of its own gives a document of length 0.

        Raises:
            BadData: the tokenizer cannot encode a text, for want of a token for what is not in its vocabulary.
        """
        texts = [document.text for document in documents]
        if all(document.spans is None for document in documents):
            encodings = self._encoded(self._tokenizer.encode_batch_fast, texts)
            return self._whole([encoding.ids for encoding in encodings])
        return self._spanned(documents, self._encoded(self._tokenizer.encode_batch, texts))

    def _encoded(self, encode: Callable[..., list[Encoding]], texts: list[str]) -> list[Encoding]:
        try:
            return encode(texts, add_special_tokens=False)
        except Exception as error:
            # The library raises plain Exception for whatever the model cannot do.
            raise BadData(f"{self._path}: cannot encode the texts: {' '.join(str(error).split())[:200]}") from None

    def _whole(self, id_lists: list[list[int]]) -> EncodedDocuments:
        flat: list[int] = []
        lengths = np.empty(len(id_lists), dtype=np.int32)
        for index, ids in enumerate(id_lists):
            start = len(flat)
            before, after = self._added(ids)
            flat += before
            flat += ids
            flat += after
            lengths[index] = len(flat) - start
        counts = (lengths > 0).astype(np.int32)
        stops = lengths[lengths > 0]
        return EncodedDocuments(np.array(flat, dtype=np.int32), lengths, counts, np.zeros_like(stops), stops)

    def _spanned(self, documents: Sequence[Rendered], encodings: Sequence[Encoding]) -> EncodedDocuments:
        flat: list[int] = []
        lengths = np.empty(len(documents), dtype=np.int32)
        trained: list[NDArray[np.bool_]] = []
        torn = 0
        for index, (document, encoding) in enumerate(zip(documents, encodings, strict=True)):
            ids = encoding.ids
            before, after = self._added(ids)
            flat += before
            flat += ids
            flat += after
            lengths[index] = len(before) + len(ids) + len(after)
            trained.append(np.zeros(len(before), dtype=np.bool_))
            offsets = encoding.offsets
            trained.append(trained_tokens(offsets, document.spans))
            if document.border is not None:
                torn += any(start < document.border < stop for start, stop in offsets)
            trained.append(np.ones(len(after), dtype=np.bool_))
        mask = np.concatenate(trained) if trained else np.empty(0, dtype=np.bool_)
        return EncodedDocuments(np.array(flat, dtype=np.int32), lengths, *runs_of(mask, lengths), torn)

    def _added(self, ids: list[int]) -> tuple[list[int], list[int]]:
        if not ids:
            return [], []
        has_bos = ids[: len(self._bos)] == self._bos
        after = [] if self._eos is None or ids[-1] == self._eos else [self._eos]
        return ([] if has_bos else self._bos), after


def trained_tokens(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]] | None) -> NDArray[np.bool_]:
    """Which tokens overlap a trained span by at least one character.

    Args:
        offsets: the half-open character range of each token.
        spans: half-open character spans, rising and disjoint; None: every token trains, also one that stands
            for no character of the text.

    Returns:
        bool, one entry a token.
    """
    # Twice as fast as np.array of the pairs, and most of what labels cost.
    ranges = np.fromiter(chain.from_iterable(offsets), np.int64, 2 * len(offsets)).reshape(-1, 2)
    if spans is None:
        return np.ones(len(ranges), dtype=np.bool_)
    bounds = np.array([span for span in spans if span[0] < span[1]], dtype=np.int64).reshape(-1, 2)
    if not len(bounds):
        return np.zeros(len(ranges), dtype=np.bool_)
    # The first span that ends after the token starts is the only one that can be the first to overlap it.
    span = np.searchsorted(bounds[:, 1], ranges[:, 0], side="right")
    starts = np.append(bounds[:, 0], np.iinfo(np.int64).max)[span]
    overlaps: NDArray[np.bool_] = (starts < ranges[:, 1]) & (ranges[:, 0] < ranges[:, 1])
    return overlaps
