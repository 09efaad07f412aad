"""Ways in which a packed dataset can be wrong, as small changes to the datasets of ``bases``.

Each stands with the check that must find it when everything that the folder states was made to agree with it, or with
``source`` where nothing but the sources can tell, because the dataset could have been packed so from other sources.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tests.verification.agreement import IGNORED, Dataset, Segment, checksum


@dataclass(frozen=True)
class Corruption:
    """A change, the dataset it is made to, and who must find it."""

    base: str
    check: str
    as_is: str
    """The check that must find it where nothing was made to agree."""
    change: Callable[[Dataset], None]

    @property
    def name(self) -> str:
        """For the test's name."""
        return f"{self.change.__name__}-{self.base}"


CORRUPTIONS: list[Corruption] = []


Change = Callable[[Dataset], None]


def corruption(base: str, check: str, as_is: str = "") -> Callable[[Change], Change]:
    """Put a change into the table."""

    def put(change: Change) -> Change:
        # What only the sources can tell shows in the sums as long as these are those of the sources.
        CORRUPTIONS.append(Corruption(base, check, as_is or ("conservation" if check == "source" else check), change))
        return change

    return put


def find(dataset: Dataset, doc_id: int, offset: int = 0) -> Segment:
    """The segment that starts there."""
    return next(s for pack in dataset.packs for s in pack if (s.doc_id, s.offset) == (doc_id, offset))


def pack_of(dataset: Dataset, doc_id: int, offset: int = 0) -> list[Segment]:
    """The pack that holds it."""
    wanted = find(dataset, doc_id, offset)
    return next(pack for pack in dataset.packs if any(segment is wanted for segment in pack))


def restarted(segment: Segment) -> None:
    """Make lengths, positions and the first label agree with the ids."""
    segment.length = len(segment.ids)
    segment.positions = list(range(segment.length))
    segment.labels[0] = IGNORED


def take_out(dataset: Dataset, doc_id: int, offset: int = 0) -> Segment:
    """Take a segment out; a pack that it was alone in goes with it."""
    pack, segment = pack_of(dataset, doc_id, offset), find(dataset, doc_id, offset)
    pack.remove(segment)
    if not pack:
        drop_pack(dataset, next(i for i, other in enumerate(dataset.packs) if other is pack))
    return segment


def drop_pack(dataset: Dataset, number: int) -> None:
    """Take a pack out of its shard."""
    first = 0
    for shard, count in enumerate(dataset.shard_packs):
        if number < first + count:
            dataset.shard_packs[shard] -= 1
            break
        first += count
    del dataset.packs[number]


def reject_of(dataset: Dataset, doc_id: int) -> dict[str, Any]:
    """The first row of a document."""
    return next(row for row in dataset.rejects if row["doc_id"] == doc_id)


# --- boundaries ----------------------------------------------------------------------------------------------


def move_boundary(pack: list[Segment], by: int) -> None:
    """Move the boundary between a pack's first two segments, with labels and positions that fit."""
    one, two = pack[0], pack[1]
    ids, labels = one.ids + two.ids, one.labels + two.labels
    labels[len(one.ids)] = ids[len(one.ids)]
    cut = len(one.ids) + by
    one.ids, two.ids, one.labels, two.labels = ids[:cut], ids[cut:], labels[:cut], labels[cut:]
    restarted(one)
    restarted(two)


@corruption("text", "text_ends")
def boundary_one_token_late(dataset: Dataset) -> None:
    move_boundary(pack_of(dataset, 1), 1)


@corruption("text", "text_ends")
def boundary_one_token_early(dataset: Dataset) -> None:
    move_boundary(pack_of(dataset, 10), -1)


@corruption("padded", "packing")
def boundary_between_labelled_documents_one_token_late(dataset: Dataset) -> None:
    move_boundary(pack_of(dataset, 1), 1)


@corruption("stream", "documents")
def boundary_of_a_stream_one_token_late(dataset: Dataset) -> None:
    move_boundary(pack_of(dataset, 0), 1)


@corruption("text", "sums")
def lengths_alone_shifted(dataset: Dataset) -> None:
    pack_of(dataset, 1)[0].length += 1


@corruption("text", "positions")
def lengths_shifted_from_one_segment_to_the_next(dataset: Dataset) -> None:
    pack = pack_of(dataset, 1)
    pack[0].length += 1
    pack[1].length -= 1


@corruption("text", "packing")
def segments_merged(dataset: Dataset) -> None:
    pack = pack_of(dataset, 1)
    two = pack.pop()
    pack[0].ids += two.ids
    pack[0].labels += two.ids
    restarted(pack[0])


@corruption("text", "positions")
def lengths_merged(dataset: Dataset) -> None:
    pack = pack_of(dataset, 1)
    two = pack.pop()
    pack[0].ids += two.ids
    pack[0].labels += two.labels
    pack[0].positions += two.positions
    pack[0].length += two.length


@corruption("text", "text_ends")
def segment_split_off_as_a_document(dataset: Dataset) -> None:
    pack = pack_of(dataset, 1)
    split(pack, 6, doc_id=4, offset=0)


@corruption("text", "pieces")
def segment_split_into_pieces(dataset: Dataset) -> None:
    split(pack_of(dataset, 1), 6, doc_id=1, offset=6)


def split(pack: list[Segment], at: int, doc_id: int, offset: int) -> None:
    """Cut a pack's first segment in two."""
    one = pack[0]
    two = Segment(doc_id, offset, 0, one.ids[at:], one.labels[at:], [])
    one.ids, one.labels = one.ids[:at], one.labels[:at]
    restarted(one)
    restarted(two)
    pack.insert(1, two)


@corruption("text", "pieces")
def pieces_cut_one_token_early(dataset: Dataset) -> None:
    one, two = find(dataset, 11), find(dataset, 11, 24)
    two.ids, two.labels, two.offset = [one.ids.pop(), *two.ids], [one.labels.pop(), *two.labels], 23
    two.labels[1] = two.ids[1]
    restarted(one)
    restarted(two)


@corruption("stream", "packing")
def a_stream_cut_one_token_early(dataset: Dataset) -> None:
    one, two = find(dataset, 7), find(dataset, 7, 24)
    two.ids, two.labels, two.offset = [one.ids.pop(), *two.ids], [one.labels.pop(), *two.labels], 23
    restarted(one)
    restarted(two)
    # Its last tokens go on into the next pack, so that each is full again.
    rest = pack_of(dataset, 7, 23)[1]
    rest.ids, rest.labels = rest.ids[:-1], rest.labels[:-1]
    restarted(rest)
    after = find(dataset, 8, 2)
    after.ids, after.offset = [0, *after.ids[:-1]], 1
    after.labels = [IGNORED, *after.labels[:-1]]


@corruption("text", "sums")
def a_segment_of_no_tokens(dataset: Dataset) -> None:
    pack_of(dataset, 1).insert(1, Segment(4, 0, 0, [], [], []))


@corruption("text", "sums")
def a_negative_length(dataset: Dataset) -> None:
    one, two = pack_of(dataset, 1)
    one.length, two.length = -1, one.length + two.length + 1


@corruption("text", "sums")
def a_pack_longer_than_max_length(dataset: Dataset) -> None:
    segment = find(dataset, 22)
    segment.ids.append(50)
    segment.labels.append(50)
    restarted(segment)


# --- labels --------------------------------------------------------------------------------------------------


@corruption("text", "training")
def a_label_of_text_masked(dataset: Dataset) -> None:
    find(dataset, 1).labels[5] = IGNORED


@corruption("padded", "source")
def a_label_masked(dataset: Dataset) -> None:
    labels = find(dataset, 1).labels
    labels[next(i for i, label in enumerate(labels) if label != IGNORED)] = IGNORED


@corruption("chat", "source")
def a_prompt_trained(dataset: Dataset) -> None:
    segment = find(dataset, 0)
    segment.labels[1] = segment.ids[1]


@corruption("chat", "source")
def training_starts_one_token_early(dataset: Dataset) -> None:
    segment = find(dataset, 12)
    first = next(i for i, label in enumerate(segment.labels) if label != IGNORED)
    segment.labels[first - 1] = segment.ids[first - 1]


@corruption("chat", "source")
def the_end_of_turn_masked(dataset: Dataset) -> None:
    segment = find(dataset, 12)
    last = max(i for i, label in enumerate(segment.labels) if label != IGNORED)
    segment.labels[last] = IGNORED


@corruption("text", "labels")
def labels_shifted_by_one(dataset: Dataset) -> None:
    labels = find(dataset, 22).labels
    labels[:] = [*labels[1:], IGNORED]


@corruption("padded", "labels")
def labels_of_a_mask_shifted_by_one(dataset: Dataset) -> None:
    segment = find(dataset, 5)
    segment.labels[:] = [*segment.labels[1:], IGNORED]


@corruption("text", "labels")
def a_label_of_another_token(dataset: Dataset) -> None:
    find(dataset, 22).labels[3] += 1


@corruption("text", "segment_starts")
def the_first_token_of_a_segment_trained(dataset: Dataset) -> None:
    segment = pack_of(dataset, 1)[1]
    segment.labels[0] = segment.ids[0]


@corruption("text", "segment_starts")
def the_first_token_of_a_piece_trained(dataset: Dataset) -> None:
    segment = find(dataset, 25, 48)
    segment.labels[0] = segment.ids[0]


@corruption("padded", "training")
def a_segment_without_a_trained_token(dataset: Dataset) -> None:
    segment = pack_of(dataset, 5)[1]
    segment.labels = [IGNORED] * segment.length


@corruption("stream", "labels")
def a_pack_without_a_trained_token(dataset: Dataset) -> None:
    segment = find(dataset, 7)
    segment.labels = [IGNORED] * segment.length


# --- positions -----------------------------------------------------------------------------------------------


@corruption("text", "positions")
def positions_of_the_pack(dataset: Dataset) -> None:
    one, two = pack_of(dataset, 1)
    two.positions = list(range(one.length, one.length + two.length))


@corruption("text", "positions")
def positions_from_one(dataset: Dataset) -> None:
    find(dataset, 1).positions = list(range(1, 1 + find(dataset, 1).length))


@corruption("text", "positions")
def positions_of_the_document(dataset: Dataset) -> None:
    piece = find(dataset, 25, 48)
    piece.positions = list(range(48, 48 + piece.length))


@corruption("text", "positions")
def one_position_twice(dataset: Dataset) -> None:
    find(dataset, 1).positions[4] = 3


# --- documents -----------------------------------------------------------------------------------------------


@corruption("text", "packing")
def a_document_lost(dataset: Dataset) -> None:
    take_out(dataset, 19)  # the piece beside it stays where it is


@corruption("chat", "source")
def the_document_lost_that_was_placed_last(dataset: Dataset) -> None:
    take_out(dataset, 0)  # the plan without it is the same, and its line could be blank


@corruption("padded", "manifest", as_is="conservation")
def a_document_of_an_array_lost(dataset: Dataset) -> None:
    segment = take_out(dataset, 20)
    dataset.packs = [pack for pack in dataset.packs if any(other.doc_id != -1 for other in pack)]
    dataset.shard_packs = [len(dataset.packs)]
    assert segment.length == 22


@corruption("text", "documents")
def a_document_doubled(dataset: Dataset) -> None:
    dataset.packs.append([deepcopy(find(dataset, 1))])
    dataset.shard_packs[-1] += 1


@corruption("text", "documents")
def a_pack_doubled(dataset: Dataset) -> None:
    dataset.packs.append(deepcopy(dataset.packs[3]))
    dataset.shard_packs[-1] += 1


@corruption("padded", "packing")
def two_documents_of_equal_length_with_their_names_swapped(dataset: Dataset) -> None:
    one, two = pack_of(dataset, 18)[0], pack_of(dataset, 28)[0]
    one.doc_id, two.doc_id = two.doc_id, one.doc_id


@corruption("padded", "source")
def two_documents_with_their_names_swapped(dataset: Dataset) -> None:
    one, two = find(dataset, 9), find(dataset, 20)
    one.doc_id, two.doc_id = two.doc_id, one.doc_id


@corruption("text", "packing")
def two_segments_in_each_others_place(dataset: Dataset) -> None:
    one, two = pack_of(dataset, 22), pack_of(dataset, 26)
    one[0], two[0] = two[0], one[0]


@corruption("text", "packing")
def two_segments_of_a_pack_in_the_other_order(dataset: Dataset) -> None:
    pack_of(dataset, 1).reverse()


@corruption("text", "source")
def a_document_renamed_to_a_blank_line(dataset: Dataset) -> None:
    find(dataset, 0).doc_id = 4


@corruption("text", "documents")
def a_document_of_no_source(dataset: Dataset) -> None:
    find(dataset, 0).doc_id = 27


@corruption("text", "documents")
def a_document_under_the_id_of_a_reject(dataset: Dataset) -> None:
    find(dataset, 0).doc_id = 12


@corruption("text", "documents")
def documents_counted_from_one(dataset: Dataset) -> None:
    for pack in dataset.packs:
        for segment in pack:
            segment.doc_id += 1


@corruption("text", "documents")
def the_first_piece_lost(dataset: Dataset) -> None:
    take_out(dataset, 11)


@corruption("text", "documents")
def a_piece_in_the_middle_lost(dataset: Dataset) -> None:
    take_out(dataset, 25, 24)


@corruption("text", "text_ends")
def the_last_piece_lost(dataset: Dataset) -> None:
    take_out(dataset, 25, 72)


@corruption("text", "documents")
def a_piece_doubled(dataset: Dataset) -> None:
    dataset.packs.append([deepcopy(find(dataset, 25, 24))])
    dataset.shard_packs[-1] += 1


@corruption("text", "packing")
def two_pieces_with_their_offsets_swapped(dataset: Dataset) -> None:
    one, two = find(dataset, 25, 24), find(dataset, 25, 48)
    one.offset, two.offset = two.offset, one.offset


@corruption("text", "source")
def two_pieces_with_their_tokens_swapped(dataset: Dataset) -> None:
    one, two = find(dataset, 9), find(dataset, 9, 24)
    one.ids, two.ids, one.labels, two.labels = two.ids, one.ids, two.labels, one.labels


@corruption("text", "documents")
def an_offset_one_too_high(dataset: Dataset) -> None:
    find(dataset, 25, 48).offset += 1


@corruption("text", "documents")
def a_negative_offset(dataset: Dataset) -> None:
    find(dataset, 1).offset = -1


@corruption("stream", "documents")
def a_stretch_of_a_stream_lost(dataset: Dataset) -> None:
    take_out(dataset, 3, 6)


@corruption("stream", "packing")
def two_documents_of_a_stream_in_the_other_order(dataset: Dataset) -> None:
    pack_of(dataset, 5).reverse()


# --- tokens --------------------------------------------------------------------------------------------------


@corruption("text", "source")
def a_token_changed(dataset: Dataset) -> None:
    segment = find(dataset, 1)
    segment.ids[4] = segment.labels[4] = segment.ids[4] + 1


@corruption("padded", "source")
def two_tokens_swapped(dataset: Dataset) -> None:
    segment = find(dataset, 1)
    segment.ids[0], segment.ids[1] = segment.ids[1], segment.ids[0]


@corruption("text", "text_ends")
def the_end_of_a_text_changed(dataset: Dataset) -> None:
    segment = find(dataset, 1)
    segment.ids[-1] = segment.labels[-1] = 5


@corruption("text", "vocabulary")
def a_token_beyond_the_vocabulary(dataset: Dataset) -> None:
    segment = find(dataset, 1)
    segment.ids[4] = segment.labels[4] = 1_000_000


@corruption("text", "vocabulary")
def a_negative_token(dataset: Dataset) -> None:
    segment = find(dataset, 1)
    segment.ids[4], segment.labels[4] = -7, IGNORED


# --- padding -------------------------------------------------------------------------------------------------


def padding_of(dataset: Dataset) -> tuple[list[Segment], Segment]:
    """A pack with ten tokens of padding, and the padding."""
    pack = pack_of(dataset, 12)
    return pack, pack[-1]


@corruption("padded", "padding")
def padding_as_many_segments(dataset: Dataset) -> None:
    pack, padding = padding_of(dataset)
    pack[-1:] = [Segment(-1, 0, 1, [id], [IGNORED], [0]) for id in padding.ids]


@corruption("padded", "sums")
def padding_that_no_segment_owns(dataset: Dataset) -> None:
    pack, padding = padding_of(dataset)
    pack.pop()
    pack[-1].ids += padding.ids
    pack[-1].labels += padding.labels
    pack[-1].positions += padding.positions


@corruption("padded", "padding")
def padding_that_trains(dataset: Dataset) -> None:
    _, padding = padding_of(dataset)
    padding.labels[2] = padding.ids[2]


@corruption("padded", "padding")
def padding_of_another_token(dataset: Dataset) -> None:
    padding_of(dataset)[1].ids[3] += 1


@corruption("padded", "padding")
def padding_first(dataset: Dataset) -> None:
    padding_of(dataset)[0].reverse()


@corruption("padded", "sums")
def padding_left_away(dataset: Dataset) -> None:
    padding_of(dataset)[0].pop()


@corruption("padded", "packing")
def padding_that_belongs_to_a_document(dataset: Dataset) -> None:
    pack, padding = padding_of(dataset)
    pack.pop()
    pack[0].ids += padding.ids
    pack[0].labels += padding.labels
    restarted(pack[0])


@corruption("text", "padding")
def padding_unasked(dataset: Dataset) -> None:
    pack_of(dataset, 21, 24).append(Segment(-1, 0, 3, [0] * 3, [IGNORED] * 3, [0, 1, 2]))
    drop = pack_of(dataset, 2, 24)
    drop.append(Segment(-1, 0, 3, [0] * 3, [IGNORED] * 3, [0, 1, 2]))


# --- packs and shards ----------------------------------------------------------------------------------------


@corruption("text", "packing")
def two_packs_swapped(dataset: Dataset) -> None:
    packs = dataset.packs
    packs[1], packs[2] = packs[2], packs[1]


@corruption("text", "packing")
def shards_swapped(dataset: Dataset) -> None:
    first, second = dataset.shard_packs
    dataset.packs = dataset.packs[first:] + dataset.packs[:first]
    dataset.shard_packs = [second, first]


@corruption("text", "documents", as_is="manifest_files")
def a_shard_dropped(dataset: Dataset) -> None:
    dataset.packs = dataset.packs[: dataset.shard_packs[0]]
    dataset.shard_packs.pop()


@corruption("text", "documents")
def a_shard_cut_short(dataset: Dataset) -> None:
    del dataset.packs[-9:]
    dataset.shard_packs[-1] -= 9


@corruption("stream", "documents", as_is="manifest_files")
def a_shard_of_a_stream_dropped(dataset: Dataset) -> None:
    dataset.packs = dataset.packs[: dataset.shard_packs[0]]
    dataset.shard_packs.pop()


# --- rejects -------------------------------------------------------------------------------------------------


@corruption("padded", "source")
def a_cut_off_tail_not_listed(dataset: Dataset) -> None:
    dataset.rejects.remove(reject_of(dataset, 6))


@corruption("padded", "source")
def a_cut_off_tail_listed_longer(dataset: Dataset) -> None:
    reject_of(dataset, 6)["tokens"] += 1


@corruption("padded", "source")
def the_checksum_of_a_reject_changed(dataset: Dataset) -> None:
    reject_of(dataset, 6)["checksum"] ^= 1


@corruption("padded", "documents")
def a_tail_that_starts_too_late(dataset: Dataset) -> None:
    row = reject_of(dataset, 7)
    row["offset"], row["tokens"] = row["offset"] + 1, row["tokens"] - 1


@corruption("padded", "pieces")
def a_tail_for_another_reason(dataset: Dataset) -> None:
    reject_of(dataset, 7)["reason"] = "nothing_to_train"


@corruption("padded", "pieces")
def a_short_document_left_out_as_overlong(dataset: Dataset) -> None:
    reject_of(dataset, 8)["reason"] = "overlong"


@corruption("chat", "source")
def a_document_left_out_that_trains(dataset: Dataset) -> None:
    segment = take_out(dataset, 0)
    first = {**dataset.rejects[0], "line": 1, "doc_id": 0, "offset": 0, "reason": "nothing_to_train"}
    dataset.rejects.insert(0, {**first, "tokens": segment.length, "checksum": checksum(segment.ids, 0)})


@corruption("padded", "source")
def a_bad_record_for_another_reason(dataset: Dataset) -> None:
    reject_of(dataset, 3)["reason"] = "missing_field"


@corruption("padded", "manifest", as_is="conservation")
def a_bad_record_of_an_array_not_listed(dataset: Dataset) -> None:
    dataset.rejects.remove(reject_of(dataset, 3))


@corruption("text", "source")
def an_empty_text_not_listed(dataset: Dataset) -> None:
    dataset.rejects.remove(reject_of(dataset, 12))


@corruption("padded", "documents")
def rejects_out_of_order(dataset: Dataset) -> None:
    dataset.rejects.reverse()


@corruption("padded", "documents")
def a_reject_twice(dataset: Dataset) -> None:
    dataset.rejects.insert(0, dataset.rejects[0])


@corruption("padded", "documents")
def a_reject_of_another_line(dataset: Dataset) -> None:
    reject_of(dataset, 3)["line"] += 1


@corruption("padded", "documents")
def a_reject_for_a_reason_that_is_none(dataset: Dataset) -> None:
    reject_of(dataset, 3)["reason"] = "no_reason"


@corruption("stream", "packing")
def a_part_of_a_pack_left_out(dataset: Dataset) -> None:
    segment = take_out(dataset, 5)
    pack = next(pack for pack in dataset.packs if pack[0].doc_id == 4 and pack[0].offset == 66)
    assert pack[-1].doc_id == 6
    first = {**reject_of(dataset, 4), "line": 6, "doc_id": 5, "offset": 0}
    one = {**first, "tokens": 3, "checksum": checksum(segment.ids[:3], 0)}
    two = {**first, "offset": 3, "tokens": 5, "checksum": checksum(segment.ids[3:], 3)}
    at = next(i for i, other in enumerate(dataset.rejects) if other["doc_id"] > 5)
    dataset.rejects[at:at] = [one, two]
