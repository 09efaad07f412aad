"""Options: the same from flags, keywords and TOML, and every mistake as one line that helps."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from packtool.config import AddToken, FormatName, OnBadRecord, Overlong, PackConfig, StrategyName, unknown_name
from packtool.errors import Misuse

NEEDED: dict[str, Any] = {"sources": ["a.jsonl"], "output": "out", "tokenizer": "tok"}


def refusal(**values: Any) -> str:
    with pytest.raises(Misuse) as caught:
        PackConfig.checked({**NEEDED, **values})
    message = str(caught.value)
    assert "\n" not in message
    return message


def of_toml(folder: Path, text: str, **flags: Any) -> PackConfig:
    path = folder / "pack.toml"
    path.write_text(text, encoding="utf-8")
    return PackConfig.from_toml(path, flags)


def test_defaults_are_those_of_the_documentation() -> None:
    config = PackConfig.checked(NEEDED)
    assert config.max_length == 4096
    assert config.strategy is None
    assert config.overlong is Overlong.AUTO
    assert config.format is FormatName.AUTO
    assert (config.bos, config.eos) == (AddToken.AUTO, AddToken.AUTO)
    assert (config.seed, config.shuffle, config.pad) == (0, None, False)
    assert (config.max_segments, config.limit, config.shards, config.group_tokens) == (None, None, None, None)
    assert config.on_bad_record is OnBadRecord.ERROR
    assert config.max_left_out == 1.0
    assert config.shard_tokens is None
    assert config.max_record_bytes == 64 * 2**20
    assert config.worker_count >= 1


TOML_AND_FLAGS: list[tuple[str, dict[str, Any]]] = [
    ("max_length = 2048", {"max_length": "2048"}),
    ('max_length = "64Ki"', {"max_length": "64Ki"}),
    ('strategy = "bfd"', {"strategy": "bfd"}),
    ('overlong = "truncate"', {"overlong": "truncate"}),
    ('format = "text"', {"format": "text"}),
    ('field = {text = "body"}', {"field": ["text=body"]}),
    ('[field]\nprompt = "q"\ncompletion = "a"', {"field": ["prompt=q", "completion=a"]}),
    ('field = ["text=body"]', {"field": ["text=body"]}),
    ("bos = true\neos = false", {"bos": "yes", "eos": "no"}),
    ('max_record_bytes = "1Mi"', {"max_record_bytes": "1Mi"}),
    ('eos_token = "</s>"\npad_token = "<pad>"', {"eos_token": "</s>", "pad_token": "<pad>"}),
    ('prompt_template = "p.jinja"', {"prompt_template": "p.jinja"}),
    ('chat_template = "chat.jinja"', {"chat_template": "chat.jinja"}),
    ("template_arg = {think = false, tone = 'dry'}", {"template_arg": ["think=false", "tone=dry"]}),
    ("[template_arg]\nlist = [1, 2]", {"template_arg": ["list=[1, 2]"]}),
    ("template_date = 2026-03-01", {"template_date": "2026-03-01"}),
    ('train_on = ["assistant", "tool"]', {"train_on": "assistant,tool"}),
    ('train_on = "last"', {"train_on": "last"}),
    ("end_of_turn = false", {"end_of_turn": False}),
    ('overlong = "truncate_turns"', {"overlong": "truncate_turns"}),
    ("seed = 18446744073709551615", {"seed": "18446744073709551615"}),
    ("shuffle = false\npad = true", {"shuffle": False, "pad": True}),
    ("max_segments = 64\nlimit = 10", {"max_segments": "64", "limit": "10"}),
    ('on_bad_record = "skip"', {"on_bad_record": "skip"}),
    ("max_left_out = 2.5", {"max_left_out": "2.5%"}),
    ("max_bad_records = 1000", {"max_bad_records": "1k"}),
    ('max_bad_records = "0.50 %"', {"max_bad_records": "0.5%"}),
    ('max_left_out = "2.5%"', {"max_left_out": "2.5"}),
    ("group_tokens = 1000000", {"group_tokens": "1M"}),
    ('shard_tokens = "2M"', {"shard_tokens": "2M"}),
    ("shards = 4\nworkers = 2", {"shards": "4", "workers": "2"}),
    ('encoder = "tokenizers"', {"encoder": "tokenizers"}),
    ('cache_dir = "c"\noverwrite = true', {"cache_dir": "c", "overwrite": True}),
    ("quiet = true", {"quiet": True}),
]


@pytest.mark.parametrize(("text", "flags"), TOML_AND_FLAGS)
def test_toml_and_flags_say_the_same(text: str, flags: dict[str, Any], tmp_path: Path) -> None:
    assert of_toml(tmp_path, text, **NEEDED) == PackConfig.checked({**NEEDED, **flags})
    assert of_toml(tmp_path, text, **NEEDED) != PackConfig.checked(NEEDED)


def test_every_option_has_a_case_in_toml() -> None:
    named = {name for _, flags in TOML_AND_FLAGS for name in flags} | set(NEEDED)
    assert named == set(PackConfig.model_fields)


def test_a_toml_file_alone_is_enough(tmp_path: Path) -> None:
    text = 'sources = ["a.jsonl", "b.jsonl"]\noutput = "out"\ntokenizer = "tok"\n'
    assert of_toml(tmp_path, text).sources == ("a.jsonl", "b.jsonl")


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    config = of_toml(tmp_path, 'max_length = 2048\nstrategy = "bfd"\ntokenizer = "x"', **NEEDED, max_length="512")
    assert (config.max_length, config.strategy, config.tokenizer) == (512, StrategyName.BFD, "tok")


def test_a_flag_takes_the_place_of_what_excludes_it_in_the_file(tmp_path: Path) -> None:
    config = of_toml(tmp_path, 'shard_tokens = "1M"', **NEEDED, shards="3")
    assert config.shards == 3
    config = of_toml(tmp_path, "shards = 3", **NEEDED, shard_tokens="1M")
    assert (config.shards, config.shard_tokens) == (None, 1_000_000)
    with pytest.raises(Misuse, match="exclude each other"):
        of_toml(tmp_path, 'shards = 3\nshard_tokens = "1M"', **NEEDED)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_lenght = 3", "unknown name 'max_lenght'; did you mean 'max_length'?"),
        ("max-length = 3", "unknown name 'max-length'; did you mean 'max_length'?"),
        ('source = "a"', "did you mean 'sources'?"),
        ("max_length = ", "not TOML"),
        ("a = 1\na = 2", "not TOML"),
        ("max_length = 1", "--max-length: "),
        ("max_length = 2048.5", "--max-length: "),
        ('strategy = "best"', "'bfd', 'bfd_split', 'wrapped' or 'in_order'"),
        ("[seed]\nx = 1", "--seed: "),
    ],
)
def test_a_mistake_in_the_file_names_the_file_on_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse) as caught:
        of_toml(tmp_path, text, **NEEDED)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "pack.toml"))
    assert words in message
    assert "\n" not in message


def test_a_mistake_in_a_flag_does_not_blame_the_file(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [({"max_length": "x"}, "--max-length"), ({"zzz": 1}, "unknown name")]
    for flags, words in wrong:
        with pytest.raises(Misuse) as caught:
            of_toml(tmp_path, "seed = 1", **NEEDED, **flags)
        assert str(caught.value).startswith(words)


def test_a_file_that_cannot_be_read_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="cannot read the config: No such file"):
        PackConfig.from_toml(tmp_path / "none.toml", NEEDED)
    with pytest.raises(Misuse, match="cannot read the config: Is a directory"):
        PackConfig.from_toml(tmp_path, NEEDED)
    (tmp_path / "latin.toml").write_bytes(b'output = "\xe9"')
    with pytest.raises(Misuse, match=r"latin\.toml: not TOML"):
        PackConfig.from_toml(tmp_path / "latin.toml", NEEDED)


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("4096", 4096),
        ("64M", 64_000_000),
        ("2k", 2000),
        ("256Ki", 262_144),
        ("1Mi", 2**20),
        ("1_000", 1000),
        ("1 k", 1000),
    ],
)
def test_counts_may_be_written_short(written: str, number: int) -> None:
    assert PackConfig.checked({**NEEDED, "max_length": written}).max_length == number
    assert PackConfig.checked({**NEEDED, "max_length": number}).max_length == number


@given(st.integers(2, 10**6), st.sampled_from([("", 1), ("k", 10**3), ("M", 10**6), ("Ki", 2**10), ("Mi", 2**20)]))
def test_a_suffix_multiplies(number: int, suffix: tuple[str, int]) -> None:
    name, factor = suffix
    assert PackConfig.checked({**NEEDED, "shard_tokens": f"{number}{name}"}).shard_tokens == number * factor


@pytest.mark.parametrize("written", ["4K", "64MB", "5B", "1.5M", "1e6", "", "x", "M", "9" * 30, "٣", "1__0", True])
def test_a_count_that_could_mean_two_things_is_refused(written: str | bool) -> None:
    assert refusal(max_length=written).startswith("--max-length: takes a")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_length", 1, "greater than or equal to 2"),
        ("max_length", 2**31, "less than or equal to 2147483647"),
        ("seed", -1, "takes a number from 0 to 2^64 - 1"),
        ("seed", 2**64, "takes a number from 0 to 2^64 - 1"),
        ("workers", "0", "greater than or equal to 1"),
        ("shards", 0, "greater than or equal to 1"),
        ("limit", "-1", "greater than or equal to 1"),
        ("max_segments", 0, "greater than or equal to 1"),
        ("max_left_out", "101%", "less than or equal to 100"),
        ("max_left_out", "nan", "greater than or equal to 0"),
        ("max_left_out", "few", "number"),
        ("max_bad_records", "101%", "percentage from 0% to 100%"),
        ("max_bad_records", "nan%", "percentage from 0% to 100%"),
        ("max_bad_records", "few", "takes a whole number"),
        ("max_bad_records", -1, "takes a number such as 100"),
        ("max_bad_records", 1.5, "takes a number such as 100"),
        ("max_bad_records", True, "takes a number"),
        ("max_left_out", True, "takes a percentage"),
        ("seed", True, "takes a number"),
        ("overlong", "cut", "'auto', 'drop', 'truncate', 'truncate_turns', 'split' or 'error'"),
        ("format", "csv", "'auto', 'text'"),
        ("bos", "maybe", "'auto', 'yes' or 'no'"),
        ("on_bad_record", "ignore", "'error' or 'skip'"),
        ("output", "", "takes a path"),
        ("output", "~nobody-of-that-name/x", "no home folder"),
        ("cache_dir", "", "takes a path"),
        ("output", "a\0b", "NUL"),
        ("eos_token", "", "at least 1 character"),
        ("field", ["text"], "takes NAME=COLUMN, for example text=body, and got 'text'"),
        ("field", ["=body"], "takes NAME=COLUMN"),
        ("field", ["text="], "takes NAME=COLUMN"),
        ("field", ["text=a", "text=b"], "names 'text' twice"),
        ("field", {"text": 3}, "takes names"),
        ("field", {"text": " "}, "takes names"),
        ("template_arg", ["think"], "takes NAME=VALUE, for example enable_thinking=false, and got 'think'"),
        ("template_arg", ["a b=1"], "takes NAME=VALUE"),
        ("template_arg", ["a=1", "a=2"], "names 'a' twice"),
        ("template_date", "yesterday", "valid date"),
        ("train_on", "", "takes assistant, last, all, or roles"),
        ("train_on", "assistant,", "takes assistant, last, all, or roles"),
        ("train_on", [3], "takes assistant, last, all, or roles"),
        ("train_on", "all,tool", "takes last or all alone"),
        ("train_on", "assistant,last", "takes last or all alone"),
        ("end_of_turn", "maybe", "boolean"),
        ("chat_template", "", "at least 1 character"),
    ],
)
def test_a_wrong_value_names_its_option(name: str, value: Any, words: str) -> None:
    message = refusal(**{name: value})
    assert message.startswith(f"--{name.replace('_', '-')}: ")
    assert words in message


@pytest.mark.parametrize("missing", ["sources", "output", "tokenizer"])
def test_what_is_missing_is_named_as_on_the_command_line(missing: str) -> None:
    flag = {"sources": "SOURCE", "output": "-o/--output OUT", "tokenizer": "-t/--tokenizer TOKENIZER"}[missing]
    with pytest.raises(Misuse) as caught:
        PackConfig.checked({name: value for name, value in NEEDED.items() if name != missing})
    assert str(caught.value) == f"{flag} is missing"


def test_no_sources_are_missing_sources() -> None:
    assert refusal(sources=[]) == "SOURCE is missing"
    assert refusal(sources=[""]).startswith("SOURCE: ")
    assert refusal(sources=[3]).startswith("SOURCE: ")


@pytest.mark.parametrize("name", ["a*", "what?", "run[1]", "a*/out"])
def test_an_output_that_datasets_would_take_for_a_pattern_is_refused(name: str) -> None:
    with pytest.raises(Misuse, match=r"--output: holds [*?\[], which .* takes for a wildcard"):
        PackConfig.checked({**NEEDED, "output": name})


def test_shards_and_shard_tokens_exclude_each_other() -> None:
    assert "--shards and --shard-tokens exclude each other" in refusal(shards=2, shard_tokens=100)


def test_fields_may_hold_an_equals_sign_in_the_column() -> None:
    assert PackConfig.checked({**NEEDED, "field": ["text=a=b"]}).field == {"text": "a=b"}


def test_values_of_template_arguments_are_json_where_they_can_be() -> None:
    given = ["a=false", 'b={"x": [1]}', "c=plain text", 'd="true"', "e=1=2", "f="]
    config = PackConfig.checked({**NEEDED, "template_arg": given})
    assert config.template_arg == {"a": False, "b": {"x": [1]}, "c": "plain text", "d": "true", "e": "1=2", "f": ""}


def test_roles_are_named_once() -> None:
    assert PackConfig.checked({**NEEDED, "train_on": " tool, assistant ,tool"}).train_on == ("tool", "assistant")
    assert PackConfig.checked(NEEDED).train_on == ("assistant",)


def test_paths_are_taken_where_names_are() -> None:
    config = PackConfig(sources=Path("a.jsonl"), output="~/out", tokenizer=Path("tok"))  # type: ignore[arg-type]
    assert config.sources == ("a.jsonl",)
    assert config.tokenizer == "tok"
    assert config.output == Path.home() / "out"


def test_an_unknown_keyword_is_an_error_and_not_passed_over() -> None:
    with pytest.raises(ValidationError, match="max_lenght"):
        PackConfig(**{**NEEDED, "max_lenght": 3})
    assert refusal(max_lenght=3) == "unknown name 'max_lenght'; did you mean 'max_length'?"


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        PackConfig.checked(NEEDED).max_length = 3


def test_a_config_survives_json() -> None:
    values = {**NEEDED, "field": ["text=b"], "shards": 3, "bos": "yes", "max_left_out": "3%", "strategy": "wrapped"}
    config = PackConfig.checked(values)
    again = json.loads(json.dumps(config.model_dump(mode="json", exclude_unset=True)))
    assert PackConfig.checked(again) == config


def test_where_no_name_is_near_all_are_listed() -> None:
    assert unknown_name("zzzzz", ["alpha", "beta"]) == "unknown name 'zzzzz'; known are alpha, beta"


@given(
    st.dictionaries(
        st.sampled_from(sorted(PackConfig.model_fields)),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=5),
            st.lists(st.text(max_size=3), max_size=2),
            st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        ),
    )
)
def test_whatever_is_given_is_a_config_or_misuse_in_one_line(values: dict[str, Any]) -> None:
    with suppress(Misuse):
        assert PackConfig.checked({**NEEDED, **values}).max_length >= 2
        return
    refusal(**values)


def test_a_byte_order_mark_is_no_part_of_a_config_and_a_table_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    options = b'sources = "a.jsonl"\noutput = "out"\ntokenizer = "t"\n'
    path.write_bytes(b"\xef\xbb\xbf" + options)
    assert PackConfig.from_toml(path, {}).tokenizer == "t"
    path.write_bytes(b"[pack]\n" + options)
    with pytest.raises(Misuse, match=r"options stand at the top of the file, not in a table such as \[pack\]"):
        PackConfig.from_toml(path, {})
