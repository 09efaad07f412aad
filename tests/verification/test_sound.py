"""Whatever pack makes passes every check, with and without its sources, however little is held in memory at a time."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import PacktoolError
from packtool.packing import STRATEGIES
from packtool.verification import verify
from tests import runs


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, merges and row groups of a few records, so that a few documents are many blocks."""
    monkeypatch.setattr("packtool.verification.stretches._BUFFERED", 7)
    monkeypatch.setattr("packtool.verification.stretches._MERGED", 1)
    monkeypatch.setattr("packtool.verification.stretches._FEWEST", 3)
    runs.small_row_groups(monkeypatch, 40)
    runs.small_units(monkeypatch, 300)


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Records of tokens with labels that are few or many, some of them untrained, empty or bad."""
    seed = draw(st.integers(0, 10**6))
    share = draw(st.sampled_from([2, 5, 17, 40]))
    found: list[dict[str, Any]] = []
    for n in range(draw(st.integers(1, 30))):
        length = (seed * (n + 1) * 7919 + n * 31) % draw(st.sampled_from([3, 20, 60]))
        ids = [(seed + n * 13 + i * 7) % 4000 for i in range(length)]
        labels = [id if (seed + n * 3 + i) % share == 0 else -100 for i, id in enumerate(ids)]
        found.append({"input_ids": ids, "labels": labels})
        if (seed + n) % 11 == 0:
            found.append({"input_ids": ["no"], "labels": []})
    return found


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """A strategy and whatever may go with it."""
    strategy = STRATEGIES[draw(st.sampled_from(sorted(STRATEGIES)))]
    chosen: dict[str, Any] = {
        "strategy": strategy.name,
        "overlong": draw(st.sampled_from([one for one in strategy.overlong if one not in ("error", "truncate_turns")])),
        "max_length": draw(st.sampled_from([2, 3, 8, 16, 33])),
        "pad": draw(st.booleans()),
        "max_segments": draw(st.sampled_from([None, 1, 2, 5])),
        "seed": draw(st.integers(0, 3)),
        "group_tokens": draw(st.sampled_from([50, 200, 10**6])),
        "shards": draw(st.sampled_from([1, 2, 3])),
        "on_bad_record": "skip",
    }
    if strategy.shuffles:
        chosen["shuffle"] = draw(st.booleans())
    return {name: value for name, value in chosen.items() if value is not None}


@given(records(), records(), options(), st.booleans())
def test_what_was_packed_is_sound(
    first: list[dict[str, Any]], second: list[dict[str, Any]], chosen: dict[str, Any], is_array: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = [runs.write_jsonl(folder / "a.jsonl", [b"", *first])]
        if is_array:
            sources.append(folder / "b.json")
            sources[1].write_bytes(
                b"[" + b",\n".join(runs.write_jsonl(folder / "b", second).read_bytes().splitlines()) + b"]"
            )
        try:
            runs.run(sources, folder / "out", **chosen)
        except PacktoolError:
            return  # nothing left to pack, or fewer packs than shards
        report = verify(folder / "out")
        assert report.ok, report
        assert all(check.checked for check in report.checks if check.name not in ("text_ends",))
        for sample in (None, 5):
            report = verify(folder / "out", sources, sample=sample, seed=chosen["seed"], workers=1)
            assert report.ok, report
