"""Reading processes on the emulated hosts, told by a pipe what to read.

One program serves all hosts, so that a read costs no start of a process. It speaks JSON, an object a line. Its
first line of input is `{"hosts": {NAME: {"pid", "ip", ...}}, ...}`. Then each line asks for a read,
`{"id", "host", "path", "size_bytes", ...}`, to begin at once; when it has ended the program answers, in any order,
`{"id", "started", "finished", "bytes", "sources", "steered"}`, where it knows them with `paths` and `estimated_bps`
(see `ReadReport`), or `{"id", "error"}`. Times are of the monotonic
clock, which all processes of a machine share. At the end of its input the program leaves at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

from speedwell.cluster.errors import ClusterError
from speedwell.cluster.processes import log_tail
from speedwell.evaluation.replay.system import ReadReport

STOP_TIMEOUT_SECONDS = 5.0


class ReadingFailed(ClusterError):
    """A host could not read a file, or its reading process ended."""


class ReaderAgents:
    """The reading processes of all hosts, behind one program. Thread-safe."""

    def __init__(self, argv: Sequence[str], settings: dict[str, Any], log: Path) -> None:
        """Start `argv` and give it its first line; what it says on standard error goes to `log`."""
        self._log = log
        self._numbers = count()
        self._lock = threading.Lock()
        self._running: dict[int, Future[ReadReport]] = {}
        self._ended = False
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            # a session of its own: Ctrl-C is for us, they end with their input
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                             start_new_session=True)
        threading.Thread(target=self._hear, name="replies", daemon=True).start()
        self._say(settings)

    def read(self, host: str, path: str, size_bytes: int, **options: Any) -> Future[ReadReport]:
        """Ask `host` to read a file now. The future fails with ReadingFailed."""
        report: Future[ReadReport] = Future()
        number = next(self._numbers)
        with self._lock:
            if self._ended:
                report.set_exception(self._gone())
                return report
            self._running[number] = report
        self._say({"id": number, "host": host, "path": path, "size_bytes": size_bytes, **options})
        return report

    def close(self) -> None:
        """End the program and every read that runs."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)    # the children of a program that was killed, too
        self._process.wait()

    def _say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._lock:   # `_hear` fails what runs
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                report = self._running.pop(answer["id"])
            if "error" in answer:
                report.set_exception(ReadingFailed(answer["error"]))
            else:
                report.set_result(ReadReport(answer["started"], answer["finished"], answer["bytes"],
                                             tuple(answer["sources"]), answer["steered"],
                                             tuple(tuple(path) for path in answer.get("paths", ())),
                                             answer.get("estimated_bps")))
        with self._lock:
            self._ended = True
            unfinished, self._running = self._running, {}
        for report in unfinished.values():
            report.set_exception(self._gone())

    def _gone(self) -> ReadingFailed:
        return ReadingFailed(f"the reading processes of the hosts have ended{log_tail(self._log)}")
