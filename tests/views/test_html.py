"""The page says what the packs hold, and whatever these hold, it is text."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import printable
from packtool.inspection import show
from packtool.views.html import page

from .made import CONTROLS, Token, hostile_dataset, inspection, tokens

_TAGS = "html head meta title style body h1 h2 p code div i pre span details summary b figure figcaption svg polygon"
_ATTRIBUTES = "lang charset http-equiv content name class id open title viewbox role aria-label points dir"
TAGS, ATTRIBUTES = set(_TAGS.split()), set(_ATTRIBUTES.split())


class Read(HTMLParser):
    """Tags, attributes and the text of each run."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.titles: list[str] = []
        self.runs: list[tuple[bool, str]] = []
        self.open: list[str] = []
        self.trained = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.attributes |= values.keys()
        if tag == "span" and "title" in values:
            self.titles.append(values["title"] or "")
        if tag == "div":
            self.trained = values["class"] == "run train"
        if tag == "pre" and "dir" in values:
            self.runs.append((self.trained, ""))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "pre" in self.open and self.runs:
            trained, text = self.runs[-1]
            self.runs[-1] = (trained, text + data)


@given(
    segments=st.lists(tokens(), min_size=1, max_size=3),
    padding=st.integers(0, 300),
    source=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
)
def test_a_page_is_made_of_known_tags_and_holds_every_run_as_text(
    segments: list[list[Token]], padding: int, source: str
) -> None:
    found = inspection(*segments, padding=padding, source=source)
    text = page(found)
    read = Read(text)
    assert not read.open
    assert read.tags <= TAGS
    assert read.attributes <= ATTRIBUTES
    assert not (CONTROLS - {"\n"}) & set(text)
    runs = [run for segment in found.shown[0].segments for run in segment.runs]
    expected = [(run.trained, "↵\n".join(printable(line) for line in run.text.split("\n"))) for run in runs]
    assert read.runs == expected
    titles = [
        f"'{printable(each)}' id {id}, label {label}, position {position}"
        for segment in found.shown[0].segments
        for each, id, label, position in zip(
            segment.texts, segment.input_ids, segment.labels, segment.position_ids, strict=True
        )
    ]
    assert read.titles == titles


def test_a_page_takes_nothing_from_anywhere() -> None:
    text = page(inspection([("<s>", False), ("a", True)]))
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert not re.search(r"https?:|url\(|@import|javascript:|<script|<link|<iframe|<img", text)
    assert "prefers-color-scheme: dark" in text


def test_the_mask_is_drawn_token_by_token_where_there_are_few() -> None:
    text = page(inspection([("a", False), ("b", True)], [("c", False)]))
    assert 'points="0,2 0,0 1,0 1,1 2,1 2,2"' in text
    assert 'points="2,3 2,2 3,2 3,3"' in text


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of hostile texts from a hostile file."""
    folder = tmp_path_factory.mktemp("hostile")
    dataset = hostile_dataset(folder / "out")
    found = show(dataset)
    assert len(found.shown[0].segments) == 12
    (folder / "page.html").write_text(page(found))
    return folder / "page.html"


def test_hostile_data_is_text(hostile: Path) -> None:
    text = hostile.read_text()
    assert not (CONTROLS - {"\n"}) & set(text)
    read = Read(text)
    assert read.tags <= TAGS
    assert read.attributes <= ATTRIBUTES
    told = "".join(run for _, run in read.runs)
    for shown in (
        "</pre><script>alert(1)</script>",
        "\\x1b[31mred",
        "\\u202eto left",
        "nul \\x00 del \\x7f csi \\x9b31m",
    ):
        assert shown in told


CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_a_browser_runs_nothing_of_it(hostile: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = subprocess.run([*command, hostile.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode or not done.stdout:
        pytest.skip("Chromium does not start here")
    read = Read(done.stdout)
    assert read.tags <= TAGS
    assert read.attributes <= ATTRIBUTES
    assert [trained for trained, _ in read.runs] == [trained for trained, _ in Read(hostile.read_text()).runs]
    assert "</pre><script>alert(1)</script>" in "".join(run for _, run in read.runs)
