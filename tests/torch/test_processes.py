"""Several real processes: two ranks that talk by gloo, and a run that is killed and goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from packtool.torch.loader import packed_dataloader
from tests import runs
from tests.torch.collators import documents
from tests.torch.prefix_model import PrefixModel, summed_loss, trained_tokens
from tests.torch.test_loss_accounting import alone, assert_close

RANKS = 2


def train(rank: int, packed: Path, folder: Path) -> None:
    """One rank: an epoch without an optimizer, the gradient of every step kept by rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    loader = packed_dataloader(packed, batch_packs=4, seed=1, drop_last=False)  # ranks are those of torch.distributed
    ids = packed_dataloader(packed, batch_packs=4, seed=1, drop_last=False, collator=documents)
    model = DistributedDataParallel(PrefixModel())
    steps: list[dict[str, Any]] = []
    for batch, packs in zip(loader, ids, strict=True):
        total = trained_tokens(batch)
        dist.all_reduce(total)
        # DistributedDataParallel takes the mean over the ranks, of which a sum is wanted.
        (summed_loss(model, batch) / total * RANKS).backward()
        everyone: list[Any] = [None] * RANKS
        dist.all_gather_object(everyone, packs)
        steps.append({"packs": everyone, "gradients": [p.grad.clone() for p in model.parameters()]})
        model.zero_grad()
    if rank == 0:
        torch.save(steps, folder / "steps.pt")
    dist.destroy_process_group()


def test_two_ranks_train_every_pack_once_with_the_gradient_of_its_documents(packed: Path, tmp_path: Path) -> None:
    mp.start_processes(train, args=(packed, tmp_path), nprocs=RANKS, start_method="spawn")
    steps = torch.load(tmp_path / "steps.pt", weights_only=True)
    rows = {tuple(row["doc_ids"]): row for row in runs.rows(packed)}
    found = [pack for step in steps for packs in step["packs"] for pack in packs if pack != (-1,)]
    assert len(steps) == 14
    assert sorted(found) == sorted(rows)
    for step in (steps[0], steps[5], steps[-1]):
        packs = [pack for packs in step["packs"] for pack in packs if pack != (-1,)]
        assert_close(step["gradients"], alone([rows[pack] for pack in packs]))
    assert sum(pack == (-1,) for packs in steps[-1]["packs"] for pack in packs) == 7


RUN = """
import json, os, sys
from pathlib import Path
from packtool.torch.loader import packed_dataloader
from tests.torch.collators import documents

packed, folder, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
loader = packed_dataloader(packed, batch_packs=2, seed=9, num_workers=workers, collator=documents)
if (folder / "state.json").exists():
    loader.load_state_dict(json.loads((folder / "state.json").read_text()))
while loader.epoch < 3:
    for packs in loader:
        with (folder / "log").open("a") as log:
            log.write(json.dumps([loader.epoch, loader.step - 1, packs]) + "\\n")
        (folder / "new").write_text(json.dumps(loader.state_dict()))
        (folder / "new").replace(folder / "state.json")
"""


def lines(folder: Path) -> list[Any]:
    """The whole lines of the log."""
    path = folder / "log"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def test_a_killed_run_goes_on_where_it_was(packed: Path, tmp_path: Path) -> None:
    expected = []
    loader = packed_dataloader(packed, batch_packs=2, seed=9, collator=documents)
    for epoch in range(3):
        expected += [[epoch, step, [list(pack) for pack in packs]] for step, packs in enumerate(loader)]
    command = [sys.executable, "-c", RUN, str(packed), str(tmp_path)]
    run = subprocess.Popen([*command, "2"], cwd=runs.TOKENIZER.parent.parent, start_new_session=True)
    while len(lines(tmp_path)) < 70 and run.poll() is None:
        time.sleep(0.005)
    assert run.poll() is None, "it was killed, not done"
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    subprocess.run([*command, "0"], cwd=runs.TOKENIZER.parent.parent, check=True)
    # A kill may come between a step's line and its state: then the step is done, and logged, again.
    log = lines(tmp_path)
    once = [line for index, line in enumerate(log) if index == 0 or line != log[index - 1]]
    assert once == expected
    assert len(log) - len(once) <= 1
