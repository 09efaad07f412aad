"""plan: its numbers are those of the datasets that pack then makes, and it leaves nothing behind."""

import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool import cli, comparison, intake
from packtool.comparison import Comparison, plan
from packtool.config import PlanConfig
from packtool.errors import BadData, Misuse, PacktoolError
from packtool.manifest import read_manifest
from packtool.outcome import Outcome
from packtool.progress import Progress, Stage
from packtool.readers import cut_units
from packtool.run import pack
from packtool.sampling import choose_records
from packtool.statistics import stats
from tests import runs

ROOT = Path(__file__).parent.parent
OVERLONG = {
    "bfd": ["drop", "truncate"],
    "bfd_split": ["split"],
    "wrapped": ["split"],
    "in_order": ["drop", "truncate", "split"],
}


def config(source: Path, **options: Any) -> PlanConfig:
    """Options in this process with the sample tokenizer, unless ``options`` say otherwise."""
    values = {"sources": [str(source)], "tokenizer": str(runs.TOKENIZER), "workers": 1, **options}
    return PlanConfig.checked(values)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made; whatever is left there was left behind."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    return place


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


# --- its numbers are pack's ----------------------------------------------------------------------------------


def assert_as_packed(outcome: Outcome, folder: Path, lengths: dict[int, int] | None = None) -> None:
    """Every number of the outcome is the dataset's, ``lengths`` being those of the documents read, if known."""
    packed, manifest = stats(folder), read_manifest(folder)
    assert outcome.refused == ""
    for name in ("strategy", "max_length", "packs", "lower_bound_packs", "fill", "documents", "tokens", "segments"):
        assert getattr(outcome, name) == getattr(packed, name), name
    assert outcome.overlong == manifest.options["overlong"]
    assert outcome.segments_per_pack == packed.segments_per_pack
    assert outcome.attention_cost == packed.attention_cost
    assert outcome.attention_cost_share == packed.attention_cost_share
    assert outcome.documents_left_out == packed.left_out.documents == manifest.documents.left_out
    assert outcome.tokens_lost == manifest.tokens.into - manifest.tokens.out
    if lengths is not None:
        whole = 0
        for row in runs.rows(folder):
            for doc_id, _, ids in runs.segments(row):
                whole += doc_id >= 0 and len(ids) == lengths[doc_id]
        assert outcome.documents_cut == packed.documents - whole


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any], list[int]]:
    longest = draw(st.integers(2, 24))
    ids = st.lists(st.integers(1, 500), max_size=3 * longest)
    marked = st.lists(st.booleans(), min_size=1, max_size=4)

    def document(ids: list[int], marks: list[bool] | None) -> dict[str, Any]:
        return {"ids": ids, "trained": marks and (marks * (len(ids) + 1))[: len(ids)]}

    marks = marked if draw(st.booleans()) else st.none()
    documents = draw(st.lists(st.builds(document, ids, marks), min_size=1, max_size=25))
    strategy = draw(st.sampled_from(sorted(OVERLONG)))
    options = {
        "strategy": strategy,
        "overlong": draw(st.sampled_from(OVERLONG[strategy])),
        "max_segments": draw(st.one_of(st.none(), st.integers(1, 4))),
        "group_tokens": draw(st.sampled_from([1, 7, 40, 10**9])),
        "seed": draw(st.integers(0, 3)),
        "limit": draw(st.sampled_from([None, None, 1, 7])),
        **({} if strategy == "in_order" else {"shuffle": draw(st.booleans())}),
    }
    return runs.token_records(documents), options, sorted({longest, draw(st.integers(2, 30))})


@given(cases())
def test_every_number_is_that_of_the_dataset_that_pack_makes(
    case: tuple[list[dict[str, Any]], dict[str, Any], list[int]],
) -> None:
    records, options, lengths = case
    sizes = {doc_id: len(record["input_ids"]) for doc_id, record in enumerate(records)}
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        small_units(patch, 200)
        folder = Path(name)
        source = runs.write_jsonl(folder / "a.jsonl", records)
        shared = {"format": "tokens", "on_bad_record": "skip", "cache_dir": folder / "cache", **options}
        asked = config(source, max_length=lengths, **shared)
        made: dict[int, str] = {}
        for length in lengths:
            try:
                runs.run(source, folder / str(length), max_length=length, pad=length % 2 == 0, **shared)
            except BadData as error:
                made[length] = str(error)
        if len(made) == len(lengths):
            with pytest.raises(BadData) as caught:
                plan(asked)
            assert str(caught.value) == made[lengths[0]]
            return
        found = plan(asked)
        assert [outcome.max_length for outcome in found.outcomes] == lengths
        for outcome in found.outcomes:
            if outcome.max_length in made:
                assert outcome.refused == made[outcome.max_length]
                assert (outcome.packs, outcome.tokens, outcome.documents) == (0, 0, 0)
            else:
                assert_as_packed(outcome, folder / str(outcome.max_length), sizes)


def small_units(patch: pytest.MonkeyPatch, unit_bytes: int) -> None:
    """Cut sources into small units, in this process."""

    def cut(*arguments: Any, **options: Any) -> Any:
        return cut_units(*arguments, **{**options, "unit_bytes": unit_bytes})

    patch.setattr("packtool.intake.cut_units", cut)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("text", {}),
        ("instructions", {"overlong": "truncate", "max_segments": 5}),
        ("chat", {"overlong": "truncate_turns", "train_on": "last"}),
        ("chat", {"seed": 3, "group_tokens": 20_000}),
    ],
)
def test_the_numbers_of_the_sample_data_are_those_of_pack(
    tmp_path: Path, workplace: Path, sample_data: Path, name: str, options: dict[str, Any]
) -> None:
    source, shared = sample_data / f"{name}.jsonl", {"limit": 150, "cache_dir": tmp_path / "cache", **options}
    found = plan(config(source, max_length=[300, 2048], **shared))
    assert len(found.outcomes) == (4 if "overlong" in options else 8)
    for outcome in found.outcomes:
        output = tmp_path / f"{outcome.strategy}-{outcome.max_length}"
        heard = runs.Heard([])
        packing = runs.config(source, output, strategy=outcome.strategy, max_length=outcome.max_length, **shared)
        manifest = pack(packing, heard)
        assert_as_packed(outcome, output)
        assert any("tokenized before" in notice for notice in heard.notices)  # the tokens are pack's
        assert (found.records, found.documents, found.tokens) == (
            manifest.records,
            sum(entry.documents for entry in manifest.sources),
            manifest.tokens.into,
        )
    assert left(workplace) == []


def test_the_numbers_do_not_depend_on_the_workers(workplace: Path, sample_data: Path) -> None:
    one, two = (
        plan(config(sample_data / "text.jsonl", max_length="512", workers=workers, limit=100)) for workers in (1, 2)
    )
    assert one == two
    assert left(workplace) == []


# --- what it does and leaves -------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A few documents of text."""
    return runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "word " * (1 + n % 40)} for n in range(60)])


def test_it_tokenizes_once_and_leaves_nothing(
    tmp_path: Path, workplace: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(task: Any) -> Any:
        calls.append(task.unit.index)
        return real(task)

    real = intake.tokenize_unit
    monkeypatch.setattr(intake, "tokenize_unit", counted)
    monkeypatch.chdir(tmp_path)
    before = runs.state(tmp_path)
    heard = runs.Heard([])
    found = plan(config(source, max_length="16,32,64"), heard)
    assert calls == [0]
    assert len(found.outcomes) == 12
    assert [name for name in runs.state(tmp_path) if name not in before] == []
    assert left(workplace) == []
    planned = [event for event in heard.events if isinstance(event, Progress) and event.stage is Stage.PLAN]
    assert [(event.done, event.total, event.unit) for event in planned] == [(n, 12, "plans") for n in range(13)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BadData("no"), RuntimeError("bug")])
def test_the_temporary_folder_goes_whatever_happens(
    workplace: Path, source: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: Any) -> None:
        assert len(left(workplace)) == 1
        raise error

    monkeypatch.setattr(comparison, "make_plan", fail)
    with pytest.raises(type(error)):
        plan(config(source))
    assert left(workplace) == []


def test_a_full_temporary_folder_is_one_line_that_says_what_to_do(
    workplace: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any, __: Any, ___: Any, folder: Path, ____: Any) -> None:
        raise OSError(28, "No space left on device", str(folder / "segments.bin"))

    monkeypatch.setattr(comparison, "make_plan", fail)
    with pytest.raises(PacktoolError, match=r"packtool-scratch-.*: No space left on device; set TMPDIR"):
        plan(config(source))
    monkeypatch.setattr(tempfile, "tempdir", str(workplace / "missing"))
    with pytest.raises(PacktoolError, match="no temporary folder can be made: No such file or directory; set TMPDIR"):
        plan(config(source))


def test_ctrl_c_leaves_nothing(tmp_path: Path, workplace: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"".join(b'{"text": "%s"}\n' % (b"word %d " % n * 3000) for n in range(1500)))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "packtool",
            "plan",
            source,
            "-t",
            runs.TOKENIZER,
            "--workers",
            "2",
            "--encoder",
            "tokenizers",
        ],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not any(workplace.glob("packtool-scratch-*/*/store/*/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert err.splitlines()[-1] == "error: stopped"
    assert left(workplace) == []


def test_a_cache_is_filled_and_used(tmp_path: Path, workplace: Path, source: Path) -> None:
    cache = tmp_path / "cache"
    first = plan(config(source, cache_dir=cache, max_length=64))
    heard = runs.Heard([])
    second = plan(config(source, cache_dir=cache, max_length=64), heard)
    assert first == second
    assert heard.notices == ["1 of 1 parts of the input were tokenized before"]
    assert left(workplace) == []


# --- a sample ------------------------------------------------------------------------------------------------


def test_a_sample_of_everything_is_no_estimate(workplace: Path, source: Path) -> None:
    heard = runs.Heard([])
    assert plan(config(source, max_length=64, sample=100), heard) == plan(config(source, max_length=64))
    assert heard.notices == ["there are only 60 records; all of them are read"]
    assert left(workplace) == []


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_documents_all_alike_are_estimated_exactly(
    tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    source = tmp_path / f"a{suffix}"
    records = [{"input_ids": list(range(7, 17)), "labels": [-100, *range(8, 17)]} for _ in range(1_000)]
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), source, row_group_size=4)
    else:
        lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
        source.write_bytes(gzip.compress(lines) if suffix.endswith(".gz") else lines)
    small_units(monkeypatch, 300)  # so that most parts of the input have no record in the sample
    made: list[int] = []

    def counted(task: Any) -> Any:
        found = real(task)
        made.append(found.summary.documents)
        return found

    real = intake.tokenize_unit
    monkeypatch.setattr(intake, "tokenize_unit", counted)
    found = plan(config(source, max_length=20, sample=100, strategy="bfd,wrapped"))
    assert (sum(made), 0 in made) == (100, True)
    assert (found.sampled, found.records, found.documents, found.tokens) == (100, 1_000, 1_000, 10_000)
    for outcome in found.outcomes:
        assert (outcome.packs, outcome.fill, outcome.documents, outcome.tokens) == (500, 1.0, 1_000, 10_000)
        assert (outcome.documents_left_out, outcome.tokens_lost, outcome.segments) == (0, 0, 1_000)
        assert (outcome.attention_cost, outcome.attention_cost_share) == (100_000, 0.5)
        assert outcome.packs_interval is not None
        assert outcome.packs_interval.low <= 500 <= outcome.packs_interval.high < 503
    assert left(workplace) == []


def test_a_sample_of_the_sample_data_says_how_far_off_it_may_be(
    tmp_path: Path, workplace: Path, sample_data: Path
) -> None:
    source, cache = sample_data / "text.jsonl", tmp_path / "cache"
    true = plan(config(source, max_length=[512, 1024]))
    for seed in range(3):
        found = plan(config(source, max_length=[512, 1024], sample=200, seed=seed, cache_dir=cache))
        inside = 0
        for outcome, exact in zip(found.outcomes, true.outcomes, strict=True):
            assert (outcome.strategy, outcome.max_length) == (exact.strategy, exact.max_length)
            assert outcome.packs_interval is not None
            assert outcome.fill_interval is not None
            inside += outcome.packs_interval.low <= exact.packs <= outcome.packs_interval.high
            inside += outcome.fill_interval.low <= exact.fill <= outcome.fill_interval.high
            assert 0.7 < outcome.tokens / exact.tokens < 1.4
        assert inside >= 14
        assert found == plan(config(source, max_length=[512, 1024], sample=200, seed=seed, workers=2))
    assert not cache.exists()  # pack has no use for a part of the tokens
    assert left(workplace) == []


def test_a_bad_record_in_the_sample_is_named_by_its_own_line(
    tmp_path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Any] = [{"text": f"some words {n}"} for n in range(400)]
    chosen = choose_records(400, 100, 0).tolist()
    lines[chosen[70]] = b"{"
    lines[next(n for n in range(400) if n not in chosen)] = b"["  # not in the sample, so not seen
    source = runs.write_jsonl(tmp_path / "a.jsonl", lines)
    small_units(monkeypatch, 500)
    with pytest.raises(BadData, match=rf"a\.jsonl:{chosen[70] + 1}: bad_json"):
        plan(config(source, sample=100))
    found = plan(config(source, sample=100, on_bad_record="skip", max_length=64))
    assert (found.sampled, found.records, found.bad_records, found.documents) == (100, 400, 4, 396)
    assert left(workplace) == []


def test_the_table_of_a_sample_fits_80_columns_and_says_how_sure_it_is(
    workplace: Path, sample_data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ("plan", sample_data / "chat.jsonl", "-t", runs.TOKENIZER, "--workers", "1", "-q")
    assert call(*command, "-L", "512,2048,131072", "--sample", "120", "--overlong", "truncate_turns") == 0
    out = capfd.readouterr().out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines() if not line.startswith("packtool "))
    assert "…" not in out
    told = " ".join(out.split())
    assert "estimated from 120 of 356 records: for 19 of 20 such samples" in told
    assert "1 in 40 records" in told
    assert ": by the sample " in told
    assert left(workplace) == []


# --- what it refuses -------------------------------------------------------------------------------------------


def test_a_run_that_would_stop_says_so_in_its_place(source: Path) -> None:
    found = plan(config(source, overlong="error", max_length=[16, 64]))
    assert [(outcome.max_length, outcome.strategy) for outcome in found.outcomes if outcome.refused] == [
        (16, "bfd"),
        (16, "in_order"),
    ]
    assert f"{source}:14: overlong: 17 tokens, over --max-length 16" in found.outcomes[0].refused
    assert found.advice.max_length == 64
    with pytest.raises(BadData, match=":14: overlong"):
        plan(config(source, overlong="error", max_length=16))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "bfd,bfd_split", "overlong": "truncate"}, "--overlong truncate does not go with .*bfd_split"),
        ({"strategy": ["bfd", "in_order"], "shuffle": True}, "--shuffle does not go with --strategy in_order"),
        ({"max_length": "2048,1"}, "--max-length: input should be greater than or equal to 2"),
        ({"max_length": "2048,many"}, "--max-length: takes a whole number"),
        ({"max_length": []}, "--max-length"),
        ({"strategy": "bfd,best"}, "--strategy: input should be 'bfd'"),
        ({"sample": 10}, "--sample: input should be greater than or equal to 100"),
        ({"output": "out"}, "unknown name 'output'"),
        ({"sources": []}, "SOURCE is missing"),
        ({"overlong": "truncate_turns"}, "--overlong truncate_turns is for conversations"),
        ({"train_on": "all"}, "--train-on is for conversations"),
    ],
)
def test_misuse_is_one_line(workplace: Path, source: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Misuse, match=message) as caught:
        plan(config(source, **options))
    assert "\n" not in str(caught.value)
    assert left(workplace) == []


def test_a_bad_record_stops_it_as_it_stops_pack(workplace: Path, tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "some words"}, b"{", {"text": "and more of them"}])
    with pytest.raises(BadData, match=r"a\.jsonl:2: bad_json"):
        plan(config(source))
    found = plan(config(source, on_bad_record="skip"))
    assert (found.records, found.bad_records, found.documents) == (3, 1, 2)
    assert left(workplace) == []


def test_strategies_that_do_not_go_with_the_options_are_not_tried(source: Path) -> None:
    def tried(**options: Any) -> list[str]:
        return [outcome.strategy for outcome in plan(config(source, max_length=64, **options)).outcomes]

    assert tried() == ["bfd", "bfd_split", "wrapped", "in_order"]
    assert tried(shuffle=True) == ["bfd", "bfd_split", "wrapped"]
    assert tried(overlong="split") == ["bfd_split", "wrapped", "in_order"]
    assert tried(overlong="drop") == ["bfd", "in_order"]
    assert tried(strategy="wrapped,bfd,wrapped") == ["wrapped", "bfd"]


def test_one_config_file_serves_plan_and_pack(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "pack.toml"
    path.write_text(
        f"sources = ['{source}']\ntokenizer = '{runs.TOKENIZER}'\noutput = 'out'\nmax_length = 64\nstrategy = 'bfd'\n"
        "shards = 1\npad = true\noverwrite = true\nsample = 100\noverlong = 'drop'\n"
    )
    asked = PlanConfig.from_toml(path, {})
    assert (asked.max_length, asked.strategy, asked.sample) == ((64,), ("bfd",), 100)
    packing = type(runs.config(source, tmp_path)).from_toml(path, {})
    assert (packing.max_length, packing.shards, packing.pad) == (64, 1, True)


# --- the command -----------------------------------------------------------------------------------------------


def call(*arguments: str | Path) -> int:
    return cli._exit_code([str(argument) for argument in arguments])


def test_the_table_fits_80_columns_and_ends_with_the_advice(
    workplace: Path, sample_data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ("plan", sample_data / "chat.jsonl", "-t", runs.TOKENIZER, "--workers", "1", "--limit", "90", "-q")
    assert call(*command, "-L", "512,2048,131072") == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    assert all(len(line.rstrip()) <= 80 for line in shown.out.splitlines() if not line.startswith("packtool "))
    assert "…" not in shown.out
    rows = [line.split() for line in shown.out.splitlines() if line.strip()[:1].isdigit()][1:]
    assert [row[:2] for row in rows] == [
        [length, name] for length in ("512", "2048", "131072") for name in ("bfd", "bfd_split", "wrapped", "in_order")
    ]
    assert "advice: --strategy bfd --max-length " in shown.out
    assert left(workplace) == []


def test_json_is_the_plain_data_of_the_python_function(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("plan", source, "-t", runs.TOKENIZER, "-L", "64,1Ki", "-s", "bfd", "--json", "-q") == 0
    found = json.loads(capfd.readouterr().out)
    assert found == json.loads(json.dumps(plan(config(source, max_length=[64, 1024], strategy="bfd")).to_json()))
    assert set(found) == set(Comparison.__dataclass_fields__)
    assert set(found["outcomes"][0]) == set(Outcome.__dataclass_fields__)
    documented = (ROOT / "docs" / "cli.md").read_text()
    documented = documented[documented.index("`packtool plan --json`") :].partition("\n\n")[0]
    for name in [*found, *found["outcomes"][0], *found["advice"]]:
        assert name in documented, name


def test_progress_is_a_line_a_stage_on_standard_error(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("plan", source, "-t", runs.TOKENIZER, "-L", "64,128", "--workers", "1", "--json") == 0
    read, planned = capfd.readouterr().err.splitlines()
    assert read.startswith("read and tokenize: 0.0 MB of 0.0 MB")
    assert planned == "plan: 8 plans of 8 plans"


def test_packs_that_nothing_can_fill_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records = [{"input_ids": list(range(1, 40 + n % 5))} for n in range(50)]
    source = runs.write_jsonl(tmp_path / "a.jsonl", records)
    assert call("plan", source, "-t", runs.TOKENIZER, "-L", "64,70", "-s", "bfd", "-q") == 0
    out = " ".join(capfd.readouterr().out.split())
    assert out.count("since most hold a piece of more than half of one, beside which little fits") == 1
    assert call("plan", source, "-t", runs.TOKENIZER, "-L", "64,2100", "-s", "bfd", "-q") == 0
    assert "more than half" not in capfd.readouterr().out, "the length advised has full packs"
    assert call("pack", source, "-t", runs.TOKENIZER, "-L", "64", "-s", "bfd", "-o", tmp_path / "out") == 0
    assert "most packs hold a piece of more than half of max_length" in " ".join(capfd.readouterr().out.split())


def test_text_of_a_refused_run_is_shown_without_control_characters(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = runs.write_jsonl(tmp_path / "a\x1b[31m.jsonl", [{"text": "word " * n} for n in (10, 60)])
    assert call("plan", source, "-t", runs.TOKENIZER, "-L", "16,64", "--overlong", "error", "-q") == 0
    out = capfd.readouterr().out
    assert "\x1b" not in out
    assert "pack would stop" in out
