"""A doc id stands for one line of one source, whichever way it is asked, empty sources or not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packtool.manifest import SourceEntry
from packtool.source_ranges import SourceRanges


def entries(rows: list[int]) -> list[SourceEntry]:
    """Sources of so many rows, end to end."""
    firsts = [sum(rows[:index]) for index in range(len(rows))]
    return [
        SourceEntry(
            name=f"{index}.jsonl",
            kind="lines",
            compression="none",
            first=first,
            rows=count,
            records=count,
            documents=count,
            tokens=count,
            checksum=0,
            digest="0" * 64,
        )
        for index, (first, count) in enumerate(zip(firsts, rows, strict=True))
    ]


@given(st.lists(st.integers(0, 4), max_size=6))
def test_every_id_has_the_place_that_counting_gives_and_no_other_id_has_one(rows: list[int]) -> None:
    places = [(source, line) for source, count in enumerate(rows) for line in range(1, count + 1)]
    ids = [-(2**60), -1, *range(len(places)), len(places), 2**60]
    expected = [(-1, 0), (-1, 0), *places, (-1, 0), (-1, 0)]
    ranges = SourceRanges(entries(rows))
    assert [ranges.place(doc_id) for doc_id in ids] == expected
    assert ranges.find(np.array(ids, dtype=np.int64)).tolist() == [source for source, _ in expected]
