"""How amounts are written: shares are rounded down, exactly, and no number takes more room than it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.amounts import fill_label, percent, short, tenths

wholes = st.integers(1, 10**10)


@given(wholes, st.data())
def test_a_share_of_a_count_is_cut_exactly_and_is_100_percent_only_where_all_of_it_is_there(
    whole: int, data: st.DataObject
) -> None:
    part = data.draw(st.integers(0, whole) | st.integers(max(0, whole - 3), whole))
    hundredths = part * 10_000 // whole
    assert percent(part / whole) == f"{hundredths // 100}.{hundredths % 100:02} %"
    assert (percent(part / whole) == "100.00 %") == (part == whole)
    assert tenths(part / whole) == f"{hundredths // 100}.{hundredths % 100 // 10}"


@given(wholes, st.data())
def test_what_is_not_sure_is_rounded_up(whole: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, whole))
    up = -(-part * 1_000 // whole)
    assert tenths(part / whole, up=True) == f"{up // 10}.{up % 10}"


@pytest.mark.parametrize("hundredths", [5700, 5800, 2900, 1401, 9999])
def test_a_share_that_floats_make_smaller_than_it_is_is_not(hundredths: int) -> None:
    assert percent(hundredths / 10_000) == f"{hundredths / 100:.2f} %"


def test_bins_are_named_by_their_borders() -> None:
    assert [fill_label(0.95, 0.98), fill_label(0.999, 1.0), fill_label(1.0, 1.0)] == [
        "95 to 98 %",
        "99.9 to 100 %",
        "full",
    ]


@given(st.floats(0, 9e14))
def test_a_short_number_has_at_most_five_characters_and_is_near(value: float) -> None:
    written = short(value)
    if value >= 1000:
        assert len(written) <= 5
        size = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[written[-1]]
        assert float(written[:-1]) * size == pytest.approx(value, rel=0.006)
