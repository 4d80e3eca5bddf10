"""Programs of one version each that append and read while an installation is upgraded."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from speedwell import fs
from speedwell.fs.client import Client
from tests import upgrade_load
from tests.waiting import wait_until

NEW_CLIENT = f"{fs.__name__}.client"
ROUNDS = 2


class Load:
    """A program that does `upgrade_load` with the client `module`, with modules from `path` first."""

    def __init__(self, name: str, module: str, nameserver: str, directory: Path, identity: Path, path: Path | None,
                 interpreter: Sequence[str] = (sys.executable,)) -> None:
        self.name = name
        self._output = directory / f"{name}.output"
        self._errors = directory / f"{name}.errors"
        own = {"SPEEDWELL_IDENTITY": str(identity)}
        if path is not None:
            own["PYTHONPATH"] = str(path)
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*interpreter, upgrade_load.__file__, module, nameserver, name],
                stdin=subprocess.PIPE, stdout=output, stderr=errors, env=os.environ | own)

    @property
    def offsets(self) -> list[int]:
        """Of its records in /shared, as far as all of them was acknowledged and read back."""
        return [int(line) for line in self._output.read_text().splitlines()]

    def require_progress(self, timeout_seconds: float = 30) -> None:
        """Another few records, each of them acknowledged and read back."""
        before = len(self.offsets)
        wait_until(lambda: self._process.poll() is not None or len(self.offsets) >= before + ROUNDS, timeout_seconds,
                   f"{self.name} stands still")
        assert self._process.poll() is None, self._errors.read_text()

    def end(self) -> None:
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0, self._errors.read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def require_contents(client: Client, offsets: Mapping[str, Sequence[int]]) -> None:
    """Every record that was acknowledged is there, once and in its place: of each program those in /shared at its
    `offsets`."""
    for name, own in offsets.items():
        assert upgrade_load.read(client, f"/{name}", 0, len(own) * upgrade_load.RECORD_BYTES + 1) == b"".join(
            upgrade_load.record(name, number) for number in range(len(own)))
        for number, offset in enumerate(own):
            assert upgrade_load.read(client, "/shared", offset, upgrade_load.RECORD_BYTES) == upgrade_load.record(
                name, number)
        last = upgrade_load.record(name, len(own) - 1)
        assert upgrade_load.read(client, f"/{name}-changed", 0, upgrade_load.OTHER_BYTES + 1) == (
            upgrade_load.changed(last))
    assert client.lookup("/shared", fresh=True).size == sum(map(len, offsets.values())) * upgrade_load.RECORD_BYTES
