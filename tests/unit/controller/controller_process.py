"""The `speedwell-controller` command as a process on loopback, and what it says over REST."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = str(Path(sys.executable).with_name("speedwell-controller"))


class Process:
    """A controller that runs. `openflow` and `rest` are its addresses."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), log.read_text()
        where = dict(word.split("=") for word in line.split()[1:])
        self.openflow, self.rest = (_address(where[name]) for name in ("openflow", "rest"))
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, url: str) -> Any:
        """The JSON, or text, of an answer; None if nobody answers."""
        try:
            with urllib.request.urlopen("http://{}:{}".format(*self.rest) + url, timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        return text if url == "/metrics" else json.loads(text)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.get("/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


@contextmanager
def controller_process(*arguments: str, prefix: Sequence[str] = ()) -> Iterator[Process]:
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen([*prefix, PROGRAM, "--openflow-port", "0", "--rest-port", "0", *arguments],
                                   stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield Process(process, Path(log.name))
        finally:
            process.kill()
            process.communicate()


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What `condition` gives as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result
