"""The `speedwell` executable as tests run it: with a state directory of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from speedwell.cluster.processes import Processes, is_running
from tests.waiting import wait_until

SCRIPTS = Path(sys.executable).parent
TIMEOUT_SECONDS = 240     # nothing hangs; a busy machine takes its time


class Speedwell:
    """Runs commands that share one state directory, and so one default installation."""

    def __init__(self, state_directory: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPEEDWELL_")}
        self.environment = {**kept, "SPEEDWELL_STATE_DIRECTORY": str(state_directory),
                            "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}

    def run(self, *arguments: object, stdin: bytes = b"", cwd: Path | None = None
            ) -> subprocess.CompletedProcess[bytes]:
        """Run one command to its end, whatever that is."""
        return subprocess.run([str(SCRIPTS / "speedwell"), *map(str, arguments)], input=stdin, cwd=cwd,
                              capture_output=True, env=self.environment, timeout=TIMEOUT_SECONDS, check=False)

    def ok(self, *arguments: object, stdin: bytes = b"", binary: bool = False) -> Any:
        """Run a command that has to succeed; returns its standard output (text unless `binary`)."""
        result = self.run(*arguments, stdin=stdin)
        command = " ".join(map(str, arguments))
        assert result.returncode == 0, f"speedwell {command}: {result.returncode}\n{result.stderr.decode()}"
        return result.stdout if binary else result.stdout.decode()

    def start(self, *arguments: object, stdin: bytes | int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a command and leave it running. Bytes for standard input must fit a pipe's buffer (64 KiB)."""
        source = subprocess.PIPE if isinstance(stdin, bytes) else stdin
        process = subprocess.Popen([str(SCRIPTS / "speedwell"), *map(str, arguments)], stdin=source,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment)
        if isinstance(stdin, bytes):
            assert process.stdin is not None
            process.stdin.write(stdin)
            process.stdin.close()
        return process

    def shell(self, script: str) -> subprocess.CompletedProcess[bytes]:
        """Run a shell script that finds `speedwell` on its PATH."""
        return subprocess.run(["bash", "-c", script], capture_output=True, env=self.environment,
                              stdin=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS, check=False)


def pids(directory: Path) -> dict[str, int]:
    """Of the processes that run in an installation, by name."""
    return {record.name: record.pid for record in Processes(directory).running()}


def kill(directory: Path, *names: str) -> None:
    """kill -9, one after the other. Name the supervisor first where what is killed is to stay so."""
    for name in names:
        record = Processes(directory).find(name)
        assert record is not None, f"{name} does not run"
        os.kill(record.pid, signal.SIGKILL)
        wait_until(lambda record=record: not is_running(record), 15, f"{name} is dead")  # type: ignore[misc]


def error_line(result: subprocess.CompletedProcess[bytes]) -> str:
    """The one line that a command said on standard error."""
    lines = result.stderr.decode().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("speedwell: ")
    return lines[0]
