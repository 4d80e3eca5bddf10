"""`speedwell-nameserver` that kills or stops itself at a step that a test names: who comes to it first takes the file
in SPEEDWELL_TEST_STEP, which has the step's name and the number of the signal.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from speedwell.fs.nameserver import main
from speedwell.fs.store.block_owners import BlockOwners
from speedwell.fs.store.shared import SharedStore

VARIABLE = "SPEEDWELL_TEST_STEP"
RENAME_STEPS = ("decided", "written", "mirrored", "asked", "seen", "told")
"""Of a change across owners: at who makes it, but for `asked` and `seen`."""
MOVE_STEPS = ("move begins", "move written", "move seen")


def at(step: str) -> None:
    """End or stop here if the test says so."""
    path = Path(os.environ[VARIABLE])
    with suppress(OSError):
        name, _, number = path.read_text().partition(":")
        if name == step:
            path.rename(path.with_name(f"taken-{os.getpid()}"))
            os.kill(os.getpid(), int(number))


def _around(kind: type, method: str, before: str, after: str,
            is_meant: Callable[..., bool] = lambda *_: True) -> None:
    inner = getattr(kind, method)

    def stepping(self: Any, *arguments: Any) -> Any:
        is_step = is_meant(self, *arguments)
        if is_step and before:
            at(before)
        result = inner(self, *arguments)
        if is_step and after:
            at(after)
        return result

    setattr(kind, method, stepping)


if __name__ == "__main__":
    _around(SharedStore, "_transact", "decided", "written", lambda store, token, changes, others: bool(others))
    _around(SharedStore, "_tell", "mirrored", "told")
    _around(SharedStore, "wait_for_written", "asked", "seen", lambda store, revision, seconds: revision > 0)
    _around(BlockOwners, "_propose", "move begins", "move written")
    _around(BlockOwners, "learn", "", "move seen",
            lambda owners, name, value, revision: name == b"map" and bool(value))
    main.main()
