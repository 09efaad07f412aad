"""The reading side of rejects.jsonl."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool import BadData
from packtool.rejects import Reject, read_rejects

from .dataset_builder import write_rejects

ROW = Reject("a.jsonl", 3, 2, 0, 17, 2**64 - 1, "overlong", "17 tokens")


@given(
    st.lists(
        st.builds(
            Reject,
            source=st.text(st.characters(exclude_categories=["Cs"])),
            line=st.integers(1, 2**63 - 1),
            doc_id=st.integers(0, 2**63 - 1),
            offset=st.integers(0, 2**31 - 1),
            tokens=st.integers(0, 2**31 - 1),
            checksum=st.integers(0, 2**64 - 1),
            reason=st.text(st.characters(exclude_categories=["Cs"])),
            detail=st.text(st.characters(exclude_categories=["Cs"])),
        )
    )
)
def test_rows_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, rows: list[Reject]) -> None:
    folder = tmp_path_factory.mktemp("rejects")
    write_rejects(folder, rows)
    assert list(read_rejects(folder / "rejects.jsonl")) == rows


def test_reading_is_lazy_so_rows_before_a_bad_line_are_given(tmp_path: Path) -> None:
    path = tmp_path / "rejects.jsonl"
    path.write_text(json.dumps(asdict(ROW)) + "\n[]\n")
    rows = read_rejects(path)
    assert next(rows) == ROW
    with pytest.raises(BadData, match=r"rejects\.jsonl:2: expected an object with source, line"):
        next(rows)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("line", 0),
        ("line", "3"),
        ("doc_id", -1),
        ("doc_id", 2**63),
        ("offset", -1),
        ("offset", 2**31),
        ("tokens", 1.0),
        ("tokens", True),
        ("tokens", None),
        ("checksum", 2**64),
        ("checksum", -1),
        ("source", None),
        ("reason", 1),
        ("detail", ["why"]),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name_and_line(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / "rejects.jsonl"
    good = asdict(ROW)
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, name: value}) + "\n")
    with pytest.raises(BadData, match=rf"rejects\.jsonl:2: {name} is "):
        list(read_rejects(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n", "1: not JSON"),
        (b"{\n", "1: not JSON"),
        (b"\xff\n", "1: not JSON"),
        (json.dumps(asdict(ROW)).encode(), "1: the line is cut short"),
        (json.dumps({**asdict(ROW), "more": 1}).encode() + b"\n", "1: expected an object with"),
        (b"{}\n", "1: expected an object with"),
        (b" " * (1 << 21) + b"\n", "1: the line is cut short, or too long"),
    ],
)
def test_a_line_that_is_no_row_is_refused_by_its_number(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rejects.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadData, match=f"rejects.jsonl:{message}"):
        list(read_rejects(path))


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"rejects\.jsonl: cannot be read"):
        list(read_rejects(tmp_path / "rejects.jsonl"))
