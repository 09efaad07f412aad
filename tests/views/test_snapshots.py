"""The views as they look, at 80 and 120 columns: read ``tests/snapshots`` to see.

After a wanted change ``python -m tests.views.test_snapshots`` makes them anew; look at the difference.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from packtool.inspection import show
from packtool.views import lines
from packtool.views.page import Page

from .made import chat_dataset, hostile_dataset

FOLDER = Path(__file__).parent.parent / "snapshots"
ENCODINGS = {"80": (80, "utf-8"), "120": (120, "utf-8"), "ascii": (80, "ascii")}
NAMES = [f"{view}-{where}" for view in ("chat", "tokens", "mask", "hostile") for where in ENCODINGS]


def drawn(folder: Path, name: str) -> str:
    """One view of a dataset in ``folder``."""
    view, where = name.split("-")
    pack = 0 if view == "hostile" else 4
    found = replace(show(folder / ("hostile" if view == "hostile" else "chat") / "out", pack=pack), path="demo/out")
    page = Page(*ENCODINGS[where])
    shown = [line.plain.rstrip() for line in lines(found, page, tokens=view == "tokens", mask=view == "mask")]
    return "\n".join(shown) + "\n"


def made(folder: Path) -> Path:
    """Both datasets, in folders of their own."""
    for name, make in (("chat", chat_dataset), ("hostile", hostile_dataset)):
        (folder / name).mkdir()
        make(folder / name / "out")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("snapshots"))


@pytest.mark.parametrize("name", NAMES)
def test_the_views_look_as_they_did(folder: Path, name: str) -> None:
    assert drawn(folder, name) == (FOLDER / f"{name}.txt").read_text()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_in:
        made(Path(made_in))
        for each in NAMES:
            (FOLDER / f"{each}.txt").write_text(drawn(Path(made_in), each))
