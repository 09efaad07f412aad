"""The output folder: what is refused, what is done already, what --overwrite takes, what a reader sees meanwhile."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from packtool.comparison import plan
from packtool.config import PlanConfig
from packtool.errors import Misuse
from packtool.inspection import show
from packtool.output import OutputFolder, publishing_order, removing_order
from packtool.run import pack
from packtool.verification import verify
from tests import runs

ROOT = Path(__file__).parent.parent
datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of tokens."""
    records = [{"input_ids": [1 + (n * 7 + i) % 499 for i in range(2 + n * n % 61)]} for n in range(200)]
    return runs.write_jsonl(tmp_path_factory.mktemp("in") / "a.jsonl", records)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, source: Path) -> tuple[Path, Path]:
    """Two finished datasets of the same documents: 32 a pack and three shards, 64 a pack and two."""
    folder = tmp_path_factory.mktemp("two")
    runs.run(source, folder / "old", max_length=32, shards=3)
    runs.run(source, folder / "new", max_length=64, shards=2)
    return folder / "old", folder / "new"


class Stopped(BaseException):
    """A run that is stopped."""


def stopped_before_publishing(source: Path, output: Path, **options: Any) -> None:
    """Everything of a run but its last step."""

    def stop(_: object) -> None:
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputFolder, "publish", stop)
        with pytest.raises(Stopped):
            runs.run(source, output, **options)


# --- what stands there ---------------------------------------------------------------------------------------


def make_foreign(output: Path) -> None:
    output.mkdir()
    (output / "thesis.tex").write_text("years of work")


def make_foreign_parquet(output: Path) -> None:
    output.mkdir()
    (output / "train-00000-of-00001.parquet").write_text("someone else's")


def make_file(output: Path) -> None:
    output.write_text("a file")


def make_partial_file(output: Path) -> None:
    output.mkdir()
    (output / ".partial").write_text("a file")


def make_partial_link(output: Path) -> None:
    output.mkdir()
    (output.parent / "elsewhere").mkdir()
    (output / ".partial").symlink_to(output.parent / "elsewhere")


def make_dangling(output: Path) -> None:
    output.symlink_to(output.parent / "nowhere")


def make_other_manifest(output: Path) -> None:
    output.mkdir()
    (output / "manifest.json").write_text('{"name": "a web app"}')


def make_newer(output: Path) -> None:
    output.mkdir()
    (output / "manifest.json").write_text('{"format_version": 99}')


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_foreign, r"not empty \(thesis.tex\) and not a packed dataset; choose another folder"),
        (make_foreign_parquet, "not empty"),
        (make_file, "not a folder"),
        (make_partial_file, "cannot be made: File exists"),
        (make_partial_link, "a link; remove it"),
        (make_dangling, "a link to nowhere"),
        (make_other_manifest, "format_version is None; .*(nothing is overwritten|choose another folder)"),
        (make_newer, "format_version is 99; .*(nothing is overwritten|choose another folder)"),
    ],
)
def test_what_packtool_did_not_write_is_refused_and_not_touched(
    tmp_path: Path, source: Path, make: Callable[[Path], None], message: str, overwrite: bool
) -> None:
    make(tmp_path / "out")
    before = runs.state(tmp_path)
    with pytest.raises(Misuse, match=message):
        runs.run(source, tmp_path / "out", overwrite=overwrite)
    assert runs.state(tmp_path) == before


def test_a_folder_that_cannot_be_made_is_misuse(tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misuse, match=r"file/out: cannot be made: Not a directory"):
        runs.run(source, tmp_path / "file" / "out")


def test_nothing_is_written_into_a_dataset(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Misuse, match=r"--cache-dir .*/out/cache: in the output folder"):
        runs.run(source, out, cache_dir=out / "cache")
    runs.run(source, out)
    before = runs.names(out)
    (tmp_path / "link").symlink_to(out)
    for folder in (out / "sub", out / "tokenizer" / "sub", tmp_path / "link" / "sub"):
        with pytest.raises(Misuse, match="nothing may stand but the dataset"):
            runs.run(source, folder)
        with pytest.raises(Misuse, match="nothing may stand but the dataset"):
            runs.run(source, tmp_path / "other", cache_dir=folder)
        with pytest.raises(Misuse, match="nothing may stand but the dataset"):
            plan(PlanConfig(sources=str(source), tokenizer=str(runs.TOKENIZER), cache_dir=folder))
    assert runs.names(out) == before
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["run:1/out", "./a:b", "data:", "a%20b#c", "a b"])
def test_an_output_that_could_be_a_uri_is_a_folder(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    output = Path(name)
    manifest = runs.run(source, output, max_length=32)
    assert len(runs.rows(tmp_path / "in" / output)) == manifest.packs
    assert verify(output).ok
    assert show(output, pack=0).packs == manifest.packs
    loaded = datasets.load_dataset(str(tmp_path / "in" / output), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(loaded) == manifest.packs


def test_an_empty_folder_is_free_and_so_is_one_that_is_not_there(tmp_path: Path, source: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty2")
    (tmp_path / "empty2").mkdir()
    for name in ("empty", "deep/er/new", "link"):
        runs.run(source, tmp_path / name)
        assert OutputFolder(tmp_path / name).is_finished()


def test_misuse_found_late_leaves_no_folder(tmp_path: Path, source: Path) -> None:
    with pytest.raises(Misuse, match="no column"):
        runs.run(source, tmp_path / "out", field=["text=body"])
    assert runs.names(tmp_path) == []


# --- done already --------------------------------------------------------------------------------------------


def test_a_finished_run_of_the_same_command_says_so_and_changes_nothing(
    tmp_path: Path, source: Path, two: tuple[Path, Path]
) -> None:
    before = runs.state(two[0])
    heard = runs.Heard([])
    # What is no part of the command may differ.
    made = runs.config(
        source, two[0], max_length=32, shards=3, workers=2, on_bad_record="skip", max_left_out=5, cache_dir=tmp_path
    )
    manifest = pack(made, heard)
    assert manifest.max_length == 32
    assert heard.notices == ["this command is done already; nothing was changed"]
    assert runs.state(two[0]) == before
    assert runs.names(tmp_path) == [], "nothing was encoded"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_length": 64}, "max_length 64, not 32"),
        ({"seed": 1}, "seed 1, not 0"),
        ({"pad": True}, "pad yes, not no"),
        ({"strategy": "bfd", "max_segments": 3}, "strategy bfd, not bfd_split; overlong drop, not split; max_segments"),
        ({"limit": 5}, "limit 5, not none"),
        ({"shards": 2}, "shards 2, not 3"),
        ({"max_record_bytes": "1Mi"}, "max_record_bytes 1048576, not 67108864"),
    ],
)
def test_another_command_is_refused_with_what_differs(
    source: Path, two: tuple[Path, Path], options: dict[str, Any], told: str
) -> None:
    before = runs.state(two[0])
    with pytest.raises(Misuse, match=rf"holds the dataset of another command \({told}.*\); .*--overwrite"):
        runs.run(source, two[0], **{"max_length": 32, "shards": 3, **options})
    assert runs.state(two[0]) == before


def test_other_sources_and_another_tokenizer_are_another_command(
    tmp_path: Path, source: Path, two: tuple[Path, Path]
) -> None:
    copy = tmp_path / "b.jsonl"
    copy.write_bytes(source.read_bytes())
    with pytest.raises(Misuse, match=r"sources b\.jsonl, not a\.jsonl"):
        runs.run(copy, two[0], max_length=32, shards=3)
    shutil.copytree(runs.TOKENIZER, tmp_path / "tok")
    config = json.loads((tmp_path / "tok" / "tokenizer_config.json").read_text())
    (tmp_path / "tok" / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|im_end|>"}))
    with pytest.raises(Misuse, match=r"tokenizer digest"):
        runs.run(source, two[0], max_length=32, shards=3, tokenizer=str(tmp_path / "tok"))


def test_of_many_differences_the_sources_and_two_more_are_told(
    tmp_path: Path, source: Path, two: tuple[Path, Path]
) -> None:
    copy = tmp_path / "b.jsonl"
    copy.write_bytes(source.read_bytes())
    told = r"\(sources b\.jsonl, not a\.jsonl; max_length 64, not 32; seed 1, not 0; and 4 more\)"
    with pytest.raises(Misuse, match=told):
        runs.run(copy, two[0], max_length=64, seed=1, pad=True, limit=5, shards=2)


def test_a_source_that_has_changed_since_is_noticed(tmp_path: Path, source: Path) -> None:
    mine = tmp_path / "a.jsonl"
    mine.write_bytes(source.read_bytes())
    runs.run(mine, tmp_path / "out")
    stat = mine.stat()
    changed = source.read_bytes().replace(b"[1, ", b"[3, ")
    assert changed != mine.read_bytes()
    mine.write_bytes(changed)
    os.utime(mine, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    before = runs.state(tmp_path / "out")
    with pytest.raises(Misuse, match=rf"was packed from other data: {mine} has changed since; .*--overwrite"):
        runs.run(mine, tmp_path / "out")
    assert runs.state(tmp_path / "out") == before
    runs.run(mine, tmp_path / "out", overwrite=True)
    assert runs.state(tmp_path / "out") != before


def test_a_finished_run_that_lost_a_file_is_not_called_done(tmp_path: Path, source: Path) -> None:
    runs.run(source, tmp_path / "out")
    shard = runs.shards(tmp_path / "out")[0]
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(Misuse, match=rf"{shard}: is not as this command left it"):
        runs.run(source, tmp_path / "out")
    runs.run(source, tmp_path / "out", overwrite=True)
    shard.unlink()
    with pytest.raises(Misuse, match=rf"{shard}: is not as this command left it"):
        runs.run(source, tmp_path / "out")


def test_a_finished_dataset_is_not_replaced_by_an_unfinished_run_beside_it_unless_asked(
    tmp_path: Path, source: Path, two: tuple[Path, Path]
) -> None:
    """A run with --overwrite was stopped before it had replaced anything."""
    output = tmp_path / "out"
    shutil.copytree(two[0], output)
    stopped_before_publishing(source, output, max_length=64, shards=2, overwrite=True)
    assert runs.content(output)["manifest.json"] == runs.content(two[0])["manifest.json"]
    with pytest.raises(Misuse, match="another command"):
        runs.run(source, output, max_length=64, shards=2)
    heard = runs.Heard([])
    pack(runs.config(source, output, max_length=32, shards=3), heard)
    assert heard.notices == ["this command is done already; nothing was changed"]
    heard = runs.Heard([])
    pack(runs.config(source, output, max_length=64, shards=2, overwrite=True), heard)
    assert "2 of 2 shards were written before" in heard.notices
    assert runs.content(output) == runs.content(two[1])


def test_what_a_run_left_that_was_stopped_after_publishing_is_tidied_up(
    tmp_path: Path, source: Path, two: tuple[Path, Path]
) -> None:
    output = tmp_path / "out"
    original = OutputFolder.forget_unfinished

    def stop_before_the_last(self: OutputFolder) -> None:
        command = (self.partial / "command.json").read_bytes()
        original(self)
        (self.partial / "command.json").write_bytes(command)
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputFolder, "forget_unfinished", stop_before_the_last)
        with pytest.raises(Stopped):
            runs.run(source, output, max_length=64, shards=2)
    assert (output / ".partial" / "command.json").exists()
    heard = runs.Heard([])
    pack(runs.config(source, output, max_length=64, shards=2), heard)
    assert heard.notices == ["this command is done already; nothing was changed"]
    assert runs.content(output) == runs.content(two[1])
    assert not (output / ".partial").exists()


# --- unfinished runs -----------------------------------------------------------------------------------------


def test_an_unfinished_run_of_another_command_is_refused_until_overwritten(
    tmp_path: Path, source: Path, two: tuple[Path, Path]
) -> None:
    output = tmp_path / "out"
    stopped_before_publishing(source, output, max_length=32, shards=3)
    before = runs.state(output)
    with pytest.raises(Misuse, match=r"unfinished run of another command is here \(max_length 64, not 32; shards 2"):
        runs.run(source, output, max_length=64, shards=2)
    assert {path: raw for path, (_, _, raw) in runs.state(output).items()} == {
        path: raw for path, (_, _, raw) in before.items()
    }
    runs.run(source, output, max_length=64, shards=2, overwrite=True)
    assert runs.content(output) == runs.content(two[1])


def test_an_unfinished_run_of_other_library_versions_is_not_continued(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_before_publishing(source, tmp_path / "out")
    monkeypatch.setattr("packtool.job.versions", lambda: {"packtool": "0", "pyarrow": "0"})
    with pytest.raises(Misuse, match=r"another command is here \(versions packtool 0, not "):
        runs.run(source, tmp_path / "out")


def test_a_damaged_record_of_an_unfinished_run_is_refused_until_overwritten(tmp_path: Path, source: Path) -> None:
    stopped_before_publishing(source, tmp_path / "out")
    (tmp_path / "out" / ".partial" / "command.json").write_text("{")
    with pytest.raises(Misuse, match="unfinished run of another command"):
        runs.run(source, tmp_path / "out")
    runs.run(source, tmp_path / "out", overwrite=True)


def test_what_a_user_put_into_partial_stays(tmp_path: Path, source: Path) -> None:
    stopped_before_publishing(source, tmp_path / "out")
    (tmp_path / "out" / ".partial" / "notes").write_text("mine")
    runs.run(source, tmp_path / "out")
    assert runs.names(tmp_path / "out" / ".partial") == ["notes"]


# --- overwriting ---------------------------------------------------------------------------------------------


def test_overwriting_takes_only_what_packtool_wrote(tmp_path: Path, source: Path, two: tuple[Path, Path]) -> None:
    output = tmp_path / "out"
    shutil.copytree(two[0], output)
    mine = {"notes.txt": b"1", "train-00007-of-00009.parquet": b"2", "tokenizer/mine.json": b"3", "sub/README.md": b"4"}
    for name, raw in mine.items():
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_bytes(raw)
    runs.run(source, output, max_length=64, shards=2, overwrite=True)
    assert runs.content(output) == {**runs.content(two[1]), **mine}


def test_a_foreign_file_in_the_way_is_refused_before_anything_is_removed(
    tmp_path: Path, source: Path, two: tuple[Path, Path]
) -> None:
    output = tmp_path / "out"
    shutil.copytree(two[0], output)
    (output / "train-00001-of-00002.parquet").write_bytes(b"mine")
    before = runs.content(output, without_run=False)
    with pytest.raises(Misuse, match=r"train-00001-of-00002.parquet: in the way, and not written by packtool"):
        runs.run(source, output, max_length=64, shards=2, overwrite=True)
    after = runs.content(output, without_run=False)
    assert {name: raw for name, raw in after.items() if not name.startswith(".partial")} == before
    (output / "train-00001-of-00002.parquet").unlink()
    runs.run(source, output, max_length=64, shards=2, overwrite=True)
    assert runs.content(output) == runs.content(two[1])


FORGED = [
    ["../victim.txt"],
    ["/victim.txt"],
    ["tokenizer/../../victim.txt"],
    ["thesis.tex"],
    ["tokenizer"],
    [3],
    {"README.md": 1},
]


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_list_of_what_to_remove_removes_nothing(tmp_path: Path, source: Path, forged: Any) -> None:
    output = tmp_path / "out"
    (output / ".partial").mkdir(parents=True)
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    (output / ".partial" / "remove.json").write_text(json.dumps(forged))
    runs.run(source, output, max_length=32)  # no run was begun there, so none was publishing
    assert victim.read_text() == "mine"
    assert not (output / ".partial").exists()
    # And where one was, its own list was forged.
    other = tmp_path / "other"
    stopped_before_publishing(source, other, max_length=32)
    (other / "thesis.tex").write_text("years of work")
    (other / ".partial" / "remove.json").write_text(json.dumps(forged))
    with pytest.raises(Misuse, match=r"remove.json: not a list of the files of a dataset; remove it"):
        runs.run(source, other, max_length=32)
    assert victim.read_text() == "mine"
    assert (other / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("raw", [b'["a"', b"[" * 200_000, b"\xff"], ids=["cut", "deep", "bytes"])
@pytest.mark.parametrize("name", ["command.json", "remove.json"])
def test_a_damaged_file_of_an_unfinished_run_is_named(tmp_path: Path, source: Path, name: str, raw: bytes) -> None:
    output = tmp_path / "out"
    stopped_before_publishing(source, output, max_length=32)
    (output / ".partial" / name).write_bytes(raw)
    with pytest.raises(
        Misuse, match="its record cannot be read" if name == "command.json" else "remove.json: not JSON"
    ):
        runs.run(source, output, max_length=32)


def test_a_file_that_packtool_does_not_write_is_not_published(tmp_path: Path, source: Path) -> None:
    output = tmp_path / "out"
    stopped_before_publishing(source, output, max_length=32)
    (output / ".partial" / "remove.json").write_text("[]")
    (output / ".partial" / "ready" / "deep" / "er").mkdir(parents=True)
    (output / ".partial" / "ready" / "deep" / "er" / "file").write_text("a file")
    with pytest.raises(Misuse, match=r"ready/deep/er/file: not a file that packtool wrote"):
        runs.run(source, output, max_length=32)


def test_a_manifest_that_lists_a_users_file_does_not_give_it_away(
    tmp_path: Path, source: Path, two: tuple[Path, Path]
) -> None:
    output = Path(shutil.copytree(two[0], tmp_path / "out"))
    (output / "thesis.tex").write_text("years of work")
    values = json.loads((output / "manifest.json").read_bytes())
    values["files"].append({**values["files"][0], "name": "thesis.tex"})
    (output / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(Misuse, match=r"manifest.json: lists thesis.tex, which packtool does not write"):
        runs.run(source, output, max_length=64, overwrite=True)
    assert (output / "thesis.tex").read_text() == "years of work"


def test_a_link_in_place_of_the_tokenizer_folder_is_not_followed(
    tmp_path: Path, source: Path, two: tuple[Path, Path]
) -> None:
    output = tmp_path / "out"
    shutil.copytree(two[0], output)
    shutil.move(output / "tokenizer", tmp_path / "precious")
    (output / "tokenizer").symlink_to(tmp_path / "precious")
    before = runs.state(tmp_path)
    with pytest.raises(Misuse, match="tokenizer: a link"):
        runs.run(source, output, max_length=64, shards=2, overwrite=True)
    assert runs.state(tmp_path) == before


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are moved to their places or removed from them, in order."""
    done: list[str] = []
    replace, unlink = os.replace, os.unlink

    def placed(source: Any, target: Any) -> None:
        if "/.partial/ready/" in str(source) and "/.partial/" not in str(target):
            done.append(f"+{target}")
        replace(source, target)

    def removed(path: Any, **options: Any) -> None:
        if "/.partial/" not in str(path) and "/" in str(path):  # rmtree gives bare names
            done.append(f"-{path}")
        unlink(path, **options)

    monkeypatch.setattr(os, "replace", placed)
    monkeypatch.setattr(os, "unlink", removed)
    return done


def test_the_card_is_first_to_come_and_last_to_go_and_the_manifest_the_reverse(
    tmp_path: Path, source: Path, two: tuple[Path, Path], changes: list[str]
) -> None:
    output = tmp_path / "out"
    shutil.copytree(two[0], output)
    changes.clear()
    runs.run(source, output, max_length=64, shards=2, overwrite=True)
    rest = [
        "rejects.jsonl",
        "run.json",
        *(f"tokenizer/{path.name}" for path in sorted((output / "tokenizer").iterdir())),
    ]
    old = [f"train-0000{n}-of-00003.parquet" for n in range(3)]
    new = [f"train-0000{n}-of-00002.parquet" for n in range(2)]
    assert changes == [
        *(f"-{output / name}" for name in ["manifest.json", *old, *rest, "README.md"]),
        *(f"+{output / name}" for name in ["README.md", *new, *rest, "manifest.json"]),
    ]


def test_orders_hold_for_any_number_of_shards() -> None:
    names = ["manifest.json", "z.txt", "README.md", "train-00001-of-00002.parquet", "tokenizer/README.md"]
    assert publishing_order(names) == [names[2], names[3], names[4], names[1], names[0]]
    assert removing_order(names) == [names[0], names[3], names[4], names[1], names[2]]


# --- what a reader sees --------------------------------------------------------------------------------------


def seen(output: Path, cache: Path) -> int | None:
    """Rows that datasets.load_dataset gives, or None where it fails."""
    try:
        return len(datasets.load_dataset(str(output), split="train", cache_dir=str(cache)))
    except (FileNotFoundError, ValueError, datasets.exceptions.DatasetGenerationError):
        return None
    finally:
        shutil.rmtree(cache, ignore_errors=True)


@pytest.mark.parametrize("overwriting", [False, True])
def test_a_reader_sees_all_or_nothing_at_every_step_of_publishing(
    tmp_path: Path, source: Path, two: tuple[Path, Path], overwriting: bool
) -> None:
    output = tmp_path / "out"
    if overwriting:
        shutil.copytree(two[0], output)
    counts = [len(runs.rows(folder)) for folder in two]
    assert counts[0] != counts[1]
    found: list[int | None] = []

    def look(change: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any, **options: Any) -> Any:
            visible = "/.partial/" not in str(arguments[-1])
            result = change(*arguments, **options)
            if visible and str(output) in str(arguments[-1]):
                found.append(seen(output, tmp_path / "cache"))
            return result

        return changing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", look(os.replace))
        original = OutputFolder.publish

        def publish(self: OutputFolder) -> None:
            found.append(seen(output, tmp_path / "cache"))
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(os, "unlink", look(os.unlink))
                original(self)

        patch.setattr(OutputFolder, "publish", publish)
        runs.run(source, output, max_length=64, shards=2, overwrite=overwriting)
    assert len(found) > (18 if overwriting else 8)
    assert found[0] == (counts[0] if overwriting else None)
    assert found[-1] == counts[1]
    gone = found.index(None)
    back = found.index(counts[1])
    assert set(found[:gone]) <= {counts[0]}
    assert set(found[gone:back]) == {None}
    assert set(found[back:]) == {counts[1]}


# --- two at once ---------------------------------------------------------------------------------------------


@pytest.fixture
def busy(tmp_path: Path, source: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run of another process on ``out``, which stands still in the middle."""
    script = f"""
import time
from pathlib import Path
from packtool.run import pack
from tests import runs
def stand(event):
    Path({str(tmp_path / "begun")!r}).touch()
    time.sleep(100)
pack(runs.config(Path({str(source)!r}), Path({str(tmp_path / "out")!r})), stand)
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()


def test_a_second_run_is_refused_at_once_and_takes_over_when_the_first_is_dead(
    tmp_path: Path, source: Path, busy: subprocess.Popen[bytes]
) -> None:
    output = tmp_path / "out"
    for overwrite in (False, True):
        with pytest.raises(Misuse, match=f"^{output}: in use by process {busy.pid} on "):
            runs.run(source, output, overwrite=overwrite)
    busy.send_signal(signal.SIGKILL)
    busy.wait()
    runs.run(source, output)
    assert OutputFolder(output).is_finished()
    assert not (output / ".partial").exists()
