"""``packtool show`` as a person meets it: with a terminal, through a pipe, with every kind of misuse."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packtool import cli, show
from tests import runs
from tests.views.made import CONTROLS, chat_dataset, hostile_dataset

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_dataset(tmp_path_factory.mktemp("chats") / "out")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_dataset(tmp_path_factory.mktemp("hostile") / "out")


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run ``packtool show`` in this process: exit code, standard output, standard error."""

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli._exit_code(["show", *map(str, arguments)])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return called


def on_a_terminal(*arguments: str | Path, **variables: str) -> str:
    """What the command writes to a terminal with colours."""
    main, side = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-m", "packtool", "show", *map(str, arguments)],
        stdout=side,
        stdin=side,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env={**environment, "TERM": "xterm-256color", "COLUMNS": "80", **variables},
    )
    os.close(side)
    written = b""
    while True:
        try:
            part = os.read(main, 65_536)
        except OSError:  # as Linux says that the other side is closed
            break
        if not part:
            break
        written += part
    os.close(main)
    assert process.wait(60) == 0, written
    return written.decode().replace("\r\n", "\n")


ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def test_the_same_words_stand_on_a_terminal_without_colour_and_in_a_pipe(chats: Path, call: Any) -> None:
    code, piped, _ = call(chats, "--full")
    assert code == 0
    assert "\x1b" not in piped
    coloured = on_a_terminal(chats, "--full")
    assert "\x1b[1;32m" in coloured, "what trains is bright"
    assert "\x1b[2m" in coloured, "what does not is dim"
    assert ESCAPES.sub("", coloured) == piped
    plain = on_a_terminal(chats, "--full", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", plain)
    assert ESCAPES.sub("", plain) == piped
    assert on_a_terminal(chats, "--full", TERM="dumb") == piped


def test_hostile_data_writes_no_control_character_to_a_terminal(hostile: Path) -> None:
    for view in (["--full"], ["--mask", "--tokens"], ["--json", "--tokens"]):
        written = ESCAPES.sub("", on_a_terminal(hostile, *view))
        assert not (CONTROLS - {"\n"}) & set(written), view


def test_json_is_what_the_function_gives(chats: Path, hostile: Path, call: Any) -> None:
    for dataset in (chats, hostile):
        code, out, _ = call(dataset, "--json", "--tokens")
        assert code == 0
        assert json.loads(out) == show(dataset).to_json(tokens=True)
        assert json.loads(call(dataset, "--json")[1]) == show(dataset).to_json()


def test_json_can_be_read_whatever_the_encoding_of_the_terminal(hostile: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "packtool", "show", str(hostile), "--json"],
        capture_output=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert json.loads(done.stdout.decode("ascii")) == show(hostile).to_json()


def test_a_page_is_written_whole_and_replaces_the_one_before(chats: Path, tmp_path: Path, call: Any) -> None:
    page = tmp_path / "packs.html"
    page.write_text("before")
    code, out, _ = call(chats, "--random", "2", "--html", page)
    assert code == 0
    assert str(page) in out.replace("\n", "")
    assert page.read_text().count("<h2") == 2
    assert runs.names(tmp_path) == ["packs.html"]


def test_all_packs_of_a_draw_are_shown_and_the_same_seed_draws_the_same(chats: Path, call: Any) -> None:
    packs = re.findall(r"━━ pack (\d+)", call(chats, "--random", "3", "--seed", "5")[1])
    assert packs == [str(pack.number) for pack in show(chats, random=3, seed=5).shown]
    assert len(packs) == 3


def test_a_document_is_shown_without_its_neighbours(chats: Path, call: Any) -> None:
    code, out, _ = call(chats, "--doc", "0")
    assert code == 0
    assert re.findall(r"── segment \d+ ── (\S+)", out) == ["chat.jsonl:1"]
    assert "not shown" in out


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--pack", "7"], 2, "has 7 packs, 0 to 6"),
        (["--pack", "-1"], 2, "has 7 packs, 0 to 6"),
        (["--pack", "one"], 2, "--pack"),
        (["--random", "8"], 2, "has 7 packs; ask for 1 to 7"),
        (["--doc", "12"], 2, "have 12 rows, so ids are 0 to 11"),
        (["--pack", "1", "--random", "1"], 2, "only one of"),
        (["--seed", "1"], 2, "--random"),
        (["--json", "--mask"], 2, "--json"),
        (["--html", "x.html", "--tokens"], 2, "--html"),
        (["--html", "x.txt"], 2, "must end in .html"),
        (["--html", "no/such/x.html"], 2, "no folder"),
    ],
)
def test_misuse_is_one_line(chats: Path, arguments: list[str], code: int, told: str, call: Any) -> None:
    ended, out, err = call(chats, *arguments)
    assert (ended, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert told in err


def test_lines_are_as_wide_as_the_terminal_or_as_columns_says(
    chats: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    widths = {None: 80, "40": 40, "3": 40, "100": 100, "999": 120, "wide": 80}
    for columns, width in widths.items():
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        for view in ([], ["--tokens"], ["--mask"]):
            lines = call(chats, *view)[1].splitlines()[:-1]  # the last one is a command, to be copied
            assert max(map(len, lines)) == width, (columns, view)
    narrow = ESCAPES.sub("", on_a_terminal(chats, COLUMNS="40")).splitlines()[:-1]
    assert max(map(len, narrow)) == 40


def test_a_page_may_not_stand_in_the_dataset(chats: Path, call: Any) -> None:
    code, _, err = call(chats, "--html", chats / "tokenizer" / "x.html")
    assert code == 2
    assert "write it elsewhere" in err


def test_a_page_that_cannot_be_written_is_one_line(chats: Path, call: Any) -> None:
    code, out, err = call(chats, "--html", "/proc/packs.html")
    assert (code, out) == (1, "")
    assert err.startswith("error: --html /proc/packs.html: cannot be written: ")
    assert len(err.splitlines()) == 1


def test_what_is_no_dataset_is_one_line(tmp_path: Path, call: Any) -> None:
    code, out, err = call(tmp_path)
    assert (code, out) == (1, "")
    assert err.splitlines() == [f"error: {tmp_path}: not a packed dataset: no manifest.json in it"]


def test_looking_loads_nothing_heavy(chats: Path) -> None:
    code = f"""
import sys
from packtool import cli
assert cli._exit_code(["show", {str(chats)!r}]) == 0
print([name for name in ("torch", "datasets", "transformers", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"
