"""Documents to the pieces that are planned and the stretches that are not, before planning.

It takes lengths and trained runs and gives where each stretch begins, how long it is and why it is left out.
It does not know which pack a piece will go into, nor what its tokens are.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packtool.packing.packing import I32, I64, check_limits

Overlong = Literal["drop", "truncate", "truncate_turns", "split", "error"]
"""What becomes of a document longer than max_length; ``error`` is ``drop``, and the caller stops."""


class Cut(IntEnum):
    """Why a stretch of a document is in no piece; the names are those of ``rejects.jsonl``."""

    overlong = 1
    truncated = 2
    nothing_to_train = 3


_PIECE = 0  # among the cuts' codes: the stretch is a piece


@dataclass(frozen=True, slots=True)
class TrainedRuns:
    """Which tokens of each document carry loss, as runs: by document, then ascending."""

    counts: I32
    """int32 [n], runs of each document; they sum to R."""
    starts: I32
    """int32 [R], the index in its document of a run's first token."""
    stops: I32
    """int32 [R], one past its last; runs are not empty and those of one document do not overlap."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """What documents become: pieces and cuts, both by document, then offset; together they tile each one."""

    doc: I32
    """int32 [P], the piece's document."""
    offset: I32
    """int32 [P], the index in its document of the piece's first token."""
    length: I32
    """int32 [P], its tokens, >= 1."""
    trained: I32
    """int32 [P], how many of them carry loss in the piece (never its first)."""
    cut_doc: I32
    """int32 [C]"""
    cut_offset: I32
    """int32 [C]"""
    cut_length: I32
    """int32 [C]; 0 only for an empty document, which is one cut."""
    cut_reason: NDArray[np.int8]
    """int8 [C], a ``Cut``."""


def cut_pieces(lengths: I32, runs: TrainedRuns, max_length: int, overlong: Overlong) -> Pieces:
    """The pieces of documents that must fit a pack, for strategies that keep what they are given whole.

    A document without a trained token (its first never counts) is one cut, ``nothing_to_train``, whatever
    its length. One of more than ``max_length`` tokens is, under ``drop`` and ``error``, one cut,
    ``overlong``; under ``truncate`` a piece of ``max_length`` tokens and a cut, ``truncated``; under
    ``truncate_turns`` the same, but the piece ends with the last trained run that ends inside it, and there is
    one cut, ``overlong``, where none does; under ``split`` pieces of ``max_length`` and a remainder. What would
    be a piece but has no trained token is a cut, ``nothing_to_train``.

    Args:
        lengths: int32 [n], tokens of each document, >= 0.
        runs: the trained runs of the n documents.
        max_length: tokens that a pack has room for.
        overlong: what becomes of longer documents.

    Raises:
        ValueError: ``max_length`` is below 1.
    """
    check_limits(max_length, None)
    whole = _whole(runs)
    long = (lengths > max_length) & (whole > 0)
    parts = np.ones(len(lengths), dtype=np.int32)
    kept = np.zeros_like(lengths)  # what stays of a document that is cut off
    if overlong == "split":
        parts[long] = -(-lengths[long] // max_length)
    elif overlong == "truncate":
        kept[long] = max_length
    elif overlong == "truncate_turns":
        kept = np.where(long, _last_run_stop(runs, max_length), np.int32(0))
    parts[kept > 0] = 2
    if not long.any():
        doc, offset, length, trained = _each(lengths), np.zeros_like(lengths), lengths, whole
    else:
        doc = np.repeat(_each(lengths), parts)
        nth = np.arange(len(doc)) - np.repeat(np.cumsum(parts) - parts, parts)
        if overlong == "split":
            offset = (nth * max_length).astype(np.int32)
            length = np.where(long[doc], np.minimum(lengths[doc] - offset, max_length), lengths[doc])
        else:
            offset = np.where(nth == 1, kept[doc], np.int32(0))
            length = np.where((nth == 0) & (kept[doc] > 0), kept[doc], lengths[doc] - offset)
        trained = whole[doc]
        in_parts = np.flatnonzero(long[doc])
        trained[in_parts] = trained_in(runs, doc[in_parts], offset[in_parts], length[in_parts])
    reason = np.where(trained > 0, np.int8(_PIECE), np.int8(Cut.nothing_to_train))
    if overlong != "split":
        reason[(long & (kept == 0))[doc]] = Cut.overlong
        reason[offset > 0] = Cut.truncated
    return _sort_out(doc, offset, length, trained, reason)


def keep_whole(lengths: I32, runs: TrainedRuns, max_length: int, overlong: Overlong) -> Pieces:
    """Every document with a trained token as one piece of any length, for a strategy that cuts as it packs.

    Arguments as for ``cut_pieces``; the last two change nothing, since no document is too long to be cut.
    """
    del max_length, overlong
    trained = _whole(runs)
    reason = np.where(trained > 0, np.int8(_PIECE), np.int8(Cut.nothing_to_train))
    return _sort_out(_each(lengths), np.zeros_like(lengths), lengths, trained, reason)


def trained_in(runs: TrainedRuns, doc: I32, offset: I32, length: I32) -> I32:
    """How many tokens carry loss in each stretch [offset, offset + length) of a document.

    The first token of a stretch never does: nothing inside it predicts that token.

    Args:
        runs: the trained runs of the documents.
        doc: int32 [S], the documents, in any order.
        offset: int32 [S], where in its document each stretch begins.
        length: int32 [S], its tokens; 0 is allowed and gives 0.

    Returns:
        int32 [S].
    """
    # One line of numbers for all documents: document d, token i is at d * 2^32 + i.
    starts = np.repeat(np.arange(len(runs.counts), dtype=np.int64) << 32, runs.counts) + runs.starts
    sizes = (runs.stops - runs.starts).astype(np.int64)
    before = np.cumsum(sizes) - sizes

    def trained_before(at: I64) -> I64:
        run = np.searchsorted(starts, at, side="right") - 1
        found = run >= 0
        counted = np.zeros(len(at), dtype=np.int64)
        run, at = run[found], at[found]
        counted[found] = before[run] + np.minimum(at - starts[run], sizes[run])
        return counted

    begin = (doc.astype(np.int64) << 32) + offset
    # of an empty stretch nothing is counted, rather than less than nothing
    trained: I32 = (trained_before(begin + np.maximum(length, 1)) - trained_before(begin + 1)).astype(np.int32)
    return trained


def _last_run_stop(runs: TrainedRuns, max_length: int) -> I32:
    """Where in each document the last run ends that ends within max_length and has a token that trains; else 0."""
    stops = np.zeros(len(runs.counts), dtype=np.int32)
    document = np.repeat(np.arange(len(runs.counts)), runs.counts)
    fits = (runs.stops <= max_length) & (runs.stops > 1)
    np.maximum.at(stops, document[fits], runs.stops[fits])
    return stops


def _whole(runs: TrainedRuns) -> I32:
    """``trained_in`` of whole documents: the tokens of their runs, but for a document's first token."""
    trained = np.zeros(len(runs.starts) + 1, dtype=np.int64)
    np.cumsum(runs.stops - runs.starts - (runs.starts == 0), out=trained[1:])
    ends = np.cumsum(runs.counts, dtype=np.int64)
    whole: I32 = (trained[ends] - trained[ends - runs.counts]).astype(np.int32)
    return whole


def _each(lengths: I32) -> I32:
    return np.arange(len(lengths), dtype=np.int32)


def _sort_out(doc: I32, offset: I32, length: I32, trained: I32, reason: NDArray[np.int8]) -> Pieces:
    kept = reason == _PIECE
    cut = ~kept
    return Pieces(doc[kept], offset[kept], length[kept], trained[kept], doc[cut], offset[cut], length[cut], reason[cut])
