"""Starts again what ends of an installation's processes, for as long as the installation is up.

    DIRECTORY/supervision.json    what was started again and why; the supervisor writes it for `speedwell status`
"""

import json
import logging
import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from speedwell.cluster.errors import AlreadyRunning, ClusterError, InvalidState, NotRunning, StartFailed
from speedwell.cluster.processes import Command, Processes, ProcessRecord, start_ticks
from speedwell.cluster.restarts import Restarts
from speedwell.cluster.state_files import STATE_MODE
from speedwell.fs import durable, logs

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
PURPOSE = "the supervisor"


class Supervision:
    """Of the installation that `processes` holds. `wanted` names the processes that should run now, in the order in
    which they are started; `command` makes the command of one."""

    def __init__(self, processes: Processes, wanted: Callable[[], Sequence[str]],
                 command: Callable[[str], Command]) -> None:
        self._processes = processes
        self._wanted = wanted
        self._command = command
        self._restarts: dict[str, Restarts] = {}
        self._told = ""

    def run(self) -> None:
        """Until an exception of a signal handler ends it. If the installation is removed from the disk, or moved, no
        command finds its processes any more: they are ended, and NotRunning is raised."""
        known = self._processes.records
        while self._processes.state_file.exists():
            self.look()
            known = self._processes.records or known
            self._wait()
        for record in reversed(known):
            if record.pid != os.getpid():
                self._processes.end(record)
        raise NotRunning(f"{self._processes.directory} does not hold an installation any more")

    def look(self) -> None:
        """Find out what has ended, and start again what is due."""
        try:
            self._processes.load()
            self._note_ended()
            if self._due():
                with self._processes.exclusive(PURPOSE):
                    self._note_ended()
                    for name in self._due():
                        self._start(name)
        except AlreadyRunning:
            log.debug("another command is at work")   # it may be what ends the processes: look again later
        except (ClusterError, OSError) as error:
            log.error("%s", error)
        self._rotate_logs()
        self._tell()

    def state(self) -> list[tuple[str, bool, int]]:
        """Of each process that should run: its name, whether it runs, how often it was started again."""
        running = {record.name for record in self._processes.running()}
        restarts = dict(self._restarts)
        return [(name, name in running, restarts[name].count if name in restarts else 0) for name in self._names()]

    # ------------------------------------------------------------------ private

    def _rotate_logs(self) -> None:
        for record in self._processes.running():
            try:
                if Path(record.log).stat().st_size > logs.MAX_BYTES:
                    logs.rotate(record.log, f"{record.log}.1")
            except OSError as error:
                log.error("%s cannot be rotated: %s", record.log, error.strerror)

    def _note_ended(self) -> None:
        running = {record.name for record in self._processes.running()}
        ended = {record.name: record for record in self._processes.records if record.name not in running}
        now = time.monotonic()
        for name in self._names():
            restarts = self._restarts.get(name)
            if name in running:
                if restarts is not None and restarts.due_seconds is not None:
                    restarts.due_seconds = None    # `up` has started it
            elif restarts is None or restarts.due_seconds is None:
                restarts = self._restarts.setdefault(name, Restarts())
                restarts.ended(self._why(ended.get(name)), now)
                log.warning("%s: %s", name, restarts.reason)

    def _why(self, record: ProcessRecord | None) -> str:
        if record is None:
            return "it does not run"
        return f"it ended (pid {record.pid}{self._processes.how_it_ended(record)})"

    def _names(self) -> list[str]:
        """What should run, also what could not be started the last time."""
        names = list(self._wanted())
        return names + [name for name, restarts in list(self._restarts.items())
                        if restarts.due_seconds is not None and name not in names]

    def _due(self) -> list[str]:
        now = time.monotonic()
        return [name for name in self._names() if name in self._restarts and self._restarts[name].is_due(now)]

    def _start(self, name: str) -> None:
        restarts = self._restarts[name]
        self._processes.forget_dead([name])
        try:
            self._processes.start(self._command(name), keep_log=True)
        except StartFailed as error:
            restarts.failed(str(error).splitlines()[0], time.monotonic())
            log.error("%s is not started again: %s", name, restarts.reason)
            return
        restarts.started(time.monotonic())
        log.warning("%s was started again", name)

    def _wait(self) -> None:
        """Until a process ends, or it is time for the next look."""
        now = time.monotonic()
        due = [restarts.due_seconds - now for restarts in self._restarts.values() if restarts.due_seconds is not None]
        seconds = min([LOOK_SECONDS, *(max(0.05, left) for left in due)])
        handles: list[int] = []
        poll = select.poll()
        try:
            for record in self._processes.running():
                try:
                    handles.append(os.pidfd_open(record.pid))
                except ProcessLookupError:
                    return
                poll.register(handles[-1], select.POLLIN)
            poll.poll(seconds * 1000)
        finally:
            for handle in handles:
                os.close(handle)

    def _tell(self) -> None:
        told = json.dumps({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "processes": {
            name: {"count": restarts.count, "failures": restarts.failures, "reason": restarts.reason}
            for name, restarts in self._restarts.items()}}, indent=2) + "\n"
        if told != self._told:
            try:
                durable.replace(_file(self._processes.directory), told.encode(), STATE_MODE)
                self._told = told
            except OSError as error:
                log.error("%s: %s", _file(self._processes.directory), error.strerror)


@dataclass(frozen=True)
class Told:
    """What the supervisor of an installation says of a process: how often it was started again, how often in a row
    that was in vain, and what happened last."""

    count: int = 0
    failures: int = 0
    reason: str = ""


def told(directory: Path) -> dict[str, Told] | None:
    """By process; None if no supervisor runs. Raises InvalidState for a damaged file."""
    path = _file(directory)
    try:
        state = json.loads(path.read_text())
        if start_ticks(state["pid"]) != state["start_ticks"]:
            return None
        return {name: Told(**values) for name, values in state["processes"].items()}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidState(f"{path} is damaged: remove it") from error


def _file(directory: Path) -> Path:
    return directory / "supervision.json"
