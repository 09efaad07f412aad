"""Runs pure tasks on local processes and gives their results in the order of the tasks.

Processes are never forked from this one: a fork would copy the locks of the threads that tokenizers use. They are
spawned, or forked from a process that does nothing else and has no threads. The engine schedules; whoever wrote the
task owns its files.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, islice
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Self, TypeVar

from packtool.deadlines import SIGNAL, bound_this_process, over_time
from packtool.errors import PacktoolError
from packtool.scratch import scratch_folder
from packtool.stopping import SIGNALS

Task = TypeVar("Task")
Result = TypeVar("Result")

_WAITING_TASKS = 2
"""Tasks handed out ahead for each worker: none waits for work, and little data waits in memory."""


class _Failed:
    """Stands for the task that could not be had."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _errors_last(tasks: Iterable[Task]) -> Iterator[Task | _Failed]:
    """The tasks, and an error of theirs as the last one: tasks before it may have errors of their own."""
    try:
        yield from tasks
    except Exception as error:
        yield _Failed(error)


def _or_raise(task: Task | _Failed) -> Task:
    if isinstance(task, _Failed):
        raise task.error
    return task


class Workers:
    """Local processes for the stages of one run, which find them started already. A context manager.

    A process starts when there is a task that no idle one can take. None is left when the block ends, nor when
    a stage fails or is given up.
    """

    def __init__(self, count: int) -> None:
        """Use ``count`` processes at most; with one, everything runs in this process."""
        self.count = count
        self._context: BaseContext = multiprocessing.get_context("spawn")
        self._pool: ProcessPoolExecutor | None = None
        self._kept = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kill=kind is not None)

    def start(self, module: str, told: Mapping[str, str]) -> None:
        """Begin now to start a process that imports ``module``, from which the others are then forked.

        This one goes on meanwhile. What the module loads is there once, for all processes; it must leave no thread
        behind, as a fork would copy the locks that it holds. Nothing happens with one process, where forking is not
        safe (macOS, Windows), and where this program has a fork server of its own: processes are spawned.

        Args:
            module: of an importable package. What it raises is lost.
            told: environment variables that it finds.

        Raises:
            PacktoolError: the system starts no process, or has no room for a socket.
        """
        can_fork = sys.platform == "linux" and _IS_KNOWN and _SERVER._forkserver_pid is None
        # Where the ends of processes are not kept for who asks, the server's could not be asked for.
        if self.count < 2 or not can_fork or signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            return
        folder = self._kept.enter_context(scratch_folder())
        with _starting():
            resource_tracker.ensure_running()  # first, as it ends by letting signals in
        path = os.pathsep.join(str(Path(place).absolute()) for place in sys.path if place)
        with _starting({**told, "PYTHONPATH": path}), _server_of(module, folder):
            _SERVER.ensure_running()
        self._kept.callback(_stop_server)
        self._context = multiprocessing.get_context("forkserver")

    def run_in_order(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Generator[Result, None, None]:
        """Do ``work`` on each task and give the results in the order of the tasks; one stage at a time.

        ``tasks`` is read only as far as workers have use for, so it may be longer than memory. The first error in
        the order of the tasks is raised, whatever the workers, and an error of ``tasks`` itself after those of all
        tasks before it; later tasks may have been done by then. When the iterator is closed early, or fails, no
        worker is left.

        Args:
            work: a function of an importable module; one of a script or a notebook is not.
            tasks: picklable; a single one is done in this process.

        Raises:
            PacktoolError: a worker was killed.
        """
        remaining = _errors_last(tasks)
        first = list(islice(remaining, 2)) if self.count > 1 else []
        everything = chain(first, remaining)
        if len(first) < 2:
            for task in everything:
                yield work(_or_raise(task))
        else:
            yield from self._run_in_processes(work, everything)

    def _run_in_processes(
        self, work: Callable[[Task], Result], tasks: Iterator[Task | _Failed]
    ) -> Generator[Result, None, None]:
        pool = self._started()
        waiting: deque[Future[Result]] = deque()
        failed: _Failed | None = None
        finished = False
        try:
            for task in tasks:
                if isinstance(task, _Failed):
                    failed = task
                    break
                with _starting():  # the pool may start a process here
                    waiting.append(pool.submit(work, task))
                if len(waiting) >= self.count * (1 + _WAITING_TASKS):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
            finished = True
        except BrokenProcessPool:
            raise PacktoolError(f"{self._ending(pool)}; finished work is kept, {_AGAIN}") from None
        finally:
            if not finished:
                self._end(kill=True)
        if failed is not None:
            raise failed.error

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            with _starting():
                self._pool = ProcessPoolExecutor(self.count, self._context, initializer=_start_worker)
        return self._pool

    def _ending(self, pool: ProcessPoolExecutor) -> str:
        """How the first worker that ended, ended; none is left then."""
        processes = _processes_of(pool)
        # How a process ended is told once, and it is the pool's thread that asks: here it is only seen which did.
        ended = wait([process.sentinel for process in processes], timeout=1)
        first = [process for process in processes if process.sentinel in ended]
        self._end(kill=True)
        code = next((process.exitcode for process in first if process.exitcode), 1)
        if code > 0:
            return "a worker process could not start, or ended by itself"
        name = signal.Signals(-code).name
        if -code == SIGNAL:
            return f"a worker process was ended ({name}): {over_time()}"
        if -code == signal.SIGKILL:
            return f"a worker process was killed ({name}), as the system does when memory runs out"
        if -code == signal.SIGBUS:
            return f"a worker process crashed ({name}), as where the token store, or its disk, is cut while it is read"
        return f"a worker process crashed inside a library ({name}), perhaps over a damaged source"

    def _end(self, kill: bool) -> None:
        pool, self._pool = self._pool, None
        try:
            if pool is not None:
                if kill:
                    for process in _processes_of(pool):
                        process.kill()
                pool.shutdown(wait=True, cancel_futures=True)
        finally:
            self._context = multiprocessing.get_context("spawn")
            with suppress(PacktoolError):  # of the scratch folder, which somebody else may have tidied up
                self._kept.close()


def run_in_order(work: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Generator[Result, None, None]:
    """``Workers.run_in_order`` for a run of one stage."""
    with Workers(workers) as processes:
        yield from processes.run_in_order(work, tasks)


_AGAIN = "run the same command again, perhaps with fewer --workers"


_ONE_AT_A_TIME = threading.RLock()
"""What is set for new processes is set for this whole one, whose other threads may start some, too."""


@contextmanager
def _starting(told: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Start processes in the block, which are ``told`` something in their environment.

    An error of the system in it is for want of a process, or of what one needs.
    """
    try:
        with (
            _ONE_AT_A_TIME,
            _without_main_module(),
            _environment({**_WORKERS_ENVIRONMENT, **told}),
            _without_interrupts(),
        ):
            yield
    except (OSError, EOFError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise PacktoolError(f"no worker process can be started: {why}; {_AGAIN}") from None


def _processes_of(pool: ProcessPoolExecutor) -> list[BaseProcess]:
    # The pool's own record of its processes is the only list of those that are ours to stop and to ask.
    return list((getattr(pool, "_processes", None) or {}).values())


# multiprocessing has one fork server a program, which runs until that ends, with a socket in a temporary folder that
# stays where the program is killed. What follows reaches for its own records, so as to have neither, and to leave alone
# what the program itself does with it.
_SERVER: Any = forkserver._forkserver
_IS_KNOWN = all(hasattr(_SERVER, name) for name in ("_forkserver_pid", "_preload_modules", "_stop"))


@contextmanager
def _server_of(module: str, folder: Path) -> Iterator[None]:
    """Let a fork server that is started in the block import ``module`` first, and have its socket in ``folder``."""
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    tempdir, modules = settings.get("tempdir"), _SERVER._preload_modules
    settings["tempdir"], _SERVER._preload_modules = str(folder), [module]
    try:
        yield
    finally:
        settings["tempdir"], _SERVER._preload_modules = tempdir, modules


def _stop_server() -> None:
    if _SERVER._forkserver_pid is not None:
        with suppress(ProcessLookupError):
            # It may have seconds of loading ahead, and has nothing to lose.
            os.kill(_SERVER._forkserver_pid, signal.SIGKILL)
        with suppress(OSError):  # its end, or its socket, was taken away
            _SERVER._stop()
        _SERVER._forkserver_pid = _SERVER._forkserver_address = _SERVER._forkserver_alive_fd = None


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep processes that are started in the block from importing the user's script.

    Tasks are of packtool's own modules, so a worker has no need of the script; importing it, as spawned
    processes do, would run what stands there without ``if __name__ == "__main__":``, packing included.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_WORKERS_ENVIRONMENT = MappingProxyType(
    {
        # A new process takes multiprocessing and its modules from the current folder first, which is often one of
        # data from the internet and may hold a socket.py.
        "PYTHONSAFEPATH": "1",
        # The processes are the parallelism that was asked for; and what is to be forked must have no thread.
        "TOKENIZERS_PARALLELISM": "false",
        "FASTOKENS_BPE_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
    }
)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Put Ctrl-C and its like off to the end of the block here, and for good in processes that are started in it.

    A new process inherits the mask, so that no signal can reach it before it has settled what that means. In
    this one another thread may take the signal, so the handlers wait too: a process or a semaphore that is just
    being made is in no list of those to be cleaned up.
    """
    heard: list[int] = []
    in_main_thread = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in SIGNALS} if in_main_thread else {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if heard:
            signal.raise_signal(heard[0])


def _start_worker() -> None:
    # Ctrl-C, and often SIGTERM, reach the whole group of processes; the parent alone decides what they mean.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    bound_this_process()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
