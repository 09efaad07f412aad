"""What a person sees: progress, summaries, tables. Takes plain objects, writes to a terminal or to plain lines.

Everything fits 80 columns and is safe to print whatever the data holds.
"""

import json
import os
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from packtool.amounts import fill_label, percent, short, tenths
from packtool.errors import BAD_RECORD_REASONS, is_printable, printable
from packtool.manifest import Manifest
from packtool.packing import Histogram, only_halves
from packtool.progress import Listener, Notice, Progress, Stage
from packtool.statistics import Bin, DatasetStats

if TYPE_CHECKING:
    from packtool.comparison import Comparison  # imports what a run needs
    from packtool.outcome import Outcome
    from packtool.torch.isolation import IsolationReport  # imports torch
    from packtool.verification import Check, VerifyReport  # imports tokenizers

WIDTH = 80
_PLAIN_SECONDS = 5.0
"""Between two plain progress lines of one stage."""
_BAR = 24

_STAGE_NAMES = {
    Stage.COUNT: "count records",
    Stage.TOKENIZE: "read and tokenize",
    Stage.PLAN: "plan",
    Stage.WRITE: "write packs",
    Stage.CHECK: "check packs",
    Stage.COMPARE: "compare sources",
}
_REMEDIES = {
    "empty": "these records hold no text to train on",
    "nothing_to_train": "no token of these carries loss",
    "template_error": "see rejects.jsonl for what the template said",
    "span_unprovable": "what trains in them cannot be told; a template with generation marks helps",
    "bad_role": "see rejects.jsonl for the roles",
    "unsupported_part": "they hold parts that are no text",
}

_NOTES = {
    "torn_border": "have a token across prompt and completion; it trains",
    "spells_special_token": "spell a special token, which they become",
    "parsed_arguments": "had tool arguments as text, parsed for the template",
}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process, in the midst of a run whose progress nobody reads any more.
        raise


def console(*, error: bool = False) -> Console:
    """A console that never styles what is not meant to be styled; off a terminal as wide as COLUMNS says, or 80."""
    made = _Console(stderr=error, highlight=False, markup=False, soft_wrap=True)
    if not made.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        made.width = WIDTH
    return made


def _print_line(shown: Console, line: Text) -> None:
    """One line where a program may read it; on a terminal as many as it takes, broken between words."""
    lines = [line]
    if shown.is_terminal:
        # A path stays in one piece, however long, so that it can be copied.
        indent = line.plain[: len(line.plain) - len(line.plain.lstrip())]
        parts = textwrap.wrap(
            line.plain, shown.width, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent
        )
        lines = [Text(part, style=line.style) for part in parts]
        for span in line.spans:
            if span.start == 0 and lines:
                lines[0].stylize(span.style, 0, span.end)
    for part in lines:
        shown.print(part, no_wrap=True, overflow="ignore", crop=False)


def print_error(message: str) -> None:
    """One line on standard error, wrapped at words on a terminal."""
    line = Text(f"error: {printable(message)}")
    line.stylize("bold red", 0, len("error: "))
    try:
        _print_line(console(error=True), line)
    except OSError:
        pass  # nobody is there to be told


@contextmanager
def progress(quiet: bool) -> Iterator[Listener]:
    """A listener that shows progress on standard error: bars on a terminal, else a plain line now and then."""
    shown = console(error=True)
    if quiet:
        yield _forgiving(lambda event: _warn(shown, event))
    elif shown.is_terminal:
        with _own_way(shown), _bars(shown) as bars:
            yield _forgiving(_BarListener(shown, bars))
    else:
        yield _forgiving(_LineListener(shown))


@contextmanager
def _own_way(shown: Console) -> Iterator[None]:
    """Let a console write to the terminal itself, for bars that move while standard error leads elsewhere."""
    try:
        file = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors="backslashreplace")
    except (OSError, ValueError, AttributeError):
        yield  # none that the system knows
        return
    with file:
        shown.file = file
        try:
            yield
        finally:
            shown.file = sys.stderr


def _forgiving(listener: Listener) -> Listener:
    def told(event: Progress | Notice) -> None:
        try:
            listener(event)
        except OSError:
            pass  # standard error was closed, or its disk is full: no fault of the run

    return told


def _warn(shown: Console, event: Progress | Notice) -> None:
    if isinstance(event, Notice) and event.warning:
        _print_notice(shown, event)


def _print_notice(shown: Console, notice: Notice) -> None:
    line = Text(f"{'warning: ' if notice.warning else ''}{printable(notice.text)}")
    if notice.warning:
        line.stylize("yellow", 0, len("warning: "))
    _print_line(shown, line)


def _bars(shown: Console) -> Bars:
    return Bars(
        TextColumn("{task.description:<17}"),
        BarColumn(bar_width=_BAR),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[speed]:>14}"),
        TimeRemainingColumn(compact=True),
        console=shown,
        transient=True,
    )


class _BarListener:
    def __init__(self, shown: Console, bars: Bars) -> None:
        self._shown = shown
        self._bars = bars
        self._tasks: dict[Stage, TaskID] = {}
        self._begun: dict[Stage, tuple[float, int]] = {}

    def __call__(self, event: Progress | Notice) -> None:
        if isinstance(event, Notice):
            _print_notice(self._shown, event)
            return
        if event.stage not in self._tasks:
            self._begun[event.stage] = (time.monotonic(), event.tokens)
            self._tasks[event.stage] = self._bars.add_task(_STAGE_NAMES[event.stage], total=event.total, speed="")
        speed = _speed(event, *self._begun[event.stage])
        self._bars.update(self._tasks[event.stage], completed=event.done, total=event.total, speed=speed)


class _LineListener:
    def __init__(self, shown: Console) -> None:
        self._shown = shown
        self._begun: dict[Stage, tuple[float, int]] = {}
        self._last: dict[Stage, float] = {}
        self._ended: dict[Stage, int] = {}

    def __call__(self, event: Progress | Notice) -> None:
        if isinstance(event, Notice):
            _print_notice(self._shown, event)
            return
        now = time.monotonic()
        self._begun.setdefault(event.stage, (now, event.tokens))
        ended = event.total is not None and event.done >= event.total
        if not ended and now - self._last.setdefault(event.stage, now) < _PLAIN_SECONDS:
            return
        if ended and self._ended.get(event.stage) == event.done:
            return  # an end may be told twice
        if ended:
            self._ended[event.stage] = event.done
        self._last[event.stage] = now
        done = _amount(event.done, event.unit)
        of = "" if event.total is None else f" of {_amount(event.total, event.unit)}"
        speed = _speed(event, *self._begun[event.stage])
        self._shown.print(f"{_STAGE_NAMES[event.stage]}: {done}{of}{', ' + speed if speed else ''}")


def _speed(event: Progress, begun: float, tokens_then: int) -> str:
    seconds = time.monotonic() - begun
    tokens = event.tokens - tokens_then
    return f"{short(tokens / seconds)} tokens/s" if tokens and seconds > 0.05 else ""


def _amount(value: int, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 1e6:,.1f} MB"
    return f"{value:,} {unit}"


# --- the summary of a run ------------------------------------------------------------------------------------


def print_summary(manifest: Manifest, folder: str) -> None:
    """What a run made, what it left out and why, and how to load it."""
    shown = console()
    lost = manifest.tokens.left_out + manifest.tokens.truncated
    if lost * 100 > manifest.tokens.into:
        _print_losses(shown, manifest, lost)
    rows = _summary_rows(manifest)
    for name, value in rows:
        line = Text(f"{name:<13}", style="bold")
        line.append(printable(value), style="default")
        shown.print(line)
    if lost * 100 <= manifest.tokens.into:
        _print_small_losses(shown, manifest)
    shown.print()
    out = printable(folder)
    for name, value in (
        ("written to", out),
        ("look at it", f"packtool show {out}"),
        ("check it", f"packtool verify {out}"),
    ):
        line = Text(f"{name:<13}", style="bold")
        line.append(printable(value), style="default")
        shown.print(line, no_wrap=True, overflow="ignore", crop=False)
    shown.print()
    for code in _loading_lines(folder):
        shown.print(Text(code))


def _summary_rows(manifest: Manifest) -> list[tuple[str, str]]:
    documents, tokens, entry = manifest.documents, manifest.tokens, manifest.tokenizer
    fill = tokens.out / (manifest.packs * manifest.max_length)
    over = manifest.packs - manifest.lower_bound_packs
    bound = "the fewest possible" if over == 0 else f"at least {manifest.lower_bound_packs:,} are needed"
    truncated = f" ({documents.truncated:,} truncated)" if documents.truncated else ""
    rows = [
        ("documents", f"{documents.out:,} of {documents.into:,}{truncated}"),
        ("tokens", f"{tokens.out:,} of {tokens.into:,}"),
        ("trained", f"{percent(tokens.trained / tokens.out)} of them"),
        ("first token", _end_token(entry.bos, entry.bos_origin)),
        ("last token", _end_token(entry.eos, entry.eos_origin)),
        ("packs", f"{manifest.packs:,} of at most {manifest.max_length:,} tokens ({bound})"),
        ("fill", f"{percent(fill)} ({manifest.strategy})"),
    ]
    for note, count in manifest.notes.items():
        rows.append(("note", f"{count:,} {'record' if count == 1 else 'records'} {_NOTES.get(note, note)}"))
    if manifest.padded:
        rows.append(("padding", f"{entry.pad!r} ({entry.pad_origin})"))
    if manifest.limited:
        rows.insert(0, ("limited", f"only the first {manifest.records:,} records were read (--limit)"))
    if _only_halves(manifest):
        rows += zip(("note", "", "", ""), textwrap.wrap(_NO_PACKER, WIDTH - 13), strict=False)
    return rows


_NO_PACKER = (
    "most packs hold a piece of more than half of max_length, beside which little fits; no packer can fill them, "
    "another --max-length may"
)


def _only_halves(manifest: Manifest) -> bool:
    pairs = zip(manifest.segment_lengths.lengths, manifest.segment_lengths.counts, strict=True)
    lengths = Histogram.from_counts(dict(pairs))
    return only_halves(lengths, manifest.lower_bound_packs, manifest.packs, manifest.max_length)


def _end_token(token: str | None, origin: str) -> str:
    return f"{printable(token)} (from {origin})" if token else "the document's own, none is added"


def _print_losses(shown: Console, manifest: Manifest, lost: int) -> None:
    share = percent(lost / manifest.tokens.into) if manifest.tokens.into else "100 %"
    shown.print(Text(f"{lost:,} tokens ({share}) are in no pack:", style="yellow"))
    _print_rejects(shown, manifest, style="yellow")
    shown.print()


def _print_rejects(shown: Console, manifest: Manifest, style: str = "default") -> None:
    for reason, rows in manifest.rejected.items():
        tokens = manifest.rejected_tokens.get(reason, 0)
        told = f"{rows:,} x {reason}" + (f", {tokens:,} tokens" if tokens else "")
        shown.print(Text(f"  {printable(told)} (rejects.jsonl says where)", style=style))
        if remedy := _remedy(reason, manifest):
            _print_line(shown, Text(f"    {remedy}", style=style))


def _print_small_losses(shown: Console, manifest: Manifest) -> None:
    """A labelled row for each reason, as in the rest of the summary."""
    for reason, rows in manifest.rejected.items():
        label = "cut off" if reason == "truncated" else "bad records" if reason in BAD_RECORD_REASONS else "left out"
        unit = ("record" if reason in BAD_RECORD_REASONS else "document") + "s" * (rows != 1)
        tokens = manifest.rejected_tokens.get(reason, 0)
        lost = f", {tokens:,} tokens" if tokens else ""
        line = Text(f"{label:<13}", style="bold")
        line.append(printable(f"{rows:,} {unit}{lost}: {reason} (rejects.jsonl says where)"), style="default")
        shown.print(line)
        if remedy := _remedy(reason, manifest):
            shown.print(Text(" " * 13 + remedy))


def _remedy(reason: str, manifest: Manifest) -> str | None:
    """What keeps such records; none that trains worse is told: a piece of a conversation lacks its beginning."""
    if reason not in ("overlong", "truncated"):
        return _REMEDIES.get(reason)
    if manifest.format in ("text", "tokens"):
        return "a larger --max-length keeps more, or --strategy bfd_split without --overlong"
    return "a larger --max-length keeps more"


def _loading_lines(folder: str) -> Sequence[str]:
    quoted = repr(folder)
    return (
        "from datasets import load_dataset; from trl import SFTConfig  # TRL",
        f"train = load_dataset({quoted}, split='train')",
        "args = SFTConfig(packing=True, dataset_kwargs={'skip_prepare_dataset': True},",
        "                 packing_strategy='bfd', per_device_train_batch_size=1)",
        "from packtool.torch import packed_dataloader  # a torch loop",
        f"for batch in packed_dataloader({quoted}, batch_packs=1): ...",
    )


# --- stats ---------------------------------------------------------------------------------------------------


def print_stats(datasets: Sequence[DatasetStats]) -> None:
    """One dataset's page, or several side by side."""
    shown = console()
    table = Table(box=box.SIMPLE_HEAD, show_header=len(datasets) > 1, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for dataset in datasets:
        table.add_column(Text(printable(dataset.path)), justify="right", overflow="fold")
    for name, values in _stats_rows(datasets):
        table.add_row(Text(printable(name), style="bold"), *(Text(printable(value)) for value in values))
    shown.print(table)
    if len(datasets) > 1:
        shown.print(Text("packtool stats with one dataset shows its histograms too", style="dim"))
        return
    _print_histogram(shown, "document lengths", datasets[0].document_length_histogram, _length_label)
    _print_histogram(shown, "fill of packs", datasets[0].fill_histogram, lambda bin: fill_label(bin.low, bin.high))


def _stats_rows(datasets: Sequence[DatasetStats]) -> list[tuple[str, list[str]]]:
    def row(name: str, value: Any) -> tuple[str, list[str]]:
        return name, [value(dataset) for dataset in datasets]

    rows = [
        row("strategy", lambda d: d.strategy),
        row("max_length", lambda d: f"{d.max_length:,}"),
        row("packs", lambda d: f"{d.packs:,}"),
        row("  lower bound", lambda d: f"{d.lower_bound_packs:,} (+{d.gap_to_bound:,})"),
        row("documents", lambda d: f"{d.documents:,}"),
        row("segments", lambda d: f"{d.segments:,}"),
        row("tokens", lambda d: f"{d.tokens:,}"),
        row("  trained", lambda d: f"{d.trained_tokens:,} ({percent(d.trained_share)})"),
        row("fill", lambda d: percent(d.fill)),
        row("  padded to max_length", lambda d: percent(d.padded_fill)),
        row("  padded in batches of 8", lambda d: percent(d.batch_padded_fill)),
        row("documents a pack", lambda d: f"{d.packing_factor:.2f}"),
        row(
            "segments a pack",
            lambda d: f"{d.segments / d.packs if d.packs else 0:.1f}",
        ),
        row("  median", lambda d: f"{d.segments_per_pack.median:g}"),
        row("  most", lambda d: f"{d.segments_per_pack.max:,}"),
        row("attention cost", lambda d: f"{short(d.attention_cost)} pairs"),
        row("  of undivided packs", lambda d: percent(d.attention_cost_share)),
        row("bad records", lambda d: f"{d.left_out.bad_records:,}"),
        row("documents left out", lambda d: f"{d.left_out.documents:,}"),
        row("tokens left out", lambda d: f"{d.left_out.tokens:,}"),
        row("tokens cut off", lambda d: f"{d.truncated_tokens:,}"),
    ]
    for reason in sorted({reason for dataset in datasets for reason in dataset.rejected}):
        rows.append(row(f"  {reason}", lambda d, reason=reason: _rows(d.rejected.get(reason, 0))))
    return rows


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def _print_histogram(shown: Console, title: str, bins: Sequence[Bin], label: Any) -> None:
    largest = max((bin.count for bin in bins), default=0)
    if not largest:
        return
    shown.print(Text(title, style="bold"))
    for bin in bins:
        width = max(1, round(bin.count / largest * 40)) if bin.count else 0
        line = Text(f"{label(bin):>17}  ")
        line.append("█" * width, style="cyan")
        line.append(f" {bin.count:,}", style="default")
        shown.print(line)
    shown.print()


def _length_label(bin: Bin) -> str:
    return f"{bin.low:,.0f} to {bin.high - 1:,.0f}" if bin.high - 1 > bin.low else f"{bin.low:,.0f}"


# --- plan ---------------------------------------------------------------------------------------------------


def print_comparison(comparison: "Comparison", command: str = "") -> None:
    """A row for each strategy and length, what is to be said of them, the advice, and the command that follows it."""
    shown = console()
    about = "" if comparison.sampled is None else "about "
    shown.print(f"{about}{comparison.documents:,} documents, {comparison.tokens:,} tokens ({comparison.format})")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    # A bound of the sample is none of the whole.
    names = [name for name in _OUTCOME_COLUMNS if comparison.sampled is None or name != _OVER_BOUND]
    shown_names = _fitting(names, shown.width)
    for name in shown_names:
        width = _OUTCOME_COLUMNS[name]
        justify: Literal["left", "right"] = "left" if name == "strategy" else "right"
        table.add_column(name, justify=justify, no_wrap=True, min_width=width)
    length = None
    for outcome in comparison.outcomes:
        if length not in (None, outcome.max_length):
            table.add_section()
        length = outcome.max_length
        advised = (outcome.strategy, length) == (comparison.advice.strategy, comparison.advice.max_length)
        cells = dict(zip(names, _outcome_row(outcome, bounded=comparison.sampled is None), strict=True))
        table.add_row(*(cells[name] for name in shown_names), style="bold green" if advised else "")
    shown.print(table)
    if len(shown_names) < len(names):
        missing = ", ".join(name.replace("\n", " ") for name in names if name not in shown_names)
        _print_wrapped(shown, f"on a wider terminal, or with --json: {missing}")
    for line in _comparison_notes(comparison):
        _print_wrapped(shown, line)
    _print_wrapped(shown, f"advice: {comparison.advice.text}", style="bold")
    if command:
        shown.print()
        shown.print(Text(printable(command)), no_wrap=True, overflow="ignore", crop=False)


_OVER_BOUND = "over\nbound"
_OUTCOME_COLUMNS = {
    "length": 6,
    "strategy": 9,
    "packs": 7,
    _OVER_BOUND: 5,
    "fill": 8,
    "docs\ncut": 6,
    "docs\nout": 6,
    "tokens\nlost": 6,
    "segs\na pack": 6,
    "attn\na token": 7,
}
"""Heads and least widths: with the spaces between, 78 columns."""


_GIVEN_UP = (_OVER_BOUND, "segs\na pack", "attn\na token", "docs\ncut", "docs\nout")
"""Columns that a narrow terminal does without, the first of them first."""


def _fitting(names: Sequence[str], width: int) -> list[str]:
    """The columns that there is room for, each with the blank beside it."""
    kept = list(names)
    for name in _GIVEN_UP:
        if sum(_OUTCOME_COLUMNS[each] + 1 for each in kept) + 1 > width and name in kept:
            kept.remove(name)
    return kept


def _outcome_row(outcome: "Outcome", *, bounded: bool) -> list[str]:
    names = [f"{outcome.max_length}", outcome.strategy]
    if outcome.refused:
        return [*names, *["-"] * (8 if bounded else 7)]
    spread = outcome.fill_interval
    if outcome.packs_interval is not None and spread is not None:
        off = max(outcome.packs - outcome.packs_interval.low, outcome.packs_interval.high - outcome.packs)
        fill_off = max(outcome.fill - spread.low, spread.high - outcome.fill)
        return [
            *names,
            f"{short(outcome.packs)} ±{tenths(min(off / outcome.packs, 9.99), up=True)}%",
            f"{tenths(outcome.fill)}% ±{tenths(fill_off, up=True)}",
            *_harms_and_costs(outcome),
        ]
    return [
        *names,
        _count(outcome.packs),
        _count(outcome.packs - outcome.lower_bound_packs),
        percent(outcome.fill),
        *_harms_and_costs(outcome),
    ]


def _harms_and_costs(outcome: "Outcome") -> list[str]:
    return [
        _count(outcome.documents_cut),
        _count(outcome.documents_left_out),
        _count(outcome.tokens_lost),
        f"{outcome.segments / outcome.packs:.1f}",
        _count(round(outcome.attention_cost / outcome.tokens)),
    ]


def _count(value: int) -> str:
    return f"{value:,}" if value < 100_000 else short(value)


def _comparison_notes(comparison: "Comparison") -> Iterator[str]:
    if comparison.sampled is not None:
        yield (
            f"estimated from {comparison.sampled:,} of {comparison.records:,} records: for 19 of 20 such samples the "
            "true packs and fill lie within what stands behind ±; the other columns are scaled up, and what fewer than "
            f"1 in {comparison.sampled // 3:,} records have may not be in the sample"
        )
    for outcome in comparison.outcomes:
        if outcome.refused:
            yield f"{outcome.strategy} at {outcome.max_length}: pack would stop: {outcome.refused}"


def _print_wrapped(shown: Console, line: str, style: str = "default") -> None:
    for part in textwrap.wrap(printable(line), min(WIDTH, shown.width), break_on_hyphens=False):
        shown.print(Text(part, style=style))


# --- verify --------------------------------------------------------------------------------------------------


def print_report(report: "VerifyReport") -> None:
    """Each check with what it looked at; what failed with where."""
    shown = console()
    for check in report.checks:
        shown.print(_verdict(check.name, check.ok, _outcome(check)))
        if not check.ok:
            shown.print(Text(f"          {printable(check.detail)}", style="red"))
    shown.print()
    if report.ok:
        shown.print(f"{printable(report.path)}: sound ({report.packs:,} packs, {report.tokens:,} tokens)")
        shown.print(Text("train on it: docs/trainers.md has the settings of each trainer", style="dim"))
    else:
        failed = sum(not check.ok for check in report.checks)
        checks = "1 check" if failed == 1 else f"{failed} checks"
        shown.print(f"{printable(report.path)}: NOT sound, {checks} failed; do not train on it")


def _verdict(name: str, ok: bool, told: str) -> Text:
    line = Text("  ok    " if ok else "  FAIL  ", style="green" if ok else "bold red")
    line.append(f"{name:<15}", style="bold")
    line.append(told, style="default")
    return line


def _outcome(check: "Check") -> str:
    if check.ok:
        return f"{check.checked:,} looked at"
    if not check.faults:
        return "could not be checked"
    return "1 fault" if check.faults == 1 else f"{check.faults:,} faults"


def print_isolation(report: "IsolationReport") -> None:
    """Whether a model keeps documents apart, what was compared, and the cause where it does not."""
    shown = console()
    how = ", ".join(printable(part) for part in (report.model, report.attention, report.dtype) if part)
    shown.print(_verdict("isolation", report.ok, f"{how}, {report.segments} segments"))
    for name, told in _isolation_rows(report):
        shown.print(Text(f"          {name:<13}{told}"))
    for part in textwrap.wrap(printable(report.cause), WIDTH - 10):
        shown.print(Text(f"          {part}", style="red"))
    wrong = "LEAKS between documents" if report.leaks else "changes documents by what is beside them"
    verdict = {True: "keeps documents apart", False: wrong, None: "cannot be judged"}
    agree = "" if report.ok or report.isolates is not True else ", but does not train as on documents alone"
    shown.print()
    shown.print(f"{printable(report.model)}: {verdict[report.isolates]}{agree}")


def _isolation_rows(report: "IsolationReport") -> list[tuple[str, str]]:
    rows = [("logits", f"{report.largest_difference:.1e} from those of the documents alone")]
    if report.leaks:
        worst = report.leaks[0]
        rows.append(("leaks", f"segment {worst.source} into {worst.target} by {worst.difference:.1e}"))
        if len(report.leaks) > 1:
            rows[-1] = ("leaks", f"{rows[-1][1]}, and {len(report.leaks) - 1} more")
    rows.append(("control", f"with a mask of ones a leak shows as {report.control:.1e}"))
    if report.loss is not None and report.loss_alone is not None:
        rows.append(("loss", f"{report.loss:.5f} packed, {report.loss_alone:.5f} alone"))
    if report.gradient_difference is not None:
        rows.append(("gradients", f"{report.gradient_difference:.1e} from those of the documents alone"))
    if report.weights:
        rows.append(("weights", report.weights))
    return rows


def print_json(value: Any) -> None:
    """JSON for programs, on standard output; what a terminal would obey, hide or cannot write is escaped in it."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    only_ascii = encoding not in ("utf-8", "utf8")
    text = json.dumps(value, indent=2, ensure_ascii=only_ascii)
    if not is_printable(text.replace("\n", "")):
        text = "".join(c if is_printable(c) or c == "\n" else _json_escape(c) for c in text)
    sys.stdout.write(text + "\n")


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[index]:02x}{units[index + 1]:02x}" for index in range(0, len(units), 2))


def print_written(file: str, *, error: bool = False) -> None:
    """Where a file was written that was asked for; on standard error where standard output holds JSON."""
    console(error=error).print(Text(f"written to {printable(file)}"), no_wrap=True, overflow="ignore", crop=False)


def print_lines(shown: Console, lines: Iterable[Text]) -> None:
    """Lines that are laid out already."""
    for line in lines:
        shown.print(line, no_wrap=True, overflow="ignore", crop=False)
