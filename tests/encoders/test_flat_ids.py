"""Flat ids: lists of ids laid end to end, and had again one by one."""

from hypothesis import given
from hypothesis import strategies as st

from packtool.encoders.flat_ids import FlatIds


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=6), st.data())
def test_ids_of_any_text_come_out_as_they_went_in(lists: list[list[int]], data: st.DataObject) -> None:
    found = FlatIds.of(lists)
    assert found.ids.tolist() == [id for ids in lists for id in ids]
    assert (found.ids.dtype, found.lengths.dtype) == ("int32", "int32")
    chosen = data.draw(st.lists(st.sampled_from(range(len(lists))), max_size=4)) if lists else []
    assert [ids.tolist() for ids in found.each(chosen)] == [lists[index] for index in chosen]
    some, again = found.some(chosen), FlatIds.of([lists[index] for index in chosen])
    assert (some.ids.tolist(), some.lengths.tolist()) == (again.ids.tolist(), again.lengths.tolist())
    assert found.stops.tolist() == [sum(map(len, lists[: index + 1])) for index in range(len(lists))]
