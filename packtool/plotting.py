"""A picture of packed datasets, from their statistics: lengths, fill, segments, and what padding would have wasted.

Takes ``DatasetStats`` and a path, writes one PNG or SVG. The only module that imports matplotlib, and never
pyplot; the same statistics give the same bytes under equal versions of matplotlib.
"""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packtool.amounts import fill_label, percent
from packtool.errors import Misuse, one_line, printable
from packtool.files import write_atomic
from packtool.statistics import BATCH, Bin, DatasetStats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")

# The palette of Okabe and Ito, which people with any kind of colour blindness tell apart, and a grey.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999")
MOST_DATASETS = len(_COLOURS)

_SIZE = (8.4, 5.2)
"""Inches, before the legend: with letters of 8 points it reads well at the width of a README."""
_LEGEND_LINE = 0.22
_NAME_LENGTH = 40
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so a picture does not depend on the machine
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#333333",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "text.parse_math": False,  # a name may hold dollar signs
    "svg.hashsalt": "packtool",
    "svg.fonttype": "path",
    "legend.frameon": False,
    "figure.dpi": 100,
}


def check_picture(path: Path, datasets: int) -> None:
    """Refuse a picture that could not be made, before any work for it.

    Raises:
        Misuse: another suffix than .png or .svg, a place where no file can be, too many datasets, or matplotlib
            is not installed or does not load.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise Misuse(f"--plot {path}: a picture ends in .png or .svg")
    if path.is_dir():
        raise Misuse(f"--plot {path}: a folder; give the name of a file")
    if not path.parent.is_dir():
        raise Misuse(f"--plot {path}: the folder {path.parent} is not there; make it first")
    if datasets > MOST_DATASETS:
        raise Misuse(f"--plot: {datasets} datasets, more than the {MOST_DATASETS} that one picture can tell apart")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise Misuse(
            "--plot needs matplotlib: pip install 'packtool[plot]' (from a clone: pip install '.[plot]')"
        ) from None
    except ValueError as error:  # what MPLBACKEND or a matplotlibrc says
        raise Misuse(f"--plot: matplotlib does not load: {one_line(error)}") from None


def save_plot(datasets: Sequence[DatasetStats], path: Path) -> None:
    """Draw the statistics of one dataset, or of several over one another, into ``path``.

    Args:
        datasets: at least one.
        path: ends in .png or .svg; an existing file is replaced, and never left half written.

    Raises:
        Misuse: as ``check_picture``.
    """
    check_picture(path, len(datasets))
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    image, kind = io.BytesIO(), path.suffix.lower().removeprefix(".")
    # The user's own style must not change what a picture says, nor ours stay behind.
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may hold letters that the font has not
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        width, height = _SIZE
        layout = ConstrainedLayoutEngine(hspace=0.06, wspace=0.04)
        figure = Figure((width, height + _LEGEND_LINE * len(datasets)), layout=layout, facecolor="white")
        FigureCanvasAgg(figure)
        _draw(figure, datasets)
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(image, format=kind, dpi=150, metadata=metadata)
    write_atomic(path, image.getvalue())


def _draw(figure: "Figure", datasets: Sequence[DatasetStats]) -> None:
    from matplotlib.lines import Line2D

    panels = figure.subplots(2, 2)
    _draw_lengths(panels[0, 0], datasets)
    _draw_fill(panels[0, 1], datasets)
    _draw_segments(panels[1, 0], datasets)
    _draw_padding(panels[1, 1], datasets)
    keys = [Line2D([], [], color=colour, linewidth=6) for colour, _ in zip(_COLOURS, datasets, strict=False)]
    figure.legend(keys, [_legend(dataset) for dataset in datasets], loc="outside upper left", handlelength=1)


def _legend(dataset: DatasetStats) -> str:
    name = printable(dataset.path)
    if len(name) > _NAME_LENGTH:
        name = "..." + name[3 - _NAME_LENGTH :]
    packs = f"{dataset.packs:,} packs, {percent(dataset.fill)} full"
    return f"{name}: {dataset.strategy}, max_length {dataset.max_length:,}, {packs}"


def _draw_lengths(axes: "Axes", datasets: Sequence[DatasetStats]) -> None:
    axes.set_title("Document lengths")
    _draw_bins(axes, [dataset.document_length_histogram for dataset in datasets], "documents")
    axes.set_xlabel("tokens; dotted: max_length")
    for length in sorted({dataset.max_length for dataset in datasets}):
        axes.axvline(length, color="#555555", linewidth=1, linestyle=":")


def _draw_segments(axes: "Axes", datasets: Sequence[DatasetStats]) -> None:
    axes.set_title("Segments in a pack")
    _draw_bins(axes, [dataset.segments_per_pack_histogram for dataset in datasets], "packs")
    axes.set_xlabel("segments")


def _draw_bins(axes: "Axes", histograms: Sequence[Sequence[Bin]], what: str) -> None:
    """Histograms over one another, on a scale of powers of two."""
    drawn = [(colour, bins) for colour, bins in zip(_COLOURS, histograms, strict=False) if bins]
    if not drawn:  # of a manifest that was edited
        return
    for colour, bins in drawn:
        total = sum(bin.count for bin in bins)
        shares = [100 * bin.count / total for bin in bins]
        edges = [*(bin.low for bin in bins), bins[-1].high]
        axes.stairs(shares, edges, color=colour, linewidth=1.5, zorder=2)
        axes.stairs(shares, edges, color=colour, fill=True, alpha=0.85 if len(histograms) == 1 else 0.15)
    low = min(bins[0].low for _, bins in drawn)
    high = max(bins[-1].high for _, bins in drawn)
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    powers = range(int(low).bit_length() - 1, int(high).bit_length())
    step = -(-len(powers) // 8)
    ticks = [1 << power for power in powers[::step] if low <= 1 << power <= high]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    _percent_of(axes, "y", what)


def _draw_fill(axes: "Axes", datasets: Sequence[DatasetStats]) -> None:
    axes.set_title("How full the packs are")
    labels = [fill_label(bin.low, bin.high) for bin in datasets[0].fill_histogram]
    rows = []
    for dataset in datasets:
        rows.append([100 * bin.count / dataset.packs for bin in dataset.fill_histogram])
    _draw_bars(axes, labels, rows, told=False)
    axes.invert_yaxis()
    _percent_of(axes, "x", "packs")


def _draw_padding(axes: "Axes", datasets: Sequence[DatasetStats]) -> None:
    axes.set_title("Positions that hold no token")
    labels = ["padded to\nmax_length", f"padded in\nbatches of {BATCH}", "packed"]
    rows = [[100 * (1 - fill) for fill in (each.padded_fill, each.batch_padded_fill, each.fill)] for each in datasets]
    _draw_bars(axes, labels, rows, told=True)
    axes.set_xlim(0, max(1.0, *(value for row in rows for value in row)) * 1.15)
    axes.invert_yaxis()
    _percent_of(axes, "x", "positions")


def _draw_bars(axes: "Axes", labels: Sequence[str], rows: Sequence[Sequence[float]], *, told: bool) -> None:
    """A group of bars for each label, with one bar for each dataset."""
    thick = 0.8 / len(rows)
    for index, (colour, values) in enumerate(zip(_COLOURS, rows, strict=False)):
        places = [place - 0.4 + thick * (index + 0.5) for place in range(len(labels))]
        bars = axes.barh(places, values, height=thick * 0.9, color=colour)
        if told:
            axes.bar_label(bars, [_told(value) for value in values], padding=2, fontsize=max(4.5, 8 - len(rows) / 2))
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)


def _told(percent: float) -> str:
    return f"{percent:.1f} %" if percent >= 0.05 or percent == 0 else "< 0.1 %"


def _percent_of(axes: "Axes", which: str, what: str) -> None:
    axis: Any = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(lambda value, _: f"{value:g} %")
    axis.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axis.set_label_text(f"of the {what}")
