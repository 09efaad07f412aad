"""Sources: which files an argument stands for, in which order and under which names, and what is refused."""

import gzip
import json
import os
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import zstandard

from packtool.errors import BadData, Misuse
from packtool.sources import Compression, Kind, find_sources, shown


def put(folder: Path, *names: str, data: bytes = b'{"text": "x"}\n') -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def names(*arguments: str | Path) -> list[str]:
    return [source.name for source in find_sources(arguments).sources]


# --- names, order, kinds


def test_names_are_relative_to_the_deepest_common_folder(tmp_path: Path) -> None:
    put(tmp_path, "a/b/x.jsonl", "a/c/y.jsonl", "a/c/d/z.jsonl")
    assert names(tmp_path / "a/b/x.jsonl") == ["x.jsonl"]
    assert names(tmp_path / "a/c/y.jsonl", tmp_path / "a/b/x.jsonl") == ["c/y.jsonl", "b/x.jsonl"]
    assert names(tmp_path / "a/c") == ["d/z.jsonl", "y.jsonl"]


def test_names_do_not_depend_on_where_the_command_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a/x.jsonl", "b/y.jsonl")
    monkeypatch.chdir(tmp_path / "a")
    found = find_sources(["x.jsonl", "../b/y.jsonl"])
    assert [source.name for source in found.sources] == ["a/x.jsonl", "b/y.jsonl"]
    assert all(source.path.is_absolute() for source in found.sources)


def test_a_name_that_is_not_utf8_can_be_stored(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")
    Path(path).write_bytes(b"{}")
    assert names(path) == ["\\xff.jsonl"]


def test_arguments_keep_their_order_and_globs_and_folders_are_sorted(tmp_path: Path) -> None:
    put(tmp_path, "z.jsonl", "d/b.jsonl", "d/a.jsonl", "d/10.jsonl", "d/9.jsonl", "d/sub/c.jsonl")
    assert names(tmp_path / "z.jsonl", tmp_path / "d/*.jsonl") == [
        "z.jsonl",
        "d/10.jsonl",
        "d/9.jsonl",
        "d/a.jsonl",
        "d/b.jsonl",
    ]
    assert names(tmp_path / "d") == ["10.jsonl", "9.jsonl", "a.jsonl", "b.jsonl", "sub/c.jsonl"]
    assert names(tmp_path / "d/**") == names(tmp_path / "d") == names(tmp_path / "d/*")


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    put(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert names(tmp_path / "a[1].jsonl") == ["a[1].jsonl"]
    assert names(tmp_path / "a[12].jsonl") == ["a1.jsonl"]


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.jsonl", b"[1]", Kind.LINES),
        ("a.NDJSON", b"{}", Kind.LINES),
        ("a.json", b'{"a": 1}\n{"a": 2}', Kind.LINES),
        ("a.json", b"\xef\xbb\xbf \r\n\t[{}]", Kind.ARRAY),
        ("a.json", b" " * 100_000 + b"[{}]", Kind.ARRAY),
        ("a.json", b"\xef\xbb\xbf{}", Kind.LINES),
        ("a.b.parquet", b"", Kind.PARQUET),
        ("a.arrow", b"", Kind.ARROW),
    ],
)
def test_a_kind_comes_from_the_name_and_the_first_byte(tmp_path: Path, name: str, data: bytes, kind: Kind) -> None:
    put(tmp_path, name, data=data)
    [source] = find_sources([tmp_path / name]).sources
    assert (source.kind, source.compression) == (kind, Compression.NONE)
    if kind in (Kind.LINES, Kind.ARRAY):
        for suffix, compression, packed in (
            (".gz", Compression.GZIP, gzip.compress(data)),
            (".zst", Compression.ZSTD, zstandard.compress(data)),
            (".gz", Compression.GZIP, b"damaged, and told by the reader"),
        ):
            put(tmp_path, name + suffix, data=packed)
            [source] = find_sources([tmp_path / (name + suffix)]).sources
            assert source.compression is compression
            assert source.kind is (Kind.LINES if packed.startswith(b"damaged") else kind)


# --- folders


def test_hidden_and_foreign_files_are_passed_over_by_name(tmp_path: Path) -> None:
    put(tmp_path, "d/a.jsonl", "d/.hidden.jsonl", "d/README.md", "d/.git/x.jsonl", "d/sub/notes.txt")
    os.mkfifo(tmp_path / "d/pipe.jsonl")
    (tmp_path / "d/loop.jsonl").symlink_to(tmp_path / "d/loop.jsonl")
    (tmp_path / "d/gone.jsonl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "d/sub/up").symlink_to(tmp_path / "d")
    found = find_sources([tmp_path / "d"])
    assert [source.name for source in found.sources] == ["a.jsonl"]
    [warning] = found.warnings
    for name in (".hidden.jsonl", "README.md", ".git", "notes.txt", "pipe.jsonl", "loop.jsonl", "gone.jsonl", "sub/up"):
        assert name in warning


def test_a_folder_without_data_is_a_warning(tmp_path: Path) -> None:
    put(tmp_path, "d/README.md", "a.jsonl")
    found = find_sources([tmp_path / "d"])
    assert found.sources == ()
    assert "holds no data" in found.warnings[-1]
    assert names(tmp_path / "d", tmp_path / "a.jsonl") == ["a.jsonl"]


def test_an_empty_file_is_a_source_and_a_warning(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", data=b"")
    found = find_sources([tmp_path / "a.jsonl"])
    assert len(found.sources) == 1
    assert found.warnings == (f"{tmp_path}/a.jsonl is empty",)


def test_a_linked_folder_is_walked(tmp_path: Path) -> None:
    put(tmp_path, "real/a.jsonl", "d/b.jsonl")
    (tmp_path / "d/link").symlink_to(tmp_path / "real")
    assert names(tmp_path / "d") == ["d/b.jsonl", "real/a.jsonl"]


def test_packed_datasets_are_no_data(tmp_path: Path) -> None:
    put(tmp_path, "d/a.jsonl", "d/out/train-00000-of-00001.parquet", "d/half/train-00000-of-00001.parquet")
    put(tmp_path, "d/out/manifest.json", data=b'{"format_version": 1}')
    (tmp_path / "d/half/.partial").mkdir()
    found = find_sources([tmp_path / "d"])
    assert [source.name for source in found.sources] == ["a.jsonl"]
    assert "out (made by packtool)" in found.warnings[0]
    assert "half (made by packtool)" in found.warnings[0]
    with pytest.raises(Misuse, match=r"out is a dataset that packtool made"):
        find_sources([tmp_path / "d/out"])


def test_a_foreign_manifest_is_data_like_any_other(tmp_path: Path) -> None:
    put(tmp_path, "d/manifest.json", data=b'[{"text": "x"}]')
    assert names(tmp_path / "d") == ["manifest.json"]


def saved(folder: Path, *files: str) -> None:
    """A folder as ``datasets.save_to_disk`` leaves it."""
    put(folder, *files, "dataset_info.json", "cache-123.arrow")
    put(folder, "state.json", data=json.dumps({"_data_files": [{"filename": name} for name in files]}).encode())


def test_a_saved_dataset_gives_its_files_in_its_own_order(tmp_path: Path) -> None:
    saved(tmp_path / "d", "data-2.arrow", "data-1.arrow")
    found = find_sources([tmp_path / "d"])
    assert [source.name for source in found.sources] == ["data-2.arrow", "data-1.arrow"]
    assert found.warnings == ()


def test_of_saved_splits_train_is_taken_or_one_has_to_be_named(tmp_path: Path) -> None:
    saved(tmp_path / "d/train", "data-1.arrow")
    saved(tmp_path / "d/test", "data-1.arrow")
    put(tmp_path, "d/dataset_dict.json", data=b'{"splits": ["test", "train"]}')
    assert find_sources([tmp_path / "d"]).sources[0].path.parent.name == "train"
    put(tmp_path, "d/dataset_dict.json", data=b'{"splits": ["test", "valid"]}')
    with pytest.raises(Misuse, match=r"/d has no split train; .* its splits: test, valid"):
        find_sources([tmp_path / "d"])


@pytest.mark.parametrize("name", ["data-9.arrow", "../a.jsonl", "/etc/hostname", 7])
def test_a_saved_dataset_names_only_files_of_its_own(tmp_path: Path, name: object) -> None:
    saved(tmp_path / "d", "data-1.arrow")
    put(tmp_path, "a.jsonl")
    put(tmp_path, "d/state.json", data=json.dumps({"_data_files": [{"filename": name}]}).encode())
    with pytest.raises(Misuse, match="is not whole"):
        find_sources([tmp_path / "d"])


def test_a_saved_selection_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "d", "data-1.arrow")
    state = {"_data_files": [{"filename": "data-1.arrow"}], "_indices_data_files": [{"filename": "indices.arrow"}]}
    put(tmp_path, "d/state.json", data=json.dumps(state).encode())
    with pytest.raises(Misuse, match="flatten_indices"):
        find_sources([tmp_path / "d"])


# --- refusals


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("-", "standard input"),
        ("missing.jsonl", "missing.jsonl does not exist"),
        ("no*.jsonl", "matches no file"),
        ("a.csv", "a.csv is of no known kind; packtool reads .jsonl"),
        ("a.parquet.gz", "of no known kind"),
        ("a.gz", "of no known kind"),
        ("dangling.jsonl", "dangling.jsonl is a link to a file that does not exist"),
        ("loop.jsonl", "loop.jsonl is a loop of symbolic links"),
        ("pipe.jsonl", "pipe.jsonl is a pipe"),
        ("socket.jsonl", "socket.jsonl is a socket"),
        ("/dev/null", "/dev/null is a device"),
        ("a\0.jsonl", "NUL"),
        ("\x1b31m.jsonl", "\\x1b31m.jsonl does not exist"),
        ("x" * 5000, "xxx"),
    ],
)
def test_what_cannot_be_a_source_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "a.csv", "a.parquet.gz", "a.gz")
    Path("dangling.jsonl").symlink_to("nowhere.jsonl")
    Path("loop.jsonl").symlink_to("loop.jsonl")
    os.mkfifo("pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket.jsonl")
        with pytest.raises(Misuse) as caught:
            find_sources([argument])
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("scheme", ["https", "s3", "gs", "hf", "file"])
def test_an_address_is_refused_without_its_secrets(scheme: str) -> None:
    for argument in (f"{scheme}://user:secret@host/a*.jsonl?X=secret", Path(f"{scheme}://user:secret@host/a.jsonl")):
        with pytest.raises(Misuse) as caught:
            find_sources([argument])
        assert "secret" not in str(caught.value)
        assert scheme in str(caught.value)


def test_a_file_given_twice_is_refused_in_every_disguise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "d/a.jsonl")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.jsonl").symlink_to("d/a.jsonl")
    (tmp_path / "e").symlink_to("d")
    for again in ("d/a.jsonl", "./d/../d/a.jsonl", "d", "d/*.jsonl", "link.jsonl", "e/a.jsonl", "e"):
        with pytest.raises(Misuse, match=r"(a|link)\.jsonl is given twice"):
            find_sources(["d/a.jsonl", again])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl")
    (tmp_path / "a.jsonl").chmod(0)
    with pytest.raises(BadData, match=r"a\.jsonl: Permission denied"):
        find_sources([tmp_path / "a.jsonl"])


def test_a_folder_whose_entries_may_not_be_seen_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "d/a.jsonl")
    is_dir = Path.is_dir

    def refused(path: Path) -> bool:
        if path.name in ("a.jsonl", ".partial"):
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refused)
    for argument in (tmp_path / "d", tmp_path / "*", tmp_path / "d" / "a*"):
        with pytest.raises(BadData, match=r"d/(a\.jsonl|\.partial): Permission denied"):
            find_sources([argument])


def test_a_path_for_a_message_is_one_short_line() -> None:
    assert shown("a b é.jsonl") == "a b é.jsonl"
    assert shown("a\nb\x1b\u202e\udcff") == "a\\nb\\x1b\\u202e\\udcff"
    assert len(shown("x" * 10_000)) < 310


# --- the hub


class Builder:
    """Stands in for a builder of ``datasets``: two splits in a cache of their own."""

    hash = "0123abcd"

    def __init__(self, cache: Path, config: str | None) -> None:
        self.cache = cache
        self.config = SimpleNamespace(name=config or "default")
        self.info = SimpleNamespace(splits=None)

    def download_and_prepare(self) -> None:
        self.info.splits = {"train": None, "test": None} if self.config.name != "odd" else {"validation": None}

    def as_dataset(self, split: str) -> Any:
        files = [self.cache / f"set-{split}-{number}.arrow" for number in range(2)]
        put(self.cache, *(file.name for file in files))
        return SimpleNamespace(cache_files=[{"filename": str(file)} for file in files])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls to ``load_dataset_builder``, which loads nothing."""
    calls: list[Any] = []

    def load_dataset_builder(name: str, config: str | None, *, revision: str | None) -> Builder:
        calls.append((name, config, revision))
        if name == "secret/broken":
            raise ValueError("no: https://me:hunter2@hub/x?signature=hunter2 hf_hunter2hunter2\nmore hunter2")
        return Builder(tmp_path / "cache", config)

    module = ModuleType("datasets")
    module.load_dataset_builder = load_dataset_builder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.chdir(tmp_path)
    return calls


@pytest.mark.parametrize(
    ("argument", "call", "where"),
    [
        ("hf:me/set", ("me/set", None, None), "hf:me/set@0123abcd:default:train"),
        ("hf:set@v1.0", ("set", None, "v1.0"), "hf:set@0123abcd:default:train"),
        ("hf:me/set:en", ("me/set", "en", None), "hf:me/set@0123abcd:en:train"),
        ("hf:me/set:en:test", ("me/set", "en", None), "hf:me/set@0123abcd:en:test"),
        ("hf:me/set@refs/pr/1::test", ("me/set", None, "refs/pr/1"), "hf:me/set@0123abcd:default:test"),
    ],
)
def test_a_dataset_of_the_hub_becomes_the_files_of_its_cache(
    hub: list[Any], tmp_path: Path, argument: str, call: Any, where: str
) -> None:
    put(tmp_path, "a.jsonl")
    found = find_sources([argument, "a.jsonl"])
    split = where.rpartition(":")[2]
    assert hub == [call]
    assert [source.name for source in found.sources] == [
        f"{where}/set-{split}-0.arrow",
        f"{where}/set-{split}-1.arrow",
        "a.jsonl",
    ]
    assert [source.kind for source in found.sources] == [Kind.ARROW, Kind.ARROW, Kind.LINES]
    assert found.revisions == {argument: "0123abcd"}


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("hf:me/set:odd", "has no split train; name one as hf:NAME:CONFIG:SPLIT: validation"),
        ("hf:me/set::dev", "has no split dev; name one as hf:NAME:CONFIG:SPLIT: train, test"),
        ("hf:me/set::train[:10%]", "must read hf:NAME"),
        ("hf:https://me:hunter2@hub/set", "must read hf:NAME"),
        ("hf:http:x:me@hunter2", "must read hf:NAME"),
        ("hf:", "must read hf:NAME"),
        ("hf:secret/broken", "hf:secret/broken: datasets cannot load it: no: https://hub/x?… hf_…"),
        ("hf:cache", "cache is a file or folder here"),
    ],
)
def test_a_dataset_that_cannot_be_had_says_why_without_secrets(
    hub: list[Any], tmp_path: Path, argument: str, words: str
) -> None:
    del hub
    (tmp_path / "cache").mkdir()
    with pytest.raises(Misuse) as caught:
        find_sources([argument])
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)
