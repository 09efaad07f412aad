"""The command line: parses flags, calls the same functions as the Python API, renders what they give.

Imports nothing heavy before a command runs, so that ``--help`` answers at once.
"""

import io
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import typer.main

from packtool import __version__
from packtool.errors import BadData, Misuse, PacktoolError
from packtool.stopping import goes_on, pass_over_signals, stop_message

if TYPE_CHECKING:
    from packtool.config import SharedOptions

    Options = TypeVar("Options", bound=SharedOptions)

app = typer.Typer(
    name="packtool",
    help="Pack a dataset offline, once: no padding, no token that sees another document, labels that are right.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"packtool {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version


# Flags that several commands have, each declared once.
SourcesFlag = Annotated[
    list[str] | None,
    typer.Argument(metavar="SOURCE", help="Files, globs, folders, or hf:NAME[@REVISION][:CONFIG[:SPLIT]]."),
]
TokenizerFlag = Annotated[
    str | None,
    typer.Option("--tokenizer", "-t", metavar="PATH|NAME", help="tokenizer.json, a folder with one, or a hub name."),
]
OverlongFlag = Annotated[
    str | None, typer.Option(metavar="POLICY", help="auto, drop, truncate, truncate_turns, split or error. [auto]")
]
FormatFlag = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="auto, text, prompt_completion, messages or tokens. [auto]"),
]
FieldFlag = Annotated[
    list[str] | None, typer.Option(metavar="NAME=COLUMN", help="Where a field is, e.g. text=body. Repeatable.")
]
BosFlag = Annotated[str | None, typer.Option(metavar="WHEN", help="auto, yes or no. [auto]")]
EosFlag = Annotated[str | None, typer.Option(metavar="WHEN", help="auto, yes or no. [auto]")]
EosTokenFlag = Annotated[str | None, typer.Option(metavar="TOKEN", help="Ends every document.")]
PromptTemplateFlag = Annotated[
    str | None, typer.Option(metavar="FILE", help="A jinja2 file that makes the prompt from a record's fields.")
]
ChatTemplateFlag = Annotated[
    str | None,
    typer.Option(metavar="FILE|NAME", help="Renders conversations, instead of the tokenizer's own template."),
]
TemplateArgFlag = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="For the template, e.g. enable_thinking=false. Repeatable."),
]
TemplateDateFlag = Annotated[
    str | None, typer.Option(metavar="DATE", help="What the template prints as today. [the day of the first start]")
]
TrainOnFlag = Annotated[
    str | None,
    typer.Option(metavar="WHAT", help="assistant, last (turn only), all, or roles such as assistant,tool. [assistant]"),
]
EndOfTurnFlag = Annotated[
    bool | None, typer.Option("--end-of-turn/--no-end-of-turn", help="The end of a trained turn trains. [yes]")
]
SeedFlag = Annotated[str | None, typer.Option(metavar="N", help="Of the order. [0]")]
ShuffleFlag = Annotated[bool | None, typer.Option("--shuffle/--no-shuffle", help="Mix documents. [shuffle]")]
MaxSegmentsFlag = Annotated[str | None, typer.Option(metavar="N", help="Segments in a pack at most.")]
LimitFlag = Annotated[str | None, typer.Option(metavar="N", help="Only the first N records: a first try.")]
OnBadRecordFlag = Annotated[str | None, typer.Option(metavar="WHAT", help="error or skip. [error]")]
MaxBadRecordsFlag = Annotated[
    str | None, typer.Option(metavar="N|P%", help="With --on-bad-record skip: how many it may be. [any number]")
]
MaxRecordBytesFlag = Annotated[str | None, typer.Option(metavar="N", help="A larger record is a bad one. [64Mi]")]
MaxLeftOutFlag = Annotated[str | None, typer.Option(metavar="P%", help="Records that a template may refuse. [1%]")]
GroupTokensFlag = Annotated[str | None, typer.Option(metavar="N", help="Tokens that are planned together.")]
WorkersFlag = Annotated[str | None, typer.Option(metavar="N", help="Processes. [the CPUs there are]")]
EncoderFlag = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="auto, tokenizers or fastokens: speed alone, the tokens are equal. [auto]"),
]
CacheDirFlag = Annotated[
    str | None, typer.Option(metavar="DIR", help="Keep tokens there for later runs. [$PACKTOOL_CACHE]")
]
QuietFlag = Annotated[bool | None, typer.Option("--quiet", "-q", help="No progress, and no summary of a run.")]
PlanQuietFlag = Annotated[bool | None, typer.Option("--quiet", "-q", help="No progress.")]
ConfigFlag = Annotated[
    Path | None, typer.Option(metavar="FILE.toml", help="Options from a file, names with _; flags win.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command()
def pack(
    sources: SourcesFlag = None,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="OUT", help="Folder to write.")] = None,
    tokenizer: TokenizerFlag = None,
    max_length: Annotated[
        str | None, typer.Option("--max-length", "-L", metavar="N", help="Tokens in a pack. [4096]")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            "-s",
            metavar="NAME",
            help="bfd, bfd_split, wrapped or in_order. [bfd_split for text and for tokens without labels, else bfd]",
        ),
    ] = None,
    overlong: OverlongFlag = None,
    format: FormatFlag = None,
    field: FieldFlag = None,
    bos: BosFlag = None,
    eos: EosFlag = None,
    eos_token: EosTokenFlag = None,
    pad_token: Annotated[str | None, typer.Option(metavar="TOKEN", help="Fills packs, with --pad.")] = None,
    prompt_template: PromptTemplateFlag = None,
    chat_template: ChatTemplateFlag = None,
    template_arg: TemplateArgFlag = None,
    template_date: TemplateDateFlag = None,
    train_on: TrainOnFlag = None,
    end_of_turn: EndOfTurnFlag = None,
    seed: SeedFlag = None,
    shuffle: ShuffleFlag = None,
    pad: Annotated[bool | None, typer.Option("--pad/--no-pad", help="Fill packs to max_length. [no-pad]")] = None,
    max_segments: MaxSegmentsFlag = None,
    limit: LimitFlag = None,
    on_bad_record: OnBadRecordFlag = None,
    max_bad_records: MaxBadRecordsFlag = None,
    max_record_bytes: MaxRecordBytesFlag = None,
    max_left_out: MaxLeftOutFlag = None,
    group_tokens: GroupTokensFlag = None,
    shard_tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens in a shard. [64M, small data less]")
    ] = None,
    shards: Annotated[str | None, typer.Option(metavar="N", help="Exactly so many shards.")] = None,
    workers: WorkersFlag = None,
    encoder: EncoderFlag = None,
    cache_dir: CacheDirFlag = None,
    overwrite: Annotated[bool | None, typer.Option("--overwrite", help="Replace the dataset in OUT.")] = None,
    quiet: QuietFlag = None,
    config: ConfigFlag = None,
) -> None:
    """Pack SOURCEs into a folder of Parquet shards."""
    given = {name: value for name, value in locals().items() if value is not None and name != "config"}
    from packtool.config import PackConfig
    from packtool.executor import Workers
    from packtool.head_start import head_start

    options = _with_cache(PackConfig.checked(given) if config is None else PackConfig.from_toml(config, given))
    with Workers(options.worker_count) as processes:
        head_start(options, processes)
        from packtool import terminal  # these take a third of a second, as long as a process takes to start
        from packtool.run import pack_with

        with terminal.progress(options.quiet) as listener:
            manifest = pack_with(processes, options, listener)
    if not options.quiet:
        try:
            terminal.print_summary(manifest, str(options.output))
        except BrokenPipeError:
            raise
        except OSError as error:
            done = f"the summary is lost, but the dataset in {options.output} is finished"
            raise PacktoolError(f"standard output: {error.strerror}; {done}") from None


def _with_cache(options: "Options") -> "Options":
    if options.cache_dir is None and (cache := os.environ.get("PACKTOOL_CACHE")):
        from packtool.addresses import refuse_address

        refuse_address("PACKTOOL_CACHE", cache)
        return options.model_copy(update={"cache_dir": Path(cache).expanduser()})
    return options


@app.command()
def plan(
    sources: SourcesFlag = None,
    tokenizer: TokenizerFlag = None,
    max_length: Annotated[
        str | None,
        typer.Option(
            "--max-length", "-L", metavar="N,...", help="Tokens in a pack, each to be tried. [2048,4096,8192]"
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", "-s", metavar="NAME,...", help="Strategies to try. [all that go with the rest]"),
    ] = None,
    sample: Annotated[
        str | None, typer.Option(metavar="N", help="Estimate from N records, and say how sure that is.")
    ] = None,
    overlong: OverlongFlag = None,
    format: FormatFlag = None,
    field: FieldFlag = None,
    bos: BosFlag = None,
    eos: EosFlag = None,
    eos_token: EosTokenFlag = None,
    prompt_template: PromptTemplateFlag = None,
    chat_template: ChatTemplateFlag = None,
    template_arg: TemplateArgFlag = None,
    template_date: TemplateDateFlag = None,
    train_on: TrainOnFlag = None,
    end_of_turn: EndOfTurnFlag = None,
    seed: SeedFlag = None,
    shuffle: ShuffleFlag = None,
    max_segments: MaxSegmentsFlag = None,
    limit: LimitFlag = None,
    on_bad_record: OnBadRecordFlag = None,
    max_bad_records: MaxBadRecordsFlag = None,
    max_record_bytes: MaxRecordBytesFlag = None,
    max_left_out: MaxLeftOutFlag = None,
    group_tokens: GroupTokensFlag = None,
    workers: WorkersFlag = None,
    encoder: EncoderFlag = None,
    cache_dir: CacheDirFlag = None,
    quiet: PlanQuietFlag = None,
    config: ConfigFlag = None,
    json: JsonFlag = False,
) -> None:
    """Compare strategies and lengths on SOURCEs; writes no dataset."""
    given = {name: value for name, value in locals().items() if value is not None and name not in ("config", "json")}
    from packtool import terminal
    from packtool.comparison import plan as compare
    from packtool.config import PlanConfig

    options = _with_cache(PlanConfig.checked(given) if config is None else PlanConfig.from_toml(config, given))
    with terminal.progress(options.quiet) as listener:
        comparison = compare(options, listener)
    if json:
        terminal.print_json(comparison.to_json())
    else:
        advice = comparison.advice
        terminal.print_comparison(comparison, _pack_command(given, config, advice.strategy, advice.max_length))


def _pack_command(given: dict[str, Any], config: Path | None, strategy: str, max_length: int) -> str:
    """The command that packs as was advised, with whatever else was given to ``plan``."""
    words = ["packtool", "pack", *given.get("sources", ()), "-o", "packed", "-s", strategy, "-L", str(max_length)]
    if config is not None:
        words += ["--config", str(config)]
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if name in ("sources", "strategy", "max_length", "sample", "quiet"):
            continue
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            for each in value if isinstance(value, list) else [value]:
                words += ["-t" if name == "tokenizer" else flag, str(each)]
    return shlex.join(words)


@app.command()
def stats(
    datasets: Annotated[list[str], typer.Argument(metavar="OUT", help="Packed datasets.")],
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw them, too, into a .png or .svg (needs matplotlib).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show how well datasets are packed, side by side."""
    from packtool import terminal
    from packtool.statistics import stats as read

    if plot is not None:
        from packtool.manifest import refuse_inside_dataset
        from packtool.plotting import check_picture, save_plot

        refuse_inside_dataset("--plot", plot)
        check_picture(plot, len(datasets))
    found = [read(dataset) for dataset in datasets]
    if plot is not None:
        save_plot(found, plot)
    if json:
        values = [dataset.to_json() for dataset in found]
        terminal.print_json(values[0] if len(values) == 1 else values)
    else:
        terminal.print_stats(found)
    if plot is not None:
        terminal.print_written(str(plot), error=json)


@app.command()
def show(
    dataset: Annotated[str, typer.Argument(metavar="OUT", help="A packed dataset.")],
    pack: Annotated[int | None, typer.Option(metavar="N", help="The pack with that number. [0]")] = None,
    random: Annotated[int | None, typer.Option(metavar="K", help="K packs, drawn by --seed.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="S", help="Of --random. [0]")] = None,
    doc: Annotated[
        int | None, typer.Option(metavar="ID", help="Every pack with a piece of that document, and these pieces.")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Each token with its id, label and position.")] = False,
    mask: Annotated[bool, typer.Option("--mask", help="Who may see whom, as a picture.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Fold nothing.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write all of this as a page, instead of showing it.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs; with --tokens every token, too.")] = False,
) -> None:
    """Look at packs: where documents begin, which tokens train, which positions they have."""
    from packtool import terminal
    from packtool.inspection import show as inspect

    if seed is not None and random is None:
        raise Misuse("--seed is of the draw; give --random K, too")
    if json and (mask or full or html):
        raise Misuse("--json gives everything that was asked for; of the other views it goes with --tokens alone")
    if html is not None and (tokens or mask or full):
        raise Misuse("--html has tokens and mask, whole; leave out --tokens, --mask and --full")
    if html is not None:
        _check_html_file(html)
    found = inspect(dataset, pack=pack, random=random, seed=seed or 0, doc=doc)
    if json:
        terminal.print_json(found.to_json(tokens))
    elif html is not None:
        from packtool.files import write_atomic
        from packtool.views.html import page

        try:
            write_atomic(html, page(found).encode())
        except OSError as error:
            raise BadData(f"--html {html}: cannot be written: {error.strerror}") from None
        terminal.print_written(str(html))
    else:
        from packtool.views import lines
        from packtool.views.page import Page

        shown = terminal.console()
        terminal.print_lines(shown, lines(found, Page.of(shown.width, shown.encoding, full), tokens, mask))


def _check_html_file(file: Path) -> None:
    """Refuse what a page should not replace, before anything is read."""
    from packtool.manifest import refuse_inside_dataset

    refuse_inside_dataset("--html", file)
    if file.suffix.lower() not in (".html", ".htm"):
        raise Misuse(f"--html {file}: the file's name must end in .html")
    if not file.parent.is_dir():
        raise Misuse(f"--html {file}: there is no folder {file.parent}")
    if file.is_dir():
        raise Misuse(f"--html {file}: a folder")


def _at_least_one(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise typer.BadParameter(f"{value} is not in the range x>=1.")
    return value


@app.command()
def verify(
    dataset: Annotated[str, typer.Argument(metavar="OUT", help="A packed dataset.")],
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="What it was packed from: tokenize that again, and compare token by token. Repeatable.",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(callback=_at_least_one, metavar="N", help="With --source: compare only about N records."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="With --sample: which records. [0]", show_default=False)] = 0,
    chat_template: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help="With --source: the template, if it was not the tokenizer's own."),
    ] = None,
    prompt_template: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --source: the template that made the prompts, if one did.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(callback=_at_least_one, metavar="N", help="Processes. [the CPUs there are]")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="A local transformers model, or its config: check that it keeps the packed documents apart.",
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --model: eager, sdpa, flex_attention, ... [transformers' choice]"),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Check everything a packed dataset promises."""
    from packtool import terminal
    from packtool.verification import verify as check

    if attention is not None and model is None:
        raise Misuse("--attention is of the model; give --model, too")
    with terminal.progress(quiet) as listener:
        report = check(
            dataset,
            source,
            sample=sample,
            seed=seed,
            chat_template=chat_template,
            prompt_template=prompt_template,
            workers=workers,
            on_event=listener,
        )
    isolation = None
    if model is not None and report.ok:
        # Whatever a model's folder asks for, nothing is fetched.
        os.environ["HF_HUB_OFFLINE"] = "1"
        from packtool.torch.local_model import check_dataset

        isolation = check_dataset(dataset, model, attention)
    if json:
        ok = report.ok and (isolation is None or isolation.ok)
        more = {} if isolation is None else {"isolation": isolation.to_json()}
        terminal.print_json({**report.to_json(), "ok": ok, **more})
    else:
        terminal.print_report(report)
        if isolation is not None:
            terminal.print_isolation(isolation)
    if not report.ok or (isolation is not None and not isolation.ok):
        raise typer.Exit(1)


def run(arguments: list[str]) -> int:
    """Run a command: one line for whatever goes wrong, and the exit codes of the documentation."""
    code = _exit_code(arguments)
    pass_over_signals()
    return code


def _exit_code(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no such character is no fault
    try:
        # Not app(): it would make other exceptions of Ctrl-C and of a pipe that is closed.
        command = typer.main.get_command(app)
        _hide_types(command)
        with command.make_context("packtool", arguments or ["--help"]) as context:
            command.invoke(context)
        if sys.stdout is not None:  # as it is where standard output was closed
            sys.stdout.flush()
    except typer.Exit as done:
        return done.exit_code
    except _CLICK_ERROR as error:
        _print_error(_usage_line(error))
        return 2
    except PacktoolError as error:
        _print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt as stopped:
        message, code = stop_message(stopped, goes_on(arguments))
        _print_error(message)
        return code
    except BrokenPipeError:
        pass  # whoever read our output has gone; that is no fault, and there is nobody left to tell
    except MemoryError:
        kept = "finished work is kept, " if goes_on(arguments) else ""
        _print_error(f"out of memory; {kept}run the same command again with more of it")
        return BadData.exit_code
    except OSError as error:
        reason = error.strerror or str(error)
        if error.filename is None:  # whatever else packtool writes to has a name
            _print_error(f"standard output: {reason}")
        else:
            kept = "; finished work is kept, run the same command again" if goes_on(arguments) else ""
            _print_error(f"{error.filename}: {reason}{kept}")
        return BadData.exit_code
    finally:
        if not _output_works():
            # Python flushes once more at its end, and would complain then in its own words.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _hide_types(group: Any) -> None:
    """Take Python's types of the arguments out of the help; their names say what they are."""
    for command in group.commands.values():
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda **_: None


def _output_works() -> bool:
    try:
        if sys.stdout is not None:  # as it is where standard output was closed
            sys.stdout.flush()
    except OSError:
        return False
    return True


# Typer brings its own copy of click in some versions; the class that all usage errors share is found by name.
_CLICK_ERROR: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _usage_line(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "packtool"
    return f"{error.format_message()} ({command} --help lists what there is)"


def _print_error(message: str) -> None:
    from packtool.addresses import without_secrets
    from packtool.terminal import print_error

    print_error(without_secrets(message))
