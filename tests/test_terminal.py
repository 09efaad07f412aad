"""What a person is shown: one line for a program, whole words on a terminal, and nothing advised that fails."""

import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from packtool import terminal
from packtool.cli import _exit_code
from packtool.manifest import read_manifest
from packtool.panics import unseen_panics
from packtool.terminal import _Console
from tests import chats, runs

MESSAGE = "out: holds the dataset of another command; choose another folder, or --overwrite it"


@pytest.mark.parametrize("width", [30, 80])
def test_an_error_is_one_line_off_a_terminal_and_whole_words_on_one(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for on_terminal in (False, True):
        file = io.StringIO()
        made = _Console(
            file=file, width=width, force_terminal=on_terminal, color_system=None, soft_wrap=True, highlight=False
        )
        monkeypatch.setattr(terminal, "console", lambda made=made, **_: made)
        terminal.print_error(MESSAGE)
        lines = file.getvalue().splitlines()
        assert " ".join(line.strip() for line in lines) == f"error: {MESSAGE}"
        assert (len(lines) == 1) is not on_terminal
        assert not on_terminal or max(map(len, lines)) <= width


def packed(folder: Path, capfd: pytest.CaptureFixture[str], records: list[dict[str, Any]], *options: str) -> str:
    source = folder / "a.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    arguments = ["pack", str(source), "-o", str(folder / "out"), "-t", str(runs.TOKENIZER), "--workers", "1", *options]
    assert _exit_code(arguments) == 0
    return capfd.readouterr().out


def test_bars_move_while_standard_error_leads_elsewhere(capfd: pytest.CaptureFixture[str]) -> None:
    shown = terminal.console(error=True)
    with terminal._own_way(shown), unseen_panics():
        shown.print("moving")
        assert capfd.readouterr().err == "moving\n"
    shown.print("after")
    assert capfd.readouterr().err == "after\n"


def test_a_small_loss_is_a_labelled_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records = [{"input_ids": list(range(1, 60))} for _ in range(200)] + [{"input_ids": [1] * 65}]
    out = packed(tmp_path, capfd, records, "-L", "64", "-s", "bfd")
    assert "\nleft out     1 document, 65 tokens: overlong (rejects.jsonl says where)\n" in out
    assert "\n             a larger --max-length keeps more, or --strategy bfd_split without --overlong\n" in out


def test_no_split_is_advised_for_conversations(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "word " * 100}]
    records = [{"messages": talk}, {"messages": [talk[0], {"role": "assistant", "content": "Hi"}]}]
    (tmp_path / "chat.jinja").write_text(chats.marked("chatml"))
    out = packed(tmp_path, capfd, records, "-L", "64", "--chat-template", str(tmp_path / "chat.jinja"))
    assert "1 x overlong" in out
    assert "a larger --max-length keeps more" in out
    assert "bfd_split" not in out


def test_plan_ends_with_the_command_that_packs_as_advised(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = runs.write_jsonl(tmp_path / "a b.jsonl", [{"body": "word " * n} for n in range(2, 30)])
    given = ["-t", str(runs.TOKENIZER), "--field", "text=body", "--no-shuffle", "--workers", "1"]
    assert _exit_code(["plan", str(source), *given, "-L", "32,64", "-q"]) == 0
    words = shlex.split(capfd.readouterr().out.splitlines()[-1])
    assert words[:2] == ["packtool", "pack"]
    words[words.index("packed")] = str(tmp_path / "out")
    assert _exit_code(words[1:]) == 0
    options = read_manifest(tmp_path / "out").options
    assert options["shuffle"] is False
    assert words[words.index("-L") + 1] == str(options["max_length"])
    assert words[words.index("-s") + 1] == options["strategy"]


@pytest.mark.parametrize("width", [50, 60, 70, 75, 76, 77, 80])
def test_a_narrow_terminal_gets_fewer_columns_but_whole_ones(
    width: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "word " * n} for n in range(2, 30)])
    assert _exit_code(["plan", str(source), "-t", str(runs.TOKENIZER), "-L", "32", "--workers", "1", "-q"]) == 0
    lines = capfd.readouterr().out.splitlines()[:-1]
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert any("bfd_split" in line for line in lines)
    assert ("on a wider terminal" in " ".join(lines)) is (width < 77)
