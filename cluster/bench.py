"""A quick benchmark of an installation: large files, small files, names. Everything it makes is removed."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from speedwell.fs import paths
from speedwell.fs.errors import NoSuchFile

if TYPE_CHECKING:
    from speedwell.fs.client import Client

PURGED_AT_ONCE = 1000

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """How much is done: for each of `threads`, one file of `big_bytes` and `small_files` of `small_bytes`."""

    threads: int
    big_bytes: int
    small_bytes: int
    small_files: int


@dataclass(frozen=True)
class Row:
    """One measurement. `rate` is in `unit`; `seconds_each` is what one file took the thread that worked on it."""

    item: str
    rate: float
    unit: str
    seconds_each: float


def run(client: Client, directory: bytes, work: Work, progress: Progress) -> list[Row]:
    """Measure in a directory of its own below `directory`, which is removed whatever happens.

    Raises the errors of speedwell.fs.errors, also if something could not be removed.
    """
    with (_own_directory(client, directory) as place, _source(work.big_bytes) as big_source,
          _source(work.small_bytes) as small_source):
        big = [paths.join(place, b"big-%d" % thread) for thread in range(work.threads)]
        small = [[paths.join(place, b"small-%d-%d" % (thread, number)) for number in range(work.small_files)]
                 for thread in range(work.threads)]
        single = [[path] for path in big]

        rows = []
        for item, files, act, size_bytes in (
                ("write big files", single, partial(_write, client, big_source), work.big_bytes),
                ("read big files", single, partial(_read, client), work.big_bytes),
                ("write small files", small, partial(_write, client, small_source), 0),
                ("read small files", small, partial(_read, client), 0),
                ("stat files", small, lambda path: client.lookup(path, fresh=True), 0),
                ("remove files", small, client.remove, 0)):
            progress(item)
            rows.append(_measured(item, files, act, size_bytes))
        return rows


def _measured(item: str, files: list[list[bytes]], act: Callable[[bytes], object], size_bytes: int) -> Row:
    """Each thread goes through its files. With `size_bytes` of each the rate is in MiB/s, otherwise in files/s."""
    stopped = threading.Event()

    def work(own: Iterable[bytes]) -> None:
        for path in own:
            if stopped.is_set():
                return
            act(path)

    threads = ThreadPoolExecutor(len(files))
    began = time.perf_counter()
    try:
        done = wait([threads.submit(work, own) for own in files], return_when=FIRST_EXCEPTION).done
        for each in done:
            each.result()
    finally:
        stopped.set()
        threads.shutdown(cancel_futures=True)
    seconds, count = time.perf_counter() - began, sum(map(len, files))
    rate, unit = (count * size_bytes / (1 << 20), "MiB/s") if size_bytes else (count, "files/s")
    return Row(item, rate / seconds, unit, seconds * len(files) / count)


def _write(client: Client, source: str, path: bytes) -> None:
    content = os.open(source, os.O_RDONLY)
    try:
        client.store(path, content)
    finally:
        os.close(content)


def _read(client: Client, path: bytes) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        client.fetch(path, nowhere)
    finally:
        os.close(nowhere)


@contextmanager
def _source(size_bytes: int) -> Iterator[str]:
    """A file in memory with bytes that cannot be made fewer, by its path."""
    descriptor = os.memfd_create("speedwell-bench")
    try:
        block = secrets.token_bytes(1 << 20)
        for start in range(0, size_bytes, len(block)):
            os.write(descriptor, block[:size_bytes - start])
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def _own_directory(client: Client, above: bytes) -> Iterator[bytes]:
    place = paths.join(above, b".speedwell-bench-" + secrets.token_hex(6).encode())
    client.mkdir(place, mode=0o700)
    try:
        yield place
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            _remove(client, place)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _remove(client: Client, place: bytes) -> None:
    for entry in client.list(place):
        with suppress(NoSuchFile):
            client.remove(paths.join(place, entry.name))
    client.rmdir(place)
    kept = [entry for entry in client.metadata.trash.entries() if paths.is_within(entry.path, place)]
    for first in range(0, len(kept), PURGED_AT_ONCE):
        client.metadata.trash.purge(kept[first:first + PURGED_AT_ONCE])
