"""An installation whose programs are of the version before and are replaced by this tree's, as an upgrade does it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from speedwell.cluster.processes import Processes, is_running
from tests.version_before import VersionBefore
from tests.waiting import wait_until

SECONDS = 120.0
"""How long a process may take to be there again: other tests keep the cores busy."""

_NEW = """#!/bin/sh
exec env -u PYTHONPATH {program} "$@"
"""


class Installed:
    """The programs beside an interpreter of their own in `directory`, all of the version before at first: a
    supervisor that runs on it starts a daemon again in the version that lies there then."""

    def __init__(self, directory: Path, before: VersionBefore) -> None:
        self._before = before
        self._bin, self._new = directory / "bin", directory / "new"
        for place in (self._bin, self._new):
            place.mkdir(parents=True)
        own = Path(sys.executable).parent
        shutil.copy(own.parent / "pyvenv.cfg", directory)
        (directory / "lib").symlink_to(own.parent / "lib")
        (self._bin / "python").symlink_to(os.path.realpath(sys.executable))
        for program in before.scripts.iterdir():
            script = self._new / program.name
            script.write_text(_NEW.format(program=own / program.name))
            script.chmod(0o755)
        self.install(new=False)

    def call(self, code: str, *arguments: object, new: bool = False) -> str:
        """What a program of a version prints; in `code` its modules are those below PACKAGE."""
        prefix = "speedwell." if new or self._before.package != "fs" else ""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [self._bin / "python", "-P", "-c", code.replace("PACKAGE.", prefix), *map(str, arguments)], cwd="/",
            env=kept if new else {**kept, "PYTHONPATH": str(self._before.tree)}, check=True, stdout=subprocess.PIPE,
            text=True, timeout=300).stdout

    def install(self, *, new: bool) -> None:
        """All programs of a version, for what is started from now on."""
        for program in self._before.scripts.iterdir():
            self._put(program.name, new=new)

    def restart(self, directory: Path, name: str, program: str, *, new: bool, number: int = signal.SIGTERM) -> None:
        """Put another version of `program` there, end the process `name` of the installation in `directory`, and wait
        until its supervisor has started it again."""
        self._put(program, new=new)
        record = Processes(directory).find(name)
        assert record is not None, f"{name} does not run"
        os.kill(record.pid, number)
        wait_until(lambda: not is_running(record), SECONDS, f"{name} does not end")

        def is_ready_again() -> bool:
            now = Processes(directory).find(name)
            return now is not None and now.pid != record.pid and bool(now.address)

        wait_until(is_ready_again, SECONDS, lambda: f"{name} is not started again: {_why(directory, name)}")
        again = Processes(directory).find(name)
        assert again is not None
        environment = Path(f"/proc/{again.pid}/environ").read_bytes().split(b"\0")
        assert (f"PYTHONPATH={self._before.tree}".encode() in environment) is not new, f"{name} runs the other one"

    def _put(self, program: str, *, new: bool) -> None:
        link = self._bin / f"{program}.next"
        link.symlink_to((self._new if new else self._before.scripts) / program)
        link.replace(self._bin / program)


def _why(directory: Path, name: str) -> str:
    told = json.loads((directory / "supervision.json").read_text())["processes"]
    log = directory / "logs" / f"{name}.log"
    return f"{told.get(name)}\n{log.read_text()[-3000:] if log.exists() else ''}"
