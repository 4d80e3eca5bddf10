"""A load of many kinds of operations on the files of one directory, written down, and what may be found afterwards.

What an operation did that failed, or that never answered, is not known: its file may be as before, as after, or,
where bytes are appended, anything in between. Everything else has to be exactly what was acknowledged.
"""

import json
import os
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Operation:
    """`kind` is put, append, patch, rename or remove; `size` bytes drawn from `seed` are written at `offset`."""

    kind: str
    name: str
    other: str = ""
    offset: int = 0
    size: int = 0
    seed: int = 0

    def data(self) -> bytes:
        return random.Random(self.seed).randbytes(self.size)

    def names(self) -> tuple[str, ...]:
        return (self.name, self.other) if self.other else (self.name,)

    def run(self, directory: Path) -> None:
        """Do it; returns when it is acknowledged. Raises OSError."""
        path = directory / self.name
        if self.kind == "put":
            path.write_bytes(self.data())
        elif self.kind == "append":
            with path.open("ab") as file:
                file.write(self.data())
        elif self.kind == "patch":
            with path.open("r+b") as file:
                file.seek(self.offset)
                file.write(self.data())
                file.flush()
                os.fsync(file.fileno())
        elif self.kind == "rename":
            path.rename(directory / self.other)
        else:
            path.unlink()


@dataclass(frozen=True)
class Content:
    """`base` and then any part of `more`, from its beginning."""

    base: bytes
    more: bytes = b""

    def allows(self, found: bytes | None) -> bool:
        return found is not None and found.startswith(self.base) and (self.base + self.more).startswith(found)


Found = dict[str, bytes]


class Expected:
    """What a directory holds after operations. Of a name in `files` it is known; None: no such file."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._unknown: dict[str, list[Content | None]] = {}
        self._moves: list[tuple[Operation, bytes, bytes | None]] = []

    def acknowledged(self, operation: Operation) -> None:
        after = self._after(operation)
        if operation.kind in ("rename", "remove"):
            del self.files[operation.name]
        if after is not None:
            self.files[operation.other or operation.name] = after

    def unanswered(self, operation: Operation) -> None:
        """The names of the operation are not to be used again."""
        before = self.files.pop(operation.name, None)
        if operation.kind == "rename":
            assert before is not None
            self._moves.append((operation, before, self.files.pop(operation.other, None)))
            return
        old = None if before is None else Content(before)
        after: Content | None = None
        if operation.kind == "put":
            after = Content(b"", operation.data())
        elif operation.kind == "append":
            after = Content(before or b"", operation.data())
        elif operation.kind == "patch":
            after = Content(patched(before or b"", operation))
        self._unknown[operation.name] = [old, after]

    def differences(self, found: Found) -> list[str]:
        """What is lost, torn, twice or wrong in the directory, for a person to read."""
        wrong = [f"{name}: {describe(found.get(name), content)}" for name, content in self.files.items()
                 if found.get(name) != content]
        for name, choices in self._unknown.items():
            if not any(found.get(name) is None if choice is None else choice.allows(found.get(name))
                       for choice in choices):
                wrong.append(f"{name}: is neither what it was nor what it was to be")
        for operation, content, replaced in self._moves:
            if (found.get(operation.name), found.get(operation.other)) not in ((content, replaced), (None, content)):
                wrong.append(f"{operation.name} or {operation.other}: a rename was done by half")
        return wrong + [f"{name}: nobody made it" for name in found.keys() - self._names()]

    def _names(self) -> set[str]:
        moved = {name for operation, _, _ in self._moves for name in operation.names()}
        return {*self.files, *self._unknown, *moved}

    def _after(self, operation: Operation) -> bytes | None:
        before = self.files.get(operation.name, b"")
        return {"put": operation.data, "append": lambda: before + operation.data(),
                "patch": lambda: patched(before, operation), "rename": lambda: before,
                "remove": lambda: None}[operation.kind]()


def patched(before: bytes, operation: Operation) -> bytes:
    """The content with the operation's bytes at its offset, which lies within the content."""
    return before[:operation.offset] + operation.data() + before[operation.offset + operation.size:]


def describe(found: bytes | None, wanted: bytes) -> str:
    if found is None:
        return f"{len(wanted)} acknowledged bytes are lost"
    same = len(os.path.commonprefix([found, wanted]))
    return f"{len(found)} bytes, of which the first {same} are right, not {len(wanted)}"


class Log:
    """What a worker writes down: each operation before it begins, and whether it was acknowledged."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def begin(self, operation: Operation) -> None:
        self._write(asdict(operation))

    def end(self, acknowledged: bool) -> None:
        self._write(acknowledged)

    def wrong(self, message: str) -> None:
        """What the worker itself found: a file that was not what had been acknowledged before."""
        self._write(message)

    def _write(self, entry: object) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def entries(log: Path) -> list[object]:
    """A log's entries; the last line may be cut off."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def acknowledged_count(log: Path) -> int:
    return sum(entry is True for entry in entries(log))


def expected_of(logged: Iterable[object]) -> tuple[Expected, list[str]]:
    """What the directory has to hold after a log, and what the worker found wrong on the way."""
    expected, wrong = Expected(), []
    running: Operation | None = None
    for entry in logged:
        if isinstance(entry, dict):
            running = Operation(**entry)
        elif isinstance(entry, str):
            wrong.append(entry)
        elif running is not None:
            (expected.acknowledged if entry else expected.unanswered)(running)
            running = None
    if running is not None:
        expected.unanswered(running)
    return expected, wrong
