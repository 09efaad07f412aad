import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packtool.packing.pieces import Cut, Overlong, Pieces, TrainedRuns, cut_pieces, keep_whole, trained_in

from . import reference

# Documents as masks of what trains; stretches alike, so that whole pieces may have nothing to train.
stretch = st.builds(lambda trained, n: [trained] * n, st.booleans(), st.integers(1, 12))
document = st.lists(stretch, max_size=5).map(lambda stretches: [bit for part in stretches for bit in part])
documents = st.lists(document, max_size=12)


def runs_of(masks: list[list[bool]]) -> TrainedRuns:
    counts, starts, stops = [], [], []
    for mask in masks:
        edges = np.flatnonzero(np.diff([False, *mask, False])).tolist()
        counts.append(len(edges) // 2)
        starts += edges[::2]
        stops += edges[1::2]
    return TrainedRuns(*(np.array(column, dtype=np.int32) for column in (counts, starts, stops)))


def lengths_of(masks: list[list[bool]]) -> np.ndarray:
    return np.array([len(mask) for mask in masks], dtype=np.int32)


def planned(pieces: Pieces) -> list[tuple[int, int, int, int]]:
    columns = (pieces.doc, pieces.offset, pieces.length, pieces.trained)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def cuts(pieces: Pieces) -> list[tuple[int, int, int, str]]:
    columns = (pieces.cut_doc, pieces.cut_offset, pieces.cut_length, pieces.cut_reason)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(doc, offset, length, Cut(reason).name) for doc, offset, length, reason in rows]


def assert_tiled(pieces: Pieces, masks: list[list[bool]]) -> None:
    stretches = sorted([row[:3] for row in planned(pieces)] + [row[:3] for row in cuts(pieces)])
    reached = [0] * len(masks)
    for doc, offset, length in stretches:
        assert offset == reached[doc]
        reached[doc] += length
    assert reached == [len(mask) for mask in masks]
    assert len({doc for doc, _, _ in stretches}) == len(masks)


policies = st.sampled_from(["drop", "truncate", "truncate_turns", "split", "error"])


@given(documents, st.integers(1, 20), policies)
def test_pieces_and_cuts_are_those_of_the_rules_and_tile_each_document(
    masks: list[list[bool]], max_length: int, overlong: Overlong
) -> None:
    pieces = cut_pieces(lengths_of(masks), runs_of(masks), max_length, overlong)
    assert (planned(pieces), cuts(pieces)) == reference.pieces(masks, max_length, overlong)
    assert_tiled(pieces, masks)


@given(documents)
def test_a_stream_is_given_every_document_whole_that_has_a_trained_token(masks: list[list[bool]]) -> None:
    pieces = keep_whole(lengths_of(masks), runs_of(masks), 4, "split")
    whole = [(doc, 0, len(mask), sum(mask[1:])) for doc, mask in enumerate(masks) if any(mask[1:])]
    rest = [(doc, 0, len(mask), "nothing_to_train") for doc, mask in enumerate(masks) if not any(mask[1:])]
    assert (planned(pieces), cuts(pieces)) == (whole, rest)
    assert_tiled(pieces, masks)


@given(st.lists(document, min_size=1, max_size=8), st.data())
def test_trained_tokens_are_counted_in_any_stretch_without_its_first(
    masks: list[list[bool]], data: st.DataObject
) -> None:
    doc = data.draw(st.lists(st.integers(0, len(masks) - 1)))
    offset = [data.draw(st.integers(0, len(masks[d]))) for d in doc]
    length = [data.draw(st.integers(0, len(masks[d]) - o)) for d, o in zip(doc, offset, strict=True)]
    columns = (np.array(column, dtype=np.int32) for column in (doc, offset, length))
    expected = [sum(masks[d][o + 1 : o + n]) for d, o, n in zip(doc, offset, length, strict=True)]
    assert trained_in(runs_of(masks), *columns).tolist() == expected


def test_a_document_cut_short_before_its_answer_is_cut_twice() -> None:
    masks = [[False] * 4 + [True] * 2]
    pieces = cut_pieces(lengths_of(masks), runs_of(masks), 4, "truncate")
    assert planned(pieces) == []
    assert cuts(pieces) == [(0, 0, 4, "nothing_to_train"), (0, 4, 2, "truncated")]


def test_nothing_to_train_is_told_before_overlong() -> None:
    masks = [[True] + [False] * 8, []]
    for overlong in ("drop", "truncate", "truncate_turns", "split", "error"):
        pieces = cut_pieces(lengths_of(masks), runs_of(masks), 4, overlong)
        assert cuts(pieces) == [(0, 0, 9, "nothing_to_train"), (1, 0, 0, "nothing_to_train")]


def test_a_piece_whose_only_trained_token_is_its_first_has_nothing_to_train() -> None:
    masks = [[True] * 4 + [True, False, False, False, True, True]]
    pieces = cut_pieces(lengths_of(masks), runs_of(masks), 4, "split")
    assert planned(pieces) == [(0, 0, 4, 3), (0, 8, 2, 1)]
    assert cuts(pieces) == [(0, 4, 4, "nothing_to_train")]


def test_a_document_of_the_longest_possible_length_is_split() -> None:
    longest = 2**31 - 1
    runs = TrainedRuns(*(np.array([n], dtype=np.int32) for n in (1, 0, longest)))
    pieces = cut_pieces(np.array([longest], dtype=np.int32), runs, 1 << 30, "split")
    assert planned(pieces) == [(0, 0, 1 << 30, (1 << 30) - 1), (0, 1 << 30, (1 << 30) - 1, (1 << 30) - 2)]
