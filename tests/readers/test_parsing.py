"""One JSON value: what passes, and how each refusal reads."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import BAD_RECORD_REASONS, Refusal
from packtool.readers.parsing import parse, parse_all, quoted, too_large


@pytest.mark.parametrize(
    ("raw", "reason", "words"),
    [
        (b"nonsense", "bad_json", "Expecting value at character 1: nonsense"),
        (b'{"a": "b\n"}', "bad_json", "Invalid control character at character 9: "),
        (b'{"a": 1', "bad_json", "Expecting ',' delimiter at character 8"),
        (b'{"a": "b', "bad_json", "Unterminated string"),
        (b'{"a": 1} {"a": 2}', "bad_json", "Extra data at character 10"),
        (b'\xef\xbb\xbf{"a": 1}', "bad_json", "BOM"),
        (b'{"a": "\x01"}', "bad_json", "Invalid control character"),
        (b"{'a': 1}", "bad_json", "double quotes"),
        (b"[" * 100_000, "bad_json", "nested too deeply: [[["),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, "bad_json", "nested too deeply"),
        (b'{"a": "\xff"}', "bad_utf8", "byte 8 (0xff) is not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "bad_utf8", "byte 8 (0xed)"),
        (b"[1, 2]", "not_object", "an array, not an object: [1, 2]"),
        (b'"text"', "not_object", "a string"),
        (b"17", "not_object", "a number"),
        (b"NaN", "not_object", "a number"),
        (b"true", "not_object", "true or false"),
        (b"null", "not_object", "null"),
    ],
)
def test_what_is_no_record_says_why(raw: bytes, reason: str, words: str) -> None:
    refusal = parse(raw)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
    assert refusal.reason in BAD_RECORD_REASONS
    assert words in refusal.detail


@pytest.mark.parametrize(
    ("raw", "record"),
    [
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"text": "x", "unused": Infinity}', {"text": "x", "unused": math.inf}),
        (b'{"text": "x", "unused": 1e999}', {"text": "x", "unused": math.inf}),
        (b'{"text": "\\ud800"}', {"text": "\ud800"}),
        (b'{"text": "NUL \\u0000, LS \xe2\x80\xa8"}\r\n', {"text": "NUL \x00, LS \u2028"}),
        (b'{"date": "2024-01-01", "n": null}', {"date": "2024-01-01", "n": None}),
        (b'{"unused": ' + b"9" * 5000 + b"}", {"unused": math.inf}),
        (b'{"unused": NaN, "more": ' + b"9" * 5000 + b"}", None),
    ],
)
def test_what_matters_only_in_used_fields_passes(raw: bytes, record: dict[str, object] | None) -> None:
    assert parse(raw) == record if record is not None else isinstance(parse(raw), dict)


@pytest.mark.parametrize("frames", [0, 300])
@pytest.mark.parametrize(
    ("depth", "filling", "passes"),
    [
        (500, b"NaN", True),
        (501, b"NaN", False),
        (3, b"NaN, " + b"[], {}, " * 600 + b"1", True),  # many, but not inside one another
        (3, b'NaN, "' + b'\\"[{' * 600 + b'"', True),  # inside a string they are text
    ],
)
def test_how_deep_a_record_may_be_does_not_depend_on_the_caller(
    frames: int, depth: int, filling: bytes, passes: bool
) -> None:
    raw = b'{"a":' + b"[" * (depth - 1) + filling + b"]" * (depth - 1) + b"}"

    def parsed(frames: int) -> object:
        return parsed(frames - 1) if frames else parse(raw)

    result = parsed(frames)
    if passes:
        assert isinstance(result, dict)
    else:
        assert isinstance(result, Refusal)
        assert result.detail.startswith("nested too deeply")


@given(st.integers(-(2**70), 2**70))
def test_a_whole_number_beyond_64_bits_is_never_a_small_one(number: int) -> None:
    record = parse(b'{"id": %d}' % number)
    assert isinstance(record, dict)
    exact = -(2**63) <= number < 2**64
    assert record["id"] == number if exact else abs(record["id"]) >= 2**63
    assert isinstance(record["id"], int) or not exact


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_every_object_comes_back_as_python_reads_it(record: dict[str, object], escaped: bool) -> None:
    raw = json.dumps(record, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    assert parse(raw) == json.loads(json.dumps(record))


@given(st.binary(max_size=300))
def test_details_are_one_short_printable_line(raw: bytes) -> None:
    result = parse(raw)
    details = [too_large(10**9, 80, raw[:64]).detail, quoted(raw), quoted(raw, len(raw) // 2)]
    details += [result.detail] if isinstance(result, Refusal) else []
    for detail in details:
        assert detail.isprintable()
        assert len(detail) < 300  # 60 characters, each of which may be written as an escape of four or more


@pytest.mark.parametrize("raw", ["plain", "x" * 60, "x" * 61, "\x1b[31mred\x1b[0m", "e\u202eb\u2066"])
def test_quotations_are_short_and_cannot_reach_a_terminal(raw: str) -> None:
    text = quoted(raw)
    assert len(text) <= 61 if raw.isprintable() else "\x1b" not in text and "\u202e" not in text
    assert text.startswith(raw[:3] if raw.isprintable() else text[:1])


@given(
    st.lists(
        st.sampled_from([b'{"a": 1}', b'{"a": NaN}', b'{"a": "\\ud800"}', b"[1]", b"nonsense", b"\xff", b"1", b" "])
    )
)
def test_many_are_parsed_as_each_is(raws: list[bytes]) -> None:
    assert repr(parse_all(raws)) == repr([parse(raw) for raw in raws])  # NaN is not equal to itself
