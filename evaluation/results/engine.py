"""Runs many independent tasks on all cores of this machine, or on a Dask cluster, and keeps each result at once."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import as_completed as local_as_completed
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Lock
from typing import Any, Protocol, TypeVar

from numba.core import event

from speedwell.controller.own_policies import failed_in
from speedwell.evaluation.results.results_file import ResultsFile
from speedwell.sim.errors import InvalidSetting, PolicyFailed

CONNECT_SECONDS = 5


class Task(Protocol):
    """One run. It can be pickled; its parameters are JSON values and tell it from all others."""

    def parameters(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=Task)
Result = dict[str, Any]


def run_all(tasks: Sequence[T], run: Callable[[T], Result], results: ResultsFile, finished: Callable[[int], None],
            scheduler: str | None = None) -> list[Result]:
    """Run what `results` does not have yet, adding each as it comes; returns all in the order of `tasks`.

    `run` is a function of a module: it is called in other processes, and gives the task's parameters under `task`.
    `finished` hears how many are done. `scheduler` is the address of a Dask scheduler whose workers run the tasks.
    What `run` raises ends the sweep. Raises InvalidSetting if there is no such scheduler.
    """
    def kept() -> list[Result]:
        return [result for task in tasks if (result := results.get(task.parameters())) is not None]

    missing = [task for task in tasks if results.get(task.parameters()) is None]
    done = len(tasks) - len(missing)
    finished(done)
    if missing:
        with _on_this_machine(missing, run) if scheduler is None else _on_dask(scheduler, missing, run) as coming:
            try:
                for new in coming:
                    results.add(new)
                    done += 1
                    finished(done)
            except KeyboardInterrupt:       # which may come after a run was kept and before that was told
                finished(len(kept()))
                raise
    return kept()


@contextmanager
def _on_this_machine(tasks: Sequence[T], run: Callable[[T], Result]) -> Iterator[Iterator[Result]]:
    context = multiprocessing.get_context("spawn")
    workers = min(os.cpu_count() or 1, len(tasks))
    pool = ProcessPoolExecutor(max_workers=workers, mp_context=context, initializer=_prepare_worker,
                               initargs=(context.Lock(),))
    try:
        futures = [pool.submit(_run, run, task) for task in tasks]
        yield (future.result() for future in local_as_completed(futures))
    finally:
        try:
            pool.shutdown(cancel_futures=True)
        except KeyboardInterrupt:
            # Whoever interrupts again does not want to wait for what runs; the pool alone would wait for ever.
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def _run(run: Callable[[T], Result], task: T) -> Result:
    try:
        return run(task)
    except Exception as error:
        if failed := failed_in(error):
            raise PolicyFailed(failed) from None
        raise


def _prepare_worker(untold: Lock) -> None:
    """Ctrl-C reaches all processes of a terminal: the parent lets what runs end, and nothing new begins."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    event.register("numba:compile", _Compilation(untold))


class _Compilation(event.Listener):  # type: ignore[misc]  # numba has no types
    """Says that the first of all workers compiles: that takes long, and looks as if nothing happened."""

    def __init__(self, untold: Lock) -> None:
        self._untold = untold

    def on_start(self, event: event.Event) -> None:
        if self._untold.acquire(block=False):
            over_a_bar = "\r\x1b[2K" if sys.stderr.isatty() else ""
            print(f"{over_a_bar}compiling the simulator: a minute or two, the first time only", file=sys.stderr,
                  flush=True)

    def on_end(self, event: event.Event) -> None:
        """Nothing is said of it."""


@contextmanager
def _on_dask(address: str, tasks: Sequence[T], run: Callable[[T], Result]) -> Iterator[Iterator[Result]]:
    try:
        from distributed import Client, as_completed
        from distributed.comm import resolve_address
    except ImportError:
        raise InvalidSetting("scheduler: needs the package `distributed`: pip install -e '.[dask]' in a clone of "
                             "Speedwell, here and where the workers run") from None
    try:
        client = Client(resolve_address(address), timeout=CONNECT_SECONDS)
    except (OSError, ValueError):
        raise InvalidSetting(f"scheduler: no Dask scheduler answers at {address}") from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise InvalidSetting(f"scheduler: {address} has no workers: start `dask worker {address}` where they are")
        futures = client.map(partial(_run, run), tasks, pure=False)
        try:
            yield (future.result() for future in as_completed(futures))
        finally:
            client.cancel(futures)
