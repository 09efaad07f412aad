"""Every corruption, as it is and with a manifest that agrees with it, is found by the check that is there for it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packtool.manifest import MANIFEST_NAME
from packtool.verification import verify
from tests.verification.agreement import Dataset, agree, read, written
from tests.verification.bases import BASES, Made, faults
from tests.verification.corruptions import CORRUPTIONS, Corruption


def stated(folder: Path) -> dict[str, Any]:
    """The manifest but for what follows from how bytes are laid out: JSON's blanks, row groups."""
    values: dict[str, Any] = json.loads((folder / MANIFEST_NAME).read_bytes())
    del values["files"], values["content_digest"]
    for shard in values["shards"]:
        del shard["bytes"], shard["sha256"], shard["content_digest"]
    return values


def corrupt(folder: Path, change: Callable[[Dataset], None]) -> None:
    dataset = read(folder)
    change(dataset)
    written(folder, dataset)


@pytest.mark.parametrize("base", BASES)
def test_the_datasets_are_sound_before_and_agreeing_changes_nothing(copied: Callable[[str], Made], base: str) -> None:
    folder, sources = copied(base)
    assert verify(folder, sources, workers=1).ok
    before = stated(folder)
    written(folder, read(folder))
    agree(folder)
    assert stated(folder) == before
    assert verify(folder, sources, workers=1).ok


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.name)
def test_a_corruption_is_found_as_it_is(copied: Callable[[str], Made], corruption: Corruption) -> None:
    folder, _ = copied(corruption.base)
    corrupt(folder, corruption.change)
    found = faults(verify(folder))
    assert "manifest_files" in found
    assert corruption.as_is in found


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.name)
def test_a_corruption_is_found_when_everything_stated_agrees_with_it(
    copied: Callable[[str], Made], corruption: Corruption
) -> None:
    folder, sources = copied(corruption.base)
    corrupt(folder, corruption.change)
    agree(folder)
    if corruption.check == "source":
        # The dataset could have been packed so, from other sources.
        assert faults(verify(folder)) == {}
        found = faults(verify(folder, sources, workers=1))
        assert set(found) == {"source"}
    else:
        found = faults(verify(folder))
        assert corruption.check in found
        assert "manifest_files" not in found
    assert found[corruption.check]
