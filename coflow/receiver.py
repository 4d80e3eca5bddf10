"""The receiving end of a transfer: parts come in any order on connections of their own and make up a file."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from speedwell.coflow.errors import TransferFailed
from speedwell.coflow.parts import (
    BLOCK_BYTES,
    LOOK_SECONDS,
    MAX_PARTS,
    Activity,
    Advance,
    Stream,
    TransferPart,
    part_of,
)

_ACCEPT_SECONDS = 0.2
_LAST_ANSWERS_SECONDS = 5.0
_DIGEST_BYTES = sha256().digest_size

End = Callable[[Path | str], None]


@dataclass
class _Incoming:
    """A file that is being received. Its connections wait for each other at the end."""

    first: TransferPart
    temporary: Path
    taken: set[int] = field(default_factory=set)
    """Parts that are here or on their way."""
    done: int = 0
    activity: Activity = field(default_factory=Activity)
    finished: threading.Event = field(default_factory=threading.Event)


class Receiver:
    """Receives files into a directory. `address` is where it listens; a name that is taken is replaced at the end."""

    def __init__(self, directory: Path, host: str, port: int) -> None:
        """Raises TransferFailed if the directory or the address cannot be had."""
        self._directory = directory
        self._lock = threading.Lock()
        self._incoming: dict[str, _Incoming] = {}
        self._closed = threading.Event()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._listening = socket.create_server((host, port), backlog=2 * MAX_PARTS)
        except OSError as error:
            # Python adds the address to the system's words; a name that is not known has no number of the system's.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise TransferFailed(f"cannot receive at {host}:{port} into {directory}: {reason}") from None
        self._listening.settimeout(_ACCEPT_SECONDS)
        self.address: tuple[str, int] = self._listening.getsockname()[:2]

    def close(self) -> None:
        """Give up what has not arrived, and leave nothing of it."""
        self._closed.set()
        self._listening.close()
        with self._lock:
            unfinished = list(self._incoming.values())
        for incoming in unfinished:
            self._give_up(incoming, "the receiver was stopped", lambda result: None)

    def serve(self, told: Callable[[Path], None], advance: Advance = lambda count: None, once: bool = False) -> None:
        """Receive files, each told when it is complete; `once`: the first one only. Raises TransferFailed with `once`
        if that one does not arrive, and what `told` raises."""
        failures: list[Exception] = []
        ended = threading.Event()

        def end(result: Path | str) -> None:
            if once and ended.is_set():
                return
            try:
                if isinstance(result, Path):
                    told(result)
                elif once:
                    failures.append(TransferFailed(result))
            except Exception as error:
                failures.append(error)
            if once or failures:
                ended.set()

        threads: list[threading.Thread] = []
        while not (ended.is_set() or self._closed.is_set()):
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:     # as many files are open as may be; what has come so far goes on
                self._closed.wait(_ACCEPT_SECONDS)
                continue
            threads = [thread for thread in threads if thread.is_alive()]
            threads.append(threading.Thread(target=self._take, args=(connection, advance, end), daemon=True))
            threads[-1].start()
        deadline = time.monotonic() + _LAST_ANSWERS_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if failures:
            raise failures[0]

    def _take(self, connection: socket.socket, advance: Advance, end: End) -> None:
        incoming = None
        with connection:
            try:
                part = part_of(Stream(connection, Activity()).read_line())
                incoming = self._begin(part)
                stream = Stream(connection, incoming.activity)
                stream.send(b"taken\n")
                self._receive(stream, part, incoming, advance)
                stream.send(b"done\n")
                self._part_done(incoming, end)
                while not incoming.finished.wait(LOOK_SECONDS):
                    incoming.activity.require()
                    if stream.has_word():
                        raise TransferFailed("the sender closed the connection")
                incoming.activity.require()
                stream.send(b"ok\n")
            except (OSError, TransferFailed) as error:
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                if incoming is not None:
                    self._give_up(incoming, reason, end)
                with suppress(OSError):
                    connection.sendall(f"error: {reason}\n".encode("utf-8", "backslashreplace"))
                    _wait_for_end(connection)

    def _begin(self, part: TransferPart) -> _Incoming:
        """The file that a part belongs to. Raises TransferFailed, or OSError if the file cannot be made."""
        with self._lock:
            if self._closed.is_set():
                raise TransferFailed("the receiver was stopped")
            incoming = self._incoming.get(part.transfer)
            if incoming is None:
                incoming = _Incoming(part, self._directory / f".speedwell-{part.transfer}")
                with incoming.temporary.open("xb") as empty:
                    try:
                        empty.truncate(part.total)
                    except OSError:
                        incoming.temporary.unlink()
                        raise
                self._incoming[part.transfer] = incoming
            first = incoming.first
            if (first.name, first.total, first.parts) != (part.name, part.total, part.parts):
                raise TransferFailed("the parts contradict each other")
            if part.part in incoming.taken:
                raise TransferFailed(f"part {part.part} came twice")
            incoming.taken.add(part.part)
            return incoming

    def _receive(self, stream: Stream, part: TransferPart, incoming: _Incoming, advance: Advance) -> None:
        digest, left = sha256(), part.size
        buffer = memoryview(bytearray(BLOCK_BYTES))
        # A file of its own for each part: another one's end closes none that is written to.
        with incoming.temporary.open("r+b", buffering=0) as target:
            target.seek(part.offset)
            while left:
                count = _some(stream, buffer[:min(BLOCK_BYTES, left)])
                incoming.activity.require()
                digest.update(buffer[:count])
                written = 0
                while written < count:      # a disk that is nearly full takes a part of it
                    written += target.write(buffer[written:count])
                advance(count)
                left -= count
            told = memoryview(bytearray(_DIGEST_BYTES))
            length = 0
            while length < _DIGEST_BYTES:
                length += _some(stream, told[length:])
            if told != digest.digest():
                raise TransferFailed(f"part {part.part} was damaged on the way")

    def _part_done(self, incoming: _Incoming, end: End) -> None:
        with self._lock:
            incoming.done += 1
            if incoming.done < incoming.first.parts:
                return
        with incoming.temporary.open("r+b") as complete:
            os.fsync(complete)
        with self._lock:
            incoming.activity.require()
            target = self._directory / incoming.first.name
            incoming.temporary.replace(target)
            del self._incoming[incoming.first.transfer]
        end(target)
        incoming.finished.set()

    def _give_up(self, incoming: _Incoming, reason: str, end: End) -> None:
        with self._lock:
            if self._incoming.get(incoming.first.transfer) is not incoming:
                return
            del self._incoming[incoming.first.transfer]
            incoming.activity.give_up(reason)
            with suppress(OSError):
                incoming.temporary.unlink()
        end(reason)
        incoming.finished.set()


def _wait_for_end(connection: socket.socket) -> None:
    """Take what is on its way yet: a connection that is closed with bytes unread is reset, and the sender does not
    hear why."""
    connection.shutdown(socket.SHUT_WR)
    deadline = time.monotonic() + _LAST_ANSWERS_SECONDS
    while time.monotonic() < deadline and connection.recv(BLOCK_BYTES):
        pass


def _some(stream: Stream, buffer: memoryview) -> int:
    count = stream.receive_into(buffer)
    if not count:
        raise TransferFailed("the sender closed the connection")
    return count
