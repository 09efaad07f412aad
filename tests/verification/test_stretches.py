"""Stretches come out of a merge in one order, each once, a document never in two blocks, however they went in."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.verification.stretches import STRETCH, Order, Spill, Stretches, merged

ORDERS = [Order(None), Order(0), Order(7)]


def stretches(places: list[tuple[int, int]]) -> Stretches:
    """Records of (doc id, offset), numbered in ``pack``."""
    made = np.zeros(len(places), STRETCH)
    for index, (doc_id, offset) in enumerate(places):
        made[index]["doc_id"], made[index]["offset"], made[index]["pack"] = doc_id, offset, index
    return made


@pytest.mark.parametrize("order", ORDERS)
@given(
    st.lists(st.tuples(st.integers(-3, 12), st.integers(0, 9)), max_size=80),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(1, 40),
)
def test_a_merge_is_a_sort(
    order: Order, places: list[tuple[int, int]], sizes: list[int], buffered: int, held: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr("packtool.verification.stretches._BUFFERED", buffered)
        patch.setattr("packtool.verification.stretches._MERGED", held)
        patch.setattr("packtool.verification.stretches._FEWEST", 1)
        spill = Spill(Path(name), "test", order)
        given_in = stretches(places)
        start = turn = 0
        while start < len(given_in):
            size = sizes[turn % len(sizes)]
            spill.add(given_in[start : start + size])
            start, turn = start + size, turn + 1
        spill.flush()
        blocks = list(merged(spill.runs, order))
    documents = [set(block["doc_id"].tolist()) for block in blocks]
    assert sum(map(len, documents)) == len(set().union(*documents))
    out = [row for block in blocks for row in block.tolist()]
    keys = order.keys(given_in["doc_id"]).tolist()
    expected = sorted(given_in.tolist(), key=lambda row: (keys[row[1]], row[STRETCH.names.index("offset")]))
    where = [(row[0], row[4]) for row in out]
    assert where == [(row[0], row[4]) for row in expected]
    assert sorted(row[1] for row in out) == list(range(len(places)))


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_merges_to_nothing(tmp_path: Path, order: Order) -> None:
    spill = Spill(tmp_path, "test", order)
    spill.flush()
    assert list(merged(spill.runs, order)) == []
