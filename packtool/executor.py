"""Runs pure tasks on local processes and gives their results in the order of the tasks.

Processes are spawned, never forked: a fork would copy the locks of the threads that tokenizers use. The
engine schedules; whoever wrote the task owns its files.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import TypeVar

from packtool.errors import PacktoolError

Task = TypeVar("Task")
Result = TypeVar("Result")

_WAITING_TASKS = 2
"""Tasks handed out ahead for each worker: none waits for work, and little data waits in memory."""


def run_in_order(work: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Generator[Result, None, None]:
    """Do ``work`` on each task and give the results in the order of the tasks.

    ``tasks`` is read only as far as workers have use for, so it may be longer than memory. The first error in
    the order of the tasks is raised, whatever the workers; later tasks may have been done by then. When the
    iterator is closed early, or fails, no worker is left.

    Args:
        work: a function a spawned process can import.
        tasks: picklable.
        workers: with one worker, or one task, everything runs in this process.

    Raises:
        PacktoolError: a worker was killed, or this is itself a module being imported by a worker.
    """
    remaining = iter(tasks)
    first = list(islice(remaining, 2)) if workers > 1 else []
    if len(first) < 2:
        yield from map(work, chain(first, remaining))
        return
    yield from _run_in_processes(work, chain(first, remaining), workers)


def _run_in_processes(
    work: Callable[[Task], Result], tasks: Iterator[Task], workers: int
) -> Generator[Result, None, None]:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise PacktoolError(
            "packtool.pack() was called while a worker imports your script; put the call under "
            "`if __name__ == '__main__':`, or use workers=1"
        )
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_start_worker)
    waiting: deque[Future[Result]] = deque()
    finished = False
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) >= workers * (1 + _WAITING_TASKS):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        finished = True
    except BrokenProcessPool:
        raise PacktoolError(
            "a worker process was killed or could not start (out of memory?); finished work is kept, run the same "
            "command again, perhaps with fewer --workers. From a script, the call to packtool.pack() belongs under "
            "`if __name__ == '__main__':`"
        ) from None
    finally:
        # The pool's own record of its processes is the only list of those that are ours to stop.
        processes = list((getattr(pool, "_processes", None) or {}).values())
        if not finished:
            for process in processes:
                process.kill()
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    # Ctrl-C reaches the whole group of processes; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The processes are the parallelism that was asked for.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
