"""Sending a file over several TCP flows that report themselves as one coflow (in the way of bbcp).

Each flow carries one part: a line of JSON that says which, its bytes, and their SHA-256. The receiver answers `done`
when a part is right, and `ok` when the whole file stands under its name.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

from coflow.errors import TransferFailed
from coflow.reporter import FlowProgress, Reporter, flow_of

BLOCK_BYTES = 1 << 18
MAX_HEADER_BYTES = 4096
MAX_PARTS = 64
TIMEOUT_SECONDS = 60.0
"""Without a byte for so long, the other side is taken for dead."""
_DIGEST_BYTES = sha256().digest_size

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Part:
    """One part of a file: `size` bytes from `offset` on."""

    transfer: str
    name: str
    total: int
    part: int
    parts: int
    offset: int
    size: int


def split(total: int, parts: int) -> list[tuple[int, int]]:
    """(offset, size) of each part; sizes differ by at most one byte."""
    bounds = [total * number // parts for number in range(parts + 1)]
    return [(begin, end - begin) for begin, end in pairwise(bounds)]


# --- sending ---


def send(path: Path, host: str, port: int, flows: int, reporter: Reporter | None = None,
         advance: Advance = lambda count: None) -> None:
    """Send a file; returns when the receiver has all of it. Raises TransferFailed."""
    try:
        total = path.stat().st_size
        pieces = split(total, max(1, min(flows, MAX_PARTS, total or 1)))
        transfer = secrets.token_hex(16)
        parts = [Part(transfer, path.name, total, number, len(pieces), offset, size)
                 for number, (offset, size) in enumerate(pieces)]
        connections = [_connect(host, port) for _ in parts]
    except OSError as error:
        raise TransferFailed(f"cannot send {path} to {host}:{port}: {error.strerror or error}") from None
    accounts: list[FlowProgress] = []
    if reporter is not None:
        accounts = reporter.add([(flow_of(connection), part.size)
                                 for connection, part in zip(connections, parts, strict=True)])
        for account, connection in zip(accounts, connections, strict=True):
            account.follow(connection)
    failures: list[Exception] = []

    def run(part: Part, connection: socket.socket) -> None:
        try:
            _send_part(path, part, connection, advance)
            if reporter is not None:
                reporter.ended(accounts[part.part])
            _expect(connection, b"ok\n")
        except (OSError, TransferFailed) as error:
            failures.append(error)
            for each in connections:        # the others wait for what will not come
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    threads = [threading.Thread(target=run, args=each) for each in zip(parts, connections, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.close()
    if failures:
        first = next((each for each in failures if isinstance(each, TransferFailed)), failures[0])
        raise TransferFailed(f"{path} did not arrive at {host}:{port}: {first}")


def _connect(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _send_part(path: Path, part: Part, connection: socket.socket, moved: Advance) -> None:
    connection.sendall(json.dumps(asdict(part)).encode() + b"\n")
    digest, left = sha256(), part.size
    with path.open("rb", buffering=0) as source:
        source.seek(part.offset)
        while left:
            block = source.read(min(BLOCK_BYTES, left))
            if not block:
                raise TransferFailed("it became shorter while it was read")
            digest.update(block)
            connection.sendall(block)
            moved(len(block))
            left -= len(block)
    connection.sendall(digest.digest())
    _expect(connection, b"done\n")


def _expect(connection: socket.socket, wanted: bytes) -> None:
    answer = _read_line(connection, MAX_HEADER_BYTES)
    if answer != wanted:
        reason = answer.decode("utf-8", "replace").strip().removeprefix("error: ")
        raise TransferFailed(reason or "the receiver closed the connection")


# --- receiving ---


@dataclass
class _Incoming:
    """A file that is being received. Its connections wait for each other at the end."""

    part: Part
    temporary: Path
    handle: int
    done: set[int] = field(default_factory=set)
    finished: threading.Event = field(default_factory=threading.Event)
    error: str | None = None


class Receiver:
    """Receives files into a directory. `address` is where it listens; a name that is taken is replaced at the end."""

    def __init__(self, directory: Path, host: str, port: int) -> None:
        """Raises TransferFailed if the directory or the address cannot be had."""
        self._directory = directory
        self._lock = threading.Lock()
        self._incoming: dict[str, _Incoming] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._listening = socket.create_server((host, port), backlog=2 * MAX_PARTS)
        except OSError as error:
            raise TransferFailed(f"cannot receive at {host}:{port} into {directory}: {error.strerror}") from None
        self.address: tuple[str, int] = self._listening.getsockname()[:2]

    def close(self) -> None:
        self._listening.close()

    def serve(self, told: Callable[[Path], None], advance: Advance = lambda count: None, once: bool = False) -> None:
        """Receive files, each told when it is complete; `once`: the first one only. Raises TransferFailed with `once`
        if that one does not arrive."""
        outcome: list[Path | str] = []
        ended = threading.Event()

        def end(result: Path | str) -> None:
            if isinstance(result, Path):
                told(result)
            outcome.append(result)
            if once:
                ended.set()

        self._listening.settimeout(0.2)
        threads: list[threading.Thread] = []
        while not ended.is_set():
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:
                break
            threads.append(threading.Thread(target=self._take, args=(connection, advance, end), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
        if once and outcome and isinstance(outcome[0], str):
            raise TransferFailed(outcome[0])

    def _take(self, connection: socket.socket, advance: Advance, end: Callable[[Path | str], None]) -> None:
        connection.settimeout(TIMEOUT_SECONDS)
        incoming = None
        with connection:
            try:
                part = _part(_read_line(connection, MAX_HEADER_BYTES))
                incoming = self._open(part)
                self._receive(connection, part, incoming, advance)
                connection.sendall(b"done\n")
                self._part_done(incoming, part, end)
                if not incoming.finished.wait(TIMEOUT_SECONDS):
                    raise TransferFailed("other parts did not arrive")
                if incoming.error is not None:
                    raise TransferFailed(incoming.error)
                connection.sendall(b"ok\n")
            except (OSError, TransferFailed) as error:
                reason = str(error) or type(error).__name__
                if incoming is not None:
                    self._give_up(incoming, reason, end)
                with suppress(OSError):
                    connection.sendall(f"error: {reason}\n".encode())

    def _open(self, part: Part) -> _Incoming:
        with self._lock:
            incoming = self._incoming.get(part.transfer)
            if incoming is None:
                temporary = self._directory / f".{part.name}.{part.transfer}"
                handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
                os.ftruncate(handle, part.total)
                incoming = self._incoming[part.transfer] = _Incoming(part, temporary, handle)
            first = incoming.part
        if (first.name, first.total, first.parts) != (part.name, part.total, part.parts):
            raise TransferFailed("the parts contradict each other")
        return incoming

    def _receive(self, connection: socket.socket, part: Part, incoming: _Incoming, advance: Advance) -> None:
        digest, offset, end = sha256(), part.offset, part.offset + part.size
        buffer = memoryview(bytearray(BLOCK_BYTES))
        while offset < end:
            count = connection.recv_into(buffer, min(BLOCK_BYTES, end - offset))
            if not count:
                raise TransferFailed("the sender closed the connection")
            digest.update(buffer[:count])
            os.pwrite(incoming.handle, buffer[:count], offset)
            advance(count)
            offset += count
        told = b""
        while len(told) < _DIGEST_BYTES:
            piece = connection.recv(_DIGEST_BYTES - len(told))
            if not piece:
                raise TransferFailed("the sender closed the connection")
            told += piece
        if told != digest.digest():
            raise TransferFailed(f"part {part.part} was damaged on the way")

    def _part_done(self, incoming: _Incoming, part: Part, end: Callable[[Path | str], None]) -> None:
        with self._lock:
            if part.part in incoming.done:
                raise TransferFailed(f"part {part.part} came twice")
            incoming.done.add(part.part)
            if len(incoming.done) < part.parts or incoming.finished.is_set():
                return
            target = self._directory / part.name
            os.fsync(incoming.handle)
            os.close(incoming.handle)
            incoming.temporary.replace(target)
            del self._incoming[part.transfer]
            incoming.finished.set()
        end(target)

    def _give_up(self, incoming: _Incoming, reason: str, end: Callable[[Path | str], None]) -> None:
        with self._lock:
            if incoming.finished.is_set():
                return
            incoming.error = reason
            self._incoming.pop(incoming.part.transfer, None)
            incoming.finished.set()
            with suppress(OSError):
                os.close(incoming.handle)
                incoming.temporary.unlink()
        end(reason)


def _part(line: bytes) -> Part:
    """A part's header. Raises TransferFailed for what no sender of ours says."""
    try:
        values: Any = json.loads(line)
        part = Part(**values)
        numbers = (part.total, part.part, part.parts, part.offset, part.size)
        good = (all(type(number) is int and number >= 0 for number in numbers)
                and isinstance(part.name, str) and isinstance(part.transfer, str)
                and part.transfer.isalnum() and len(part.transfer) <= 64 and len(part.name.encode()) <= 180
                and part.name not in ("", ".", "..") and not set("/\0") & set(part.name)
                and part.part < part.parts <= MAX_PARTS
                and split(part.total, part.parts)[part.part] == (part.offset, part.size))
    except (ValueError, TypeError):
        good = False
    if not good:
        raise TransferFailed("this is not a part of a file")
    return part


def _read_line(connection: socket.socket, limit: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < limit:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return line
