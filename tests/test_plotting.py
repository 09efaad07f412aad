"""Pictures: they come whole or not at all, are the same bytes each time, and show the numbers of the statistics."""

import hashlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.figure import Figure

from packtool import cli, plotting
from packtool.errors import Misuse
from packtool.plotting import MOST_DATASETS, save_plot
from packtool.statistics import DatasetStats, stats
from tests.dataset_builder import make_dataset, sample


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> DatasetStats:
    folder = tmp_path_factory.mktemp("packed") / "ds"
    make_dataset(folder, sample())
    return stats(folder)


def drawn(datasets: list[DatasetStats], monkeypatch: pytest.MonkeyPatch, path: Path) -> Figure:
    """The figure that ``save_plot`` saves."""
    figures = []

    def remembered(*arguments: Any, **options: Any) -> Figure:
        figures.append(Figure(*arguments, **options))
        return figures[-1]

    monkeypatch.setattr("matplotlib.figure.Figure", remembered)
    save_plot(datasets, path)
    return figures[0]


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".png", b"\x89PNG\r\n\x1a\n"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")]
)
def test_a_picture_is_the_same_bytes_each_time(tmp_path: Path, packed: DatasetStats, suffix: str, magic: bytes) -> None:
    for count in (1, 3):
        first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
        save_plot([packed] * count, first)
        matplotlib.rcParams["font.size"] = 30  # the user's own style changes nothing
        try:
            save_plot([packed] * count, second)
            assert matplotlib.rcParams["font.size"] == 30
        finally:
            matplotlib.rcdefaults()
        assert first.read_bytes().startswith(magic)
        assert first.read_bytes() == second.read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"a{suffix}", f"b{suffix}"]


def test_an_svg_fetches_nothing_and_stands_by_itself(tmp_path: Path, packed: DatasetStats) -> None:
    named = replace(packed, path='<script>"$x^2$&\x1b[31m\u202e\n日本')
    save_plot([named, packed], tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not tags & {"script", "image", "foreignObject", "a"}
    for element in root.iter():
        for name, value in element.attrib.items():
            assert not name.endswith("href") or value.startswith("#")


def test_the_panels_show_the_numbers_of_the_statistics(
    tmp_path: Path, packed: DatasetStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(packed, path="other", batch_padded_fill=0.5)
    figure = drawn([packed, other], monkeypatch, tmp_path / "a.png")
    lengths, fills, segments, padding = figure.axes
    for axes, bins, total in (
        (lengths, packed.document_length_histogram, packed.documents),
        (segments, packed.segments_per_pack_histogram, packed.packs),
    ):
        values, edges, _ = axes.patches[0].get_data()
        assert list(values) == pytest.approx([100 * bin.count / total for bin in bins])
        assert list(edges) == [*(bin.low for bin in bins), bins[-1].high]
    shown = [bar.get_width() for bar in fills.patches]
    assert shown == pytest.approx([100 * bin.count / packed.packs for bin in packed.fill_histogram] * 2)
    wasted = [[dataset.padded_fill, dataset.batch_padded_fill, dataset.fill] for dataset in (packed, other)]
    assert [bar.get_width() for bar in padding.patches] == pytest.approx(
        [100 * (1 - fill) for row in wasted for fill in row]
    )
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[1].startswith(f"other: {packed.strategy}, max_length {packed.max_length}, {packed.packs} packs, ")


def test_a_long_name_is_cut_at_its_front_and_no_fill_is_rounded_up(
    tmp_path: Path, packed: DatasetStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = drawn([replace(packed, path="x" * 90 + "/end", fill=0.99999)], monkeypatch, tmp_path / "a.png")
    text = figure.legends[0].get_texts()[0].get_text()
    assert text.startswith("...xxx")
    assert "xx/end: " in text
    assert text.endswith("99.99 % full")


def test_what_cannot_be_drawn_is_misuse_before_any_work(tmp_path: Path, packed: DatasetStats) -> None:
    (tmp_path / "folder.png").mkdir()
    for name, count, message in (
        ("a.pdf", 1, r"\.png or \.svg"),
        ("a", 1, r"\.png or \.svg"),
        ("folder.png", 1, "a folder"),
        ("no/a.png", 1, "is not there"),
        ("a.png", MOST_DATASETS + 1, "9 datasets, more than the 8"),
    ):
        with pytest.raises(Misuse, match=message):
            save_plot([packed] * count, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.png"]


def test_a_picture_that_fails_leaves_the_old_one(
    tmp_path: Path, packed: DatasetStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    save_plot([packed], path)
    before = hashlib.sha256(path.read_bytes()).digest()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("packtool.files.os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        save_plot([packed, packed], path)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


def test_the_command_draws_and_still_prints(tmp_path: Path, packed: DatasetStats, capfd: Any) -> None:
    path = tmp_path / "a.svg"
    assert cli._exit_code(["stats", packed.path, "--plot", str(path), "--json"]) == 0
    assert '"packs": 10' in capfd.readouterr().out
    assert path.read_bytes().startswith(b"<?xml")
    assert cli._exit_code(["stats", packed.path, "--plot", str(tmp_path / "a.gif")]) == 2
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", f"error: --plot {tmp_path / 'a.gif'}: a picture ends in .png or .svg\n")


def test_a_picture_may_not_stand_in_a_dataset(tmp_path: Path, packed: DatasetStats, capfd: Any) -> None:
    link = tmp_path / "link"
    link.symlink_to(packed.path)
    for folder in (packed.path, Path(packed.path) / "tokenizer", link):
        assert cli._exit_code(["stats", str(link), "--plot", str(Path(folder) / "a.svg")]) == 2
        told = capfd.readouterr()
        assert told.out == ""
        assert told.err.endswith("a.svg: in a dataset's folder nothing may stand but the dataset; write it elsewhere\n")
    assert not list(Path(packed.path).rglob("*.svg"))


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, packed: DatasetStats, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli._exit_code(["stats", packed.path, "--plot", str(tmp_path / "a.png")]) == 2
    how = "pip install 'packtool[plot]' (from a clone: pip install '.[plot]')"
    assert capfd.readouterr().err == f"error: --plot needs matplotlib: {how}\n"
    assert cli._exit_code(["stats", packed.path]) == 0


def test_a_matplotlib_that_the_environment_breaks_is_one_line_and_pyplot_is_never_loaded(
    tmp_path: Path, packed: DatasetStats
) -> None:
    script = (
        f"import sys; from packtool import cli; code = cli._exit_code(['stats', {packed.path!r}, '--json', "
        f"'--plot', {str(tmp_path / 'a.png')!r}]); print('matplotlib.pyplot' in sys.modules); sys.exit(code)"
    )
    for backend, code in (("agg", 0), ("nonsense", 2)):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**plotting_environment(), "MPLBACKEND": backend},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert done.stdout.splitlines()[-1] == "False"
    assert done.stderr.startswith("error: --plot: matplotlib does not load: ")
    assert len(done.stderr.splitlines()) == 1


def plotting_environment() -> dict[str, str]:
    """That of this process, with a place for what is imported."""
    root = str(Path(plotting.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": root}
