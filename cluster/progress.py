"""A progress bar for transfers that take long enough to want one."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_SECONDS = 0.7


class Meter:
    """Shows bytes moved (or `entries` done) on standard error, if that is a terminal and the work takes long.

    rich is imported only then: a short command does not pay for it. Thread-safe. A `total` of None is not
    known (a pipe).
    """

    def __init__(self, description: str, total: int | None, counts: str = "bytes") -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._counts = counts
        self._bar: Progress | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE_SECONDS, self._show) if sys.stderr.isatty() else None

    def advance(self, count: int) -> None:
        """`count` more bytes (or entries) are done."""
        with self._lock:
            self._done += count
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self._done)

    def expect(self, total: int) -> None:
        """The total became known."""
        with self._lock:
            self._total = total
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], total=total)

    def __enter__(self) -> Meter:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._lock:
            bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns: list[ProgressColumn] = [MofNCompleteColumn()]
        if self._counts == "bytes":
            columns = [DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()]
        bar = Progress(TextColumn("{task.description}", markup=False), BarColumn(), *columns,
                       console=Console(stderr=True), transient=True)
        with self._lock:
            if self._timer is None:  # the work ended while rich was being imported
                return
            bar.add_task(self._description, total=self._total, completed=self._done)
            bar.start()
            self._bar = bar
