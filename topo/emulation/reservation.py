"""One emulation at a time on a machine, and no leftovers of one whose owner was killed."""

import fcntl
import json
import os
import uuid
from pathlib import Path
from typing import Any

from speedwell.topo.emulation import management, processes
from speedwell.topo.emulation.errors import EmulationError, EmulationRunning

RUN_DIRECTORY = Path("/run/speedwell")
RECORD = "emulation.json"


class Reservation:
    """Holds the machine for one emulation.

    A lock file tells whether an emulation runs: the kernel frees the lock when its owner dies, however it dies. A
    record beside it names what the emulation makes, so that the next owner can remove what a killed one left:
    `removed` says what that was, or is None.
    """

    def __init__(self, description: str, run_directory: Path = RUN_DIRECTORY) -> None:
        """Take the machine; raises `EmulationRunning` if it is taken."""
        self.marker = str(uuid.uuid4())
        self._record_path = run_directory / RECORD
        try:
            run_directory.mkdir(parents=True, exist_ok=True)
            self._lock = (run_directory / "emulation.lock").open("a+")
        except OSError as error:
            raise EmulationError(f"cannot use {run_directory}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "of an unknown process"
            self._lock.close()
            raise EmulationRunning(f"an emulation runs already ({owner}): stop it first") from None
        self._lock.truncate(0)
        self._lock.write(f"{description}, process {os.getpid()}")
        self._lock.flush()
        self.removed = self._remove_leftovers()
        self.record(description=description, namespaces={})

    def record(self, **facts: Any) -> None:
        """Write down what this emulation is about to have, for people and for the clean-up after a kill."""
        content = json.dumps({"marker": self.marker, "process": os.getpid(), **facts}, indent=1)
        draft = self._record_path.with_suffix(".new")
        draft.write_text(content)
        draft.replace(self._record_path)

    def release(self, failure: type[BaseException] | None = None, *_: object) -> None:
        """Give the machine back, as the last step of an `ExitStack` that removes processes and interfaces.

        After a `failure` of an earlier step the record stays, so that the next owner removes the rest.
        """
        if failure is None:
            self._record_path.unlink(missing_ok=True)
        self._lock.truncate(0)
        self._lock.close()

    def _remove_leftovers(self) -> str | None:
        try:
            record = json.loads(self._record_path.read_text())
            marker, description = record["marker"], str(record["description"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise EmulationError(f"{self._record_path} is damaged: remove it after stopping what an earlier "
                                 "emulation left") from None
        processes.kill_marked(marker)
        management.remove_bridge()
        self._record_path.unlink()
        return description


def remove_leftovers() -> str | None:
    """Remove what an emulation whose owner was killed left; returns what that was, None if there was nothing.

    Raises `EmulationRunning` if one is alive.
    """
    if not (RUN_DIRECTORY / RECORD).exists():
        return None
    reservation = Reservation("clean-up")
    reservation.release()
    return reservation.removed
