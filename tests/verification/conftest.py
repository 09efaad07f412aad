"""The datasets of ``bases``, packed once for all tests of a session, and copies of them to be spoilt."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.verification.bases import BASES, Made


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """Every base, packed once."""
    folder = tmp_path_factory.mktemp("bases")
    return {name: base.make(folder / name) for name, base in BASES.items()}


@pytest.fixture
def copied(made: dict[str, Made], tmp_path: Path) -> Callable[[str], Made]:
    """A base of one's own."""

    def copy(base: str) -> Made:
        shutil.copytree(made[base][0], tmp_path / "out")
        return tmp_path / "out", made[base][1]

    return copy
