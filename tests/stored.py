"""A token store filled by hand: units of documents, as encoding would have left them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from packtool.assembly import StoredUnitFiles
from packtool.encoding import EncodedDocuments
from packtool.planning import PlacedUnit
from packtool.token_store import TokenStore, UnitReject, UnitSummary
from packtool.tokenized import Tokenized


@dataclass
class StoredRun:
    """Units in a store, in source order."""

    store: TokenStore
    units: list[PlacedUnit] = field(default_factory=list)
    documents: dict[int, tuple[list[int], list[bool]]] = field(default_factory=dict)
    """Doc id to tokens and which of them carry loss."""

    @property
    def files(self) -> tuple[StoredUnitFiles, ...]:
        """What assembly reads."""
        return tuple(
            StoredUnitFiles(
                self.store.ids_path(unit.summary),
                self.store.documents_path(unit.summary),
                self.store.runs_offset(unit.summary),
            )
            for unit in self.units
        )


def store_unit(
    store: TokenStore,
    name: str,
    documents: Sequence[tuple[list[int], list[bool]]],
    *,
    rows: Sequence[int] | None = None,
    all_rows: int | None = None,
    rejects: Sequence[UnitReject] = (),
) -> UnitSummary:
    """Store one unit; ``rows`` are the documents' rows in it."""
    made = [Tokenized(np.array(ids, np.int32), np.array(trained, np.bool_)) for ids, trained in documents]
    with store.writing(name, "none") as writer:
        if made:
            writer.add(list(range(len(made))) if rows is None else rows, EncodedDocuments.from_tokenized(made))
        return writer.finish(
            bytes=10,
            rows=len(made) + len(rejects) if all_rows is None else all_rows,
            records=len(made) + len(rejects),
            rejects=rejects,
        )


def stored_run(folder: Path, units: Sequence[Sequence[tuple[list[int], list[bool]]]]) -> StoredRun:
    """One source of ``units``, without a gap between documents."""
    run = StoredRun(TokenStore(folder, "recipe"))
    first = 0
    for index, documents in enumerate(units):
        summary = store_unit(run.store, f"{index:064x}"[::-1], documents)
        run.units.append(PlacedUnit(0, first, summary))
        run.documents |= {first + row: (list(ids), list(trained)) for row, (ids, trained) in enumerate(documents)}
        first += len(documents)
    return run
