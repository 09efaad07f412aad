"""Addresses where a path belongs, and secrets in what is shown."""

from pathlib import Path

import pytest

from packtool.addresses import address_in, refuse_address, without_secrets
from packtool.errors import Misuse


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("https://me:secret@host/x?token=secret", "a https: address"),
        ("https:/me:secret@host/x", "a https: address"),
        (" s3://secret/x", "a s3: address"),
        (Path("https://me:secret@host/x"), "a https: address"),
        ("//me:secret@host/x", "an address with a user's name"),
        ("//secret@host", "an address with a user's name"),
        ("me:secret@host:x", "an address with a user's name"),
    ],
)
def test_no_more_than_the_scheme_of_an_address_is_said(name: str | Path, said: str) -> None:
    assert address_in(name) == said
    with pytest.raises(Misuse) as caught:
        refuse_address("--plot", name)
    assert str(caught.value) == f"--plot: {said}, where a path of this machine is needed"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a",
        "/a/b",
        "//a/b",
        "./me:you@here",
        "a@b",
        "o/n@main",
        "a:b",
        "C:/a",
        "a b/c:d",
        "data/x@2:y",
        "~/a",
        "a:b/c@d",
    ],
)
def test_a_path_is_no_address(name: str) -> None:
    assert address_in(name) is None
    refuse_address("--plot", name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no: https://me:secret@host/x", "no: https://host/x"),
        ("no: https:/me:secret@host/x: gone", "no: https:/host/x: gone"),
        ("GET http://host/x?signature=secret&a=b failed", "GET http://host/x?… failed"),
        ("'me:secret@host:x' is not there", "'me:…@host:x' is not there"),
        ("it has token=secret&password=secret b", "it has token=…&password=… b"),
        ("sent hf_secretsecretsecret", "sent hf_…"),
    ],
)
def test_secrets_are_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "/data/a.jsonl:12: bad_json: not JSON (mend it)",
        "--output: 2024-01-01T12:00:00 a@b",
        "hf:o/n@main has no split x",
        "eos_token=</s>, and hf_data.jsonl",
        "file:///a/b: gone, see https://host/x",
    ],
)
def test_what_is_no_secret_is_shown_as_it_is(text: str) -> None:
    assert without_secrets(text) == text
