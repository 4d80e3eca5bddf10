"""Daemon processes of one installation: started, recorded, found again, stopped.

An installation is a directory:

    DIRECTORY/state.json   the processes (pid and start time) and the caller's settings, replaced atomically
    DIRECTORY/lock         flock held by the command that is changing the installation
    DIRECTORY/logs/NAME.log    standard output and standard error of each process (NAME.log.1: the run before)

A process is identified by its pid *and* its start time, so that a reused pid is never taken for, or
killed as, a process of ours. Every daemon of ours prints one line `ready ADDRESS...` when it serves.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from speedwell.cluster.errors import ClusterError, InvalidState, StartFailed, StopFailed
from speedwell.cluster.state_files import STATE_MODE, exclusive
from speedwell.fs import durable, insecure

STATE_FILE, STATE_VERSION = "state.json", 1
LOG_LINES_IN_ERROR = 12
POLL_SECONDS = 0.02
KILL_WAIT_SECONDS = 5.0
# The child becomes the daemon only once it is recorded: if the caller is killed before, it reads the end of
# its input and leaves, so no process runs that no state file knows of.
GATE = ("/bin/sh", "-c", 'read go && exec "$@" </dev/null', "sh")
READY_LINE = re.compile(rb"^ready\b[ \t]*([^\r\n]*)\n", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A daemon to start. `prefix` goes before `argv`, for example `("nsenter", "--net=...", "--")`; it must exec
    the program (not fork it), so that the recorded pid is the daemon's. `ready_line` is what its log says when it
    serves, with its address as the first group; `last_words` are what it may say at its end, and what that means."""

    name: str
    argv: Sequence[str]
    prefix: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_seconds: float = 60.0
    ready_line: re.Pattern[bytes] = READY_LINE
    last_words: Mapping[bytes, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessRecord:
    """A started daemon as the state file holds it. `address` is what followed `ready`; empty until then.
    Processes of one `stage` were started together and are stopped together."""

    name: str
    pid: int
    start_ticks: int
    stage: int
    argv: list[str]
    log: str
    address: str = ""


# ------------------------------------------------------------------ identity


def start_ticks(pid: int) -> int | None:
    """Start time of a running process in clock ticks since boot; None if there is none or it has ended.

    A killed process whose first thread is a zombie runs on until its last thread has ended: only then are its
    ports and locks free.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    fields = stat[stat.rindex(b")") + 2:].split()
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    return None if state in (b"Z", b"X") and threads <= 1 else started


def boot_id() -> str:
    """Identity of this boot of the machine: start times of an earlier boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def is_running(record: ProcessRecord) -> bool:
    """Whether the very process of `record` still runs."""
    return start_ticks(record.pid) == record.start_ticks


def resident_bytes(record: ProcessRecord) -> int | None:
    """Resident memory of a process in bytes; None if it does not run."""
    if not is_running(record):
        return None
    with suppress(OSError):
        for line in Path(f"/proc/{record.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return None


def program(name: str) -> str:
    """Path of one of our executables: beside the running interpreter, else on the PATH.

    Raises ClusterError if it is not installed.
    """
    beside = Path(sys.executable).parent / name
    if beside.exists():
        return str(beside)
    found = shutil.which(name)
    if found is None:
        raise ClusterError(f"the program {name} is not installed beside {sys.executable} nor on the PATH; "
                           "run scripts/setup")
    return found


# ----------------------------------------------------------------- processes


class Processes:
    """The processes of the installation in `directory`, and the caller's `settings` kept with them.

    `settings` is any JSON object; call `save()` after changing it. Changing calls (start, stop, save) belong
    inside `with processes.exclusive(PURPOSE)`. Raises InvalidState if the state file is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.records: list[ProcessRecord] = []
        self.settings: dict[str, Any] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._log_starts: dict[int, int] = {}
        self.load()

    @property
    def state_file(self) -> Path:
        return self.directory / STATE_FILE

    @property
    def log_directory(self) -> Path:
        return self.directory / "logs"

    @contextmanager
    def exclusive(self, purpose: str) -> Iterator[None]:
        """Hold the installation's lock; the state is read again under it. Raises AlreadyRunning."""
        with exclusive(self.directory / "lock", purpose):
            self.load()
            yield

    def load(self) -> None:
        """Read the state file. Processes of an earlier boot are forgotten, settings are kept."""
        try:
            text = self.state_file.read_text()
        except FileNotFoundError:
            self.records, self.settings = [], {}
            return
        except OSError as error:
            raise InvalidState(f"cannot read {self.state_file}: {error.strerror}") from error
        try:
            state = json.loads(text)
            if state["version"] != STATE_VERSION:
                raise ValueError(f"version {state['version']}")
            same_boot = state["boot_id"] == boot_id()
            self.records = [ProcessRecord(**record) for record in state["processes"]] if same_boot else []
            self.settings = dict(state["settings"])
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidState(f"{self.state_file} is not a state file of this version of Speedwell; "
                               "if no process of it runs any more, remove it") from error

    def save(self) -> None:
        """Replace the state file atomically; it is on disk when this returns."""
        self.directory.mkdir(parents=True, exist_ok=True)
        state = {"version": STATE_VERSION, "boot_id": boot_id(), "settings": self.settings,
                 "processes": [asdict(record) for record in self.records]}
        durable.replace(self.state_file, (json.dumps(state, indent=2) + "\n").encode(), STATE_MODE)

    def running(self) -> list[ProcessRecord]:
        """The recorded processes that still run, in the order they were started."""
        return [record for record in self.records if is_running(record)]

    def find(self, name: str) -> ProcessRecord | None:
        """The running process of that name."""
        return next((record for record in self.running() if record.name == name), None)

    def forget_dead(self, names: Sequence[str] | None = None) -> list[ProcessRecord]:
        """Drop the records of processes (those of `names`) that no longer run; returns them."""
        dead = [record for record in self.records if not is_running(record)
                and (names is None or record.name in names)]
        if dead:
            self._drop(dead, survivors=())
            self.save()
        return dead

    def how_it_ended(self, record: ProcessRecord) -> str:
        """`, signal 9` or `, exit code 1` of a process that this one has started; of others nobody knows."""
        child = self._children.get(record.pid)
        return "" if child is None or child.poll() is None else f", {_how(child.returncode)}"

    def end(self, record: ProcessRecord, timeout_seconds: float = 10.0) -> None:
        """Stop a process without touching the state file: SIGTERM, then SIGKILL."""
        self._stop_stage([record], timeout_seconds)

    def start(self, command: Command, *, keep_log: bool = False) -> ProcessRecord:
        """Start one daemon and wait until it is ready; with `keep_log` its log goes on. Raises StartFailed; it is
        stopped then."""
        return self.start_together([command], keep_log=keep_log)[0]

    def start_together(self, commands: Sequence[Command], progress: Callable[[str], None] = lambda name: None, *,
                       keep_log: bool = False) -> list[ProcessRecord]:
        """Start daemons that do not need each other and wait until all are ready.

        They get an environment with PYTHONUNBUFFERED, `/` as working directory, a session of their own and
        no standard input, so they outlive the caller. `progress` is called with the name of each one that is
        ready. Raises StartFailed naming the first that failed; all of this call are stopped then, earlier
        ones keep running.
        """
        stage = 1 + max((record.stage for record in self.records), default=-1)
        started: list[tuple[Command, int]] = []
        try:
            for command in commands:
                if self.find(command.name):
                    raise StartFailed(f"{command.name} runs already (log {self._log(command.name)})")
                started.append((command, self._spawn(command, stage, keep_log)))
            for command, index in started:
                address = self._wait_ready(command, self.records[index])
                self.records[index] = ProcessRecord(**{**asdict(self.records[index]), "address": address})
                self.save()
                progress(command.name)
        except BaseException:
            together = [record for record in self.records if record.stage == stage]
            self._drop(together, survivors=self._stop_stage(together, 2.0))
            self.save()
            raise
        return [self.records[index] for _, index in started]

    def stop(self, *, timeout_seconds: float = 10.0, names: Sequence[str] | None = None,
             progress: Callable[[str], None] = lambda name: None) -> None:
        """Stop all processes (or those of `names`), the last started stage first: SIGTERM, up to
        `timeout_seconds` per stage, then SIGKILL. Processes that are gone already are no error.

        Raises StopFailed if one survives SIGKILL (it hangs in the kernel); its record is kept.
        """
        chosen = [record for record in self.records if names is None or record.name in names]
        survivors: list[ProcessRecord] = []
        for stage in sorted({record.stage for record in chosen}, reverse=True):
            together = [record for record in chosen if record.stage == stage]
            survivors += self._stop_stage(together, timeout_seconds, progress)
            self._drop(together, survivors)
            self.save()
        if survivors:
            which = ", ".join(f"{record.name} (pid {record.pid})" for record in survivors)
            raise StopFailed(f"still running after SIGKILL: {which}; they wait inside the kernel, look at "
                             "/proc/PID/stack")

    def _log(self, name: str) -> Path:
        return self.log_directory / f"{name}.log"

    def _drop(self, records: Sequence[ProcessRecord], survivors: Sequence[ProcessRecord]) -> None:
        self.records = [kept for kept in self.records if kept not in records or kept in survivors]

    def _spawn(self, command: Command, stage: int, keep_log: bool) -> int:
        """Start and record a daemon; returns its index in `records`."""
        log = self._log(command.name)
        self.log_directory.mkdir(parents=True, exist_ok=True)
        if log.exists() and not keep_log:
            log.replace(log.with_name(log.name + ".1"))
        argv = [*command.prefix, *command.argv]
        if shutil.which(argv[0]) is None:
            raise StartFailed(f"cannot start {command.name}: {argv[0]} is not an executable program")
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **command.env}
        environment.pop(insecure.VARIABLE, None)    # each command says it, or has an identity
        try:
            with log.open("ab") as output:
                log_starts = output.tell()
                child = subprocess.Popen([*GATE, *argv], stdin=subprocess.PIPE, stdout=output, stderr=output,
                                         cwd="/", env=environment, start_new_session=True)
        except OSError as error:
            raise StartFailed(f"cannot start {command.name}: {argv[0]}: {error.strerror}") from error
        self._children[child.pid] = child
        self._log_starts[child.pid] = log_starts
        # A child that died at once is a zombie of ours until it is polled: its pid cannot be reused yet.
        ticks = start_ticks(child.pid) or 0
        record = ProcessRecord(command.name, child.pid, ticks, stage, list(argv), str(log))
        self.records.append(record)
        self.save()
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin:
            child.stdin.write(b"go\n")
        return len(self.records) - 1

    def _wait_ready(self, command: Command, record: ProcessRecord) -> str:
        deadline = time.monotonic() + command.ready_timeout_seconds
        log = Path(record.log)
        child = self._children[record.pid]
        while True:
            exit_code = child.poll()
            written = log.read_bytes()[self._log_starts[record.pid]:]
            match = command.ready_line.search(written)
            if match and exit_code is None:
                return match.group(1).decode(errors="replace").strip()
            if exit_code is not None:
                for words, meaning in command.last_words.items():
                    if words in written:
                        raise StartFailed(f"{command.name} stopped: {meaning}")
                raise StartFailed(f"{command.name} stopped ({_how(exit_code)}) before it was ready{log_tail(log)}")
            if time.monotonic() > deadline:
                raise StartFailed(f"{command.name} was not ready after {command.ready_timeout_seconds:g} s"
                                  f"{log_tail(log)}")
            time.sleep(POLL_SECONDS)

    def _stop_stage(self, records: Sequence[ProcessRecord], timeout_seconds: float,
                    progress: Callable[[str], None] = lambda name: None) -> list[ProcessRecord]:
        """Stop processes together; returns those that survive even SIGKILL."""
        opened = {record.name: _open_process(record) for record in records}
        handles = {name: handle for name, handle in opened.items() if handle is not None}
        steps = ((signal.SIGTERM, timeout_seconds), (signal.SIGKILL, KILL_WAIT_SECONDS))
        try:
            for number, wait_seconds in steps:
                alive = [handle for handle in handles.values() if not _has_ended(handle)]
                for handle in alive:
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(handle, number)
                        signal.pidfd_send_signal(handle, signal.SIGCONT)    # one that was stopped ends at once
                _wait_ended(alive, wait_seconds)
            survivors = [record for record in records
                         if record.name in handles and not _has_ended(handles[record.name])]
        finally:
            for handle in handles.values():
                os.close(handle)
        for record in records:
            if record not in survivors:
                if record.pid in self._children:
                    self._children.pop(record.pid).wait()
                progress(record.name)
        return survivors


# ------------------------------------------------------------------- helpers


def _how(exit_code: int) -> str:
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def log_tail(log: Path, lines: int = LOG_LINES_IN_ERROR) -> str:
    """The last lines of a log, indented, as the end of an error message."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 65536))
            text = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return f" (no log at {log})"
    if not text:
        return f"; it wrote nothing to {log}"
    return f"; the end of {log}:\n" + "\n".join(f"    {line}" for line in text[-lines:])


def _open_process(record: ProcessRecord) -> int | None:
    """A pidfd of the recorded process: what it refers to cannot change between the check and the signal."""
    try:
        handle = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return None
    if is_running(record):
        return handle
    os.close(handle)
    return None


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _wait_ended(handles: Sequence[int], timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    waiting = set(handles)
    while waiting and (left := deadline - time.monotonic()) > 0:
        poll = select.poll()
        for handle in waiting:
            poll.register(handle, select.POLLIN)
        waiting -= {handle for handle, _ in poll.poll(left * 1000)}
