"""The accounts of reading: sums, places, and which fault is told."""

import hashlib
from pathlib import Path

import pytest

from packtool.accounts import ReadingAccounts
from packtool.errors import BadData, PacktoolError
from packtool.sources import Compression, Kind, Source
from packtool.token_store import TokenStore, UnitReject
from packtool.tokenizing import TokenizedUnit
from tests import reference_pack, runs
from tests.stored import store_unit


def accounts(folder: Path, sources: int = 1, *, stop: bool = True, max_left_out: float = 1.0) -> ReadingAccounts:
    found = [Source(f"{n}.jsonl", Path(f"/in/{n}.jsonl"), Kind.LINES, Compression.NONE) for n in range(sources)]
    store = TokenStore(folder, "recipe")
    return ReadingAccounts(found, store, stop_at_bad_record=stop, max_left_out=max_left_out)


def unit(
    folder: Path,
    name: str,
    documents: int,
    *,
    rejects: list[UnitReject] | None = None,
    source: int = 0,
    rows: int | None = None,
    places: list[int] | None = None,
) -> TokenizedUnit:
    """A stored unit with ``documents`` of three tokens each."""
    summary = store_unit(
        TokenStore(folder, "recipe"),
        name * 64,
        [([1, 2, 3], [True] * 3)] * documents,
        rows=places,
        all_rows=rows,
        rejects=rejects or [],
    )
    return TokenizedUnit(source, 0, summary, reused=False)


def refused(records: range | list[int], reason: str = "template_error") -> list[UnitReject]:
    return [UnitReject(record, record, reason, "why") for record in records]


def rest(records: int, out: list[UnitReject]) -> list[int]:
    gone = {reject.record for reject in out}
    return [record for record in range(records) if record not in gone]


def test_sums_and_places_of_several_sources(tmp_path: Path) -> None:
    made = accounts(tmp_path, 3, stop=False)
    # source 0: rows 0-3 with a blank one; source 1: nothing; source 2: two units, the second with a bad record
    made.add(unit(tmp_path, "a", 3, rows=4, places=[0, 1, 3]))
    made.add(unit(tmp_path, "b", 2, source=2))
    made.add(unit(tmp_path, "c", 2, source=2, rejects=[UnitReject(1, 1, "bad_json", "why")], places=[0, 2]))
    made.finish()
    entries = made.entries()
    assert [(entry.first, entry.rows, entry.records, entry.documents, entry.tokens) for entry in entries] == [
        (0, 4, 3, 3, 9),
        (4, 0, 0, 0, 0),
        (4, 5, 5, 4, 12),
    ]
    assert [placed.first_row for placed in made.units] == [0, 4, 6]
    ids = [[0, 1, 3], [], [4, 5, 6, 8]]
    for entry, doc_ids in zip(entries, ids, strict=True):
        documents = [reference_pack.Document(doc_id, [1, 2, 3], []) for doc_id in doc_ids]
        assert entry.checksum == reference_pack.source_checksum(documents)
    assert [(row.source, row.line, row.doc_id, row.reason) for row in made.rejects()] == [("2.jsonl", 4, 7, "bad_json")]
    assert [(made.place(doc)[0].name, made.place(doc)[1]) for doc in (0, 3, 4, 8)] == [
        ("0.jsonl", 1),
        ("0.jsonl", 4),
        ("2.jsonl", 1),
        ("2.jsonl", 5),
    ]
    assert (made.records, made.documents, made.tokens, made.bad_records) == (8, 7, 21, 1)


def test_the_digest_of_a_source_is_that_of_its_units_in_order(tmp_path: Path) -> None:
    digests = []
    for order in ("ab", "ba"):
        made = accounts(tmp_path)
        for name in order:
            made.add(unit(tmp_path, name, 1))
        digests.append(made.entries()[0].digest)
    assert digests[0] == hashlib.sha256(("a" * 64 + "b" * 64).encode()).hexdigest()
    assert digests[0] != digests[1]


def test_what_was_refused_is_not_held_in_memory(tmp_path: Path) -> None:
    made = accounts(tmp_path, stop=False)
    out = refused(range(50), "empty")
    made.add(unit(tmp_path, "a", 0, rejects=out))
    assert [placed.summary.rejects for placed in made.units] == [()]
    assert len(list(made.rejects())) == 50


def test_a_store_that_loses_a_unit_is_an_error_that_names_it(tmp_path: Path) -> None:
    made = accounts(tmp_path, stop=False)
    made.add(unit(tmp_path, "a", 0, rejects=refused([0], "empty")))
    store = TokenStore(tmp_path, "recipe")
    (store.unit_folder("a" * 64, "none") / "unit.json").unlink()
    with pytest.raises(PacktoolError, match=rf"^{store.unit_folder('a' * 64, 'none')}: the token store was changed"):
        list(made.rejects())


def test_a_bad_record_stops_with_its_line_in_the_whole_source(tmp_path: Path) -> None:
    made = accounts(tmp_path, 2)
    made.add(unit(tmp_path, "a", 5, rows=7))
    made.add(unit(tmp_path, "b", 4, source=1))
    with pytest.raises(BadData, match=r"^/in/1\.jsonl:7: bad_json: why \(mend it"):
        made.add(unit(tmp_path, "c", 1, source=1, rejects=[UnitReject(2, 1, "bad_json", "why")], rows=3))


@pytest.mark.parametrize("sizes", [[3000], [1000, 2000], [999, 1, 2000], [1] * 5 + [2995], [400] * 7 + [200]])
@pytest.mark.parametrize(
    ("records", "told"),
    [
        (list(range(10)), None),
        (list(range(11)), "11 of the first 1,000 records"),
        ([*range(10), 1000, 1001], None),
        (list(range(1000, 1030)), None),
        (list(range(1000, 1031)), "31 of the first 3,000 records"),
        (list(range(0, 3000, 101)), None),
        ([], None),
    ],
)
def test_the_share_a_template_may_refuse_is_looked_at_after_1000_records_and_at_the_end(
    tmp_path: Path, sizes: list[int], records: list[int], told: str | None
) -> None:
    def read() -> None:
        made = accounts(tmp_path)
        first = 0
        for number, size in enumerate(sizes):
            out = refused([record - first for record in records if first <= record < first + size])
            made.add(unit(tmp_path, f"{number:x}", size - len(out), rejects=out, places=rest(size, out)))
            first += size
        made.finish()

    if told is None:
        read()
    else:
        example = rf"^/in/0\.jsonl:{records[0] + 1}: template_error: why \("
        with pytest.raises(BadData, match=f"{example}{told}"):
            read()


def test_few_records_are_judged_at_the_end(tmp_path: Path) -> None:
    made = accounts(tmp_path, max_left_out=50)
    made.add(unit(tmp_path, "a", 1, rejects=refused([1, 2]), places=[0]))
    with pytest.raises(BadData, match=r"2 of the first 3 records .* more than --max-left-out 50%"):
        made.finish()
    assert made.rejected == {"template_error": 2}


def test_bad_records_may_be_so_many_and_no_more(tmp_path: Path) -> None:
    good, bad = b'{"input_ids": [1, 2, 3]}', b'{"input_ids": 5}'
    options = {"on_bad_record": "skip", "max_length": 8}
    source = runs.write_jsonl(tmp_path / "a.jsonl", [good, bad, bad, *[good] * 7])
    for bound in ("2", "20%", 2, "1k"):
        assert runs.run(source, tmp_path / "out", **options, max_bad_records=bound).bad_records == 2
    for number, bound, words in (
        (1, "1", r"2 bad records, more than --max-bad-records 1;"),
        (2, "19%", "of the first"),
    ):
        with pytest.raises(BadData, match=words) as caught:
            runs.run(source, tmp_path / str(number), **options, max_bad_records=bound)
        assert str(caught.value).startswith(f"{source}:2: wrong_type: ")
        assert not (tmp_path / str(number) / "manifest.json").exists()


def test_a_share_of_bad_records_is_looked_at_early_whatever_the_workers(tmp_path: Path) -> None:
    good, bad = b'{"input_ids": [1, 2, 3]}', b'{"input_ids": 5}'
    source = runs.write_jsonl(tmp_path / "a.jsonl", [*[good] * 980, *[bad] * 40, *[good] * 9000])
    messages = set()
    for workers in (1, 2):
        options = {"on_bad_record": "skip", "max_bad_records": "1%", "workers": workers}
        with pytest.MonkeyPatch.context() as patch:
            runs.small_units(patch, 3000)
            with pytest.raises(BadData) as caught:
                runs.run(source, tmp_path / "out", max_length=8, **options)
        messages.add(str(caught.value))
    (message,) = messages
    assert "(20 bad records of the first 1,000 records, more than --max-bad-records 1%" in message
