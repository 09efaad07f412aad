"""The checks that need no more than a row group of packs: lengths, positions, labels, padding, vocabulary.

Pure functions of arrays; each writes down what is wrong and where.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packtool.contract import IGNORED
from packtool.manifest import Manifest
from packtool.packing import STRATEGIES
from packtool.shards import Int64s
from packtool.verification.reading import Part
from packtool.verification.report import Bools, Finding
from packtool.verification.rules import TextRules


def check_sums(finding: Finding, manifest: Manifest, part: Part) -> Bools:
    """bool [P]: in which packs the segments lie end to end, so that the other checks know where they are."""
    batch = part.batch
    finding.checked += batch.packs
    starts = part.segment_starts
    ends = starts + batch.pack_segments
    sums = _summed(batch.seq_lengths, starts, ends)
    empty = _summed(batch.seq_lengths < 1, starts, ends) > 0
    sound: Bools = (batch.pack_segments > 0) & ~empty & (sums == batch.pack_tokens)
    exact = np.equal if manifest.padded else np.less_equal
    fits = exact(batch.pack_tokens, manifest.max_length)

    def describe(pack: int) -> str:
        tokens = batch.pack_tokens[pack]
        if not batch.pack_segments[pack]:
            what = "it has no segment"
        elif empty[pack]:
            lengths = batch.seq_lengths[starts[pack] : ends[pack]]
            segment = int(np.argmax(lengths < 1))
            what = f"segment {segment} has length {lengths[segment]}; expected at least 1"
        elif not sound[pack]:
            what = f"seq_lengths sum to {sums[pack]}, but it has {tokens} tokens"
        else:
            what = f"{tokens} tokens; expected {'exactly' if manifest.padded else 'at most'} {manifest.max_length}"
        return f"{part.pack(pack)}: {what}"

    finding.fault_where(~(sound & fits), describe)
    return sound


def _summed(values: NDArray[Any], starts: Int64s, ends: Int64s) -> Int64s:
    """The sum of values[start:end] for each pair; unlike reduceat it takes empty stretches."""
    running = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, dtype=np.int64, out=running[1:])
    sums: Int64s = running[ends] - running[starts]
    return sums


def check_positions(finding: Finding, part: Part, firsts: Int64s) -> None:
    """``firsts`` is where each segment begins, as everywhere below."""
    positions = part.batch.position_ids
    finding.checked += len(positions)
    # One more than the token before, except where a segment begins: there 0.
    right = np.empty(len(positions), dtype=np.bool_)
    np.equal(positions[1:] - positions[:-1], 1, out=right[1:])
    right[firsts] = positions[firsts] == 0

    def describe(token: int) -> str:
        segment = int(np.searchsorted(firsts, token, side="right")) - 1
        return f"{part.token(token)}: position {positions[token]}; expected {token - firsts[segment]}"

    finding.fault_where(~right, describe)


def check_labels(finding: Finding, part: Part) -> None:
    """A label is the token or none, and a pack has at least one."""
    ids, labels = part.batch.input_ids, part.batch.labels
    finding.checked += len(labels)
    trained = labels != IGNORED
    finding.fault_where(
        trained & (labels != ids),
        lambda token: f"{part.token(token)}: label {labels[token]}; expected {ids[token]}, its id, or {IGNORED}",
    )
    # Over packs that have tokens only, since reduceat does not take empty stretches.
    filled = np.flatnonzero(part.batch.pack_tokens)
    untrained = np.ones(part.batch.packs, dtype=np.bool_)
    if len(filled):
        untrained[filled] = ~np.logical_or.reduceat(trained, part.token_starts[filled])
    finding.fault_where(untrained, lambda pack: f"{part.pack(pack)}: no trained token")


def check_segment_starts(finding: Finding, part: Part, firsts: Int64s) -> None:
    """The first token of a segment carries no loss."""
    labels = part.batch.labels[firsts]
    finding.checked += len(labels)
    finding.fault_where(
        labels != IGNORED,
        lambda at: f"{part.segment(at)}: its first token has label {labels[at]}; expected {IGNORED}",
    )


def check_training(finding: Finding, manifest: Manifest, text: TextRules, part: Part, firsts: Int64s) -> None:
    """Whether enough of every segment trains, for the strategy and the format."""
    batch = part.batch
    lengths = batch.seq_lengths
    finding.checked += len(lengths)
    trained = np.add.reduceat(batch.labels != IGNORED, firsts, dtype=np.int64)
    real = ~batch.is_padding
    if text.all_trains:
        wrong = real & (trained < lengths - 1)

        def describe(at: int) -> str:
            masked = firsts[at] + 1 + int(np.argmax(batch.labels[firsts[at] + 1 : firsts[at] + lengths[at]] == IGNORED))
            return f"{part.token(int(masked))}: label {IGNORED}; all but a segment's first token train in this format"

        finding.fault_where(wrong, describe)
    if not STRATEGIES[manifest.strategy].keeps_untrained:
        finding.fault_where(
            real & (trained == 0),
            lambda at: f"{part.segment(at)}: no trained token, and {manifest.strategy} keeps no such segment",
        )


def check_padding(finding: Finding, manifest: Manifest, part: Part) -> None:
    """Padding is one masked segment of the pad token at the end of its pack, and there is none unasked."""
    batch = part.batch
    finding.checked += batch.packs
    padding = np.flatnonzero(batch.is_padding)
    if not len(padding):
        return

    def place(at: int) -> str:
        return part.segment(int(padding[at]))

    if not manifest.padded:
        finding.fault(f"{place(0)}: padding, but the dataset is not padded", len(padding))
        return
    # None but a pack's last segment: so at most one, too.
    lasts = part.segment_starts + batch.pack_segments - 1
    finding.fault_where(
        ~np.isin(padding, lasts), lambda at: f"{place(at)}: padding that is not its pack's one last segment"
    )
    offsets = batch.doc_offsets[padding]
    finding.fault_where(offsets != 0, lambda at: f"{place(at)}: padding of offset {offsets[at]}; expected 0")
    in_padding = np.repeat(batch.is_padding, batch.seq_lengths)
    pad_id = manifest.tokenizer.pad_id
    finding.fault_where(
        in_padding & (batch.input_ids != pad_id),
        lambda token: f"{part.token(token)}: padding of id {batch.input_ids[token]}; expected {pad_id}, the pad id",
    )
    finding.fault_where(
        in_padding & (batch.labels != IGNORED), lambda token: f"{part.token(token)}: padding that carries loss"
    )


def check_vocabulary(finding: Finding, manifest: Manifest, part: Part) -> None:
    """Ids from 0 to below the vocabulary's size."""
    ids = part.batch.input_ids
    finding.checked += len(ids)
    size = min(manifest.tokenizer.vocabulary_size, 2**31)
    # As unsigned numbers negative ids are huge, so one comparison covers both ends.
    unsigned = ids.view(np.uint32)
    if len(ids) and int(unsigned.max()) >= size:
        finding.fault_where(
            unsigned >= size,
            lambda token: f"{part.token(token)}: id {ids[token]}; the vocabulary has {size}",
        )


def check_text_starts(finding: Finding, text: TextRules, part: Part, firsts: Int64s) -> None:
    """A segment that starts a document starts with what is put before every text."""
    batch = part.batch
    opening = np.flatnonzero((batch.doc_offsets == 0) & ~batch.is_padding)
    starts, lengths = firsts[opening], batch.seq_lengths[opening]
    for index, id in enumerate(text.bos_ids):
        finding.checked += len(opening)
        inside = np.flatnonzero(lengths > index)
        found = batch.input_ids[starts[inside] + index]

        def describe(at: int, inside: Int64s = inside, found: NDArray[np.int32] = found, id: int = id) -> str:
            return f"{part.segment(int(opening[inside[at]]))}: its text begins with id {found[at]}; expected {id}, BOS"

        finding.fault_where(found != id, describe)


def ends_of_texts(text: TextRules, part: Part, firsts: Int64s) -> Bools:
    """bool [S]: which segments could be the end of a text: their last token is EOS and, unless it is alone, trains."""
    batch = part.batch
    if text.eos_id is None:
        return np.ones(len(firsts), dtype=np.bool_)
    lasts = firsts + batch.seq_lengths - 1
    trains = (batch.labels[lasts] != IGNORED) | (batch.seq_lengths == 1)
    ends: Bools = (batch.input_ids[lasts] == text.eos_id) & trains
    return ends
