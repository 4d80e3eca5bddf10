"""Sending a file over several TCP flows that report themselves as one coflow (in the way of bbcp).

Each flow carries one part: a line of JSON that says which, then, once the receiver (`receiver.py`) has answered
`taken`, its bytes and their SHA-256. It answers `done` when a part is right, and `ok` when the whole file stands
under its name.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from speedwell.coflow.errors import TransferFailed
from speedwell.coflow.parts import (
    BLOCK_BYTES,
    MAX_PARTS,
    TIMEOUT_SECONDS,
    Activity,
    Advance,
    Stream,
    TransferPart,
    split,
)
from speedwell.coflow.reporter import FlowProgress, Reporter, flow_of

_ENDING_SECONDS = 5.0
"""How long flows whose connections are shut are waited for."""


def send(path: Path, host: str, port: int, flows: int, reporter: Reporter | None = None,
         advance: Advance = lambda count: None) -> None:
    """Send a file; returns when the receiver has all of it. Raises TransferFailed."""
    with ExitStack() as stack:
        try:
            source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)     # a pipe without a writer is not waited for
            stack.callback(os.close, source)
            status = os.fstat(source)
            if not stat.S_ISREG(status.st_mode):
                raise TransferFailed(f"{path} is not a file whose size is known; write it into one first")
            parts = _parts_of(path, status.st_size, flows)
            connections = _connect(host, port, len(parts))
            for each in connections:
                stack.enter_context(each)
        except OSError as error:
            raise TransferFailed(f"cannot send {path} to {host}:{port}: {error.strerror or error}") from None
        failures = _send_parts(source, parts, connections, reporter, advance)
    if failures:
        first = next((each for each in failures if isinstance(each, TransferFailed)), failures[0])
        raise TransferFailed(f"{path} did not arrive at {host}:{port}: {first}")


def _parts_of(path: Path, total: int, flows: int) -> list[TransferPart]:
    pieces = split(total, max(1, min(flows, MAX_PARTS, total or 1)))
    transfer = secrets.token_hex(16)
    return [TransferPart(transfer, path.name, total, number, len(pieces), offset, size)
            for number, (offset, size) in enumerate(pieces)]


def _connect(host: str, port: int, count: int) -> list[socket.socket]:
    """So many connections, begun together, to the first of the host's addresses that takes them. Raises OSError."""
    failure = OSError(errno.EADDRNOTAVAIL, "it has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with ExitStack() as stack:
            try:
                connections = [stack.enter_context(socket.socket(family, kind, protocol)) for _ in range(count)]
                _connect_all(connections, address)
            except OSError as error:
                failure = error
                continue
            stack.pop_all()
            return connections
    raise failure


def _connect_all(connections: list[socket.socket], address: Any) -> None:
    """Raises OSError as soon as one is refused, or if not all are there after TIMEOUT_SECONDS."""
    with selectors.DefaultSelector() as waiting:
        for each in connections:
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _require(each.connect_ex(address), errno.EINPROGRESS)
            waiting.register(each, selectors.EVENT_WRITE)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while waiting.get_map():
            ready = waiting.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            for key, _ in ready:
                waiting.unregister(key.fileobj)
                _require(cast(socket.socket, key.fileobj).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def _require(code: int, *fine: int) -> None:
    if code not in (0, *fine):
        raise OSError(code, os.strerror(code))


def _send_parts(source: int, parts: list[TransferPart], connections: list[socket.socket], reporter: Reporter | None,
                advance: Advance) -> list[Exception]:
    """Send all parts at once; returns what went wrong. An interrupt ends them all."""
    accounts = _report(reporter, parts, connections)
    activity = Activity()
    failures: list[Exception] = []

    def run(part: TransferPart, connection: socket.socket) -> None:
        try:
            stream = Stream(connection, activity)
            _send_part(source, part, stream, advance)
            _expect(stream, b"done\n")
            if reporter is not None:
                reporter.ended(accounts[part.part])
            _expect(stream, b"ok\n")
        except (OSError, TransferFailed) as error:
            failures.append(error)
            _shut(connections)        # the others wait for what will not come

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in zip(parts, connections, strict=True)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        _shut(connections)
        for thread in threads:
            thread.join(_ENDING_SECONDS)
        raise
    return failures


def _report(reporter: Reporter | None, parts: list[TransferPart],
            connections: list[socket.socket]) -> list[FlowProgress]:
    if reporter is None:
        return []
    accounts = reporter.add([(flow_of(connection), part.size)
                             for connection, part in zip(connections, parts, strict=True)])
    for account, connection in zip(accounts, connections, strict=True):
        account.follow(connection)
    return accounts


def _shut(connections: list[socket.socket]) -> None:
    for each in connections:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _send_part(source: int, part: TransferPart, stream: Stream, moved: Callable[[int], None]) -> None:
    stream.send(json.dumps(asdict(part)).encode() + b"\n")
    _expect(stream, b"taken\n")
    digest, offset, end = sha256(), part.offset, part.offset + part.size
    while offset < end:
        block = os.pread(source, min(BLOCK_BYTES, end - offset), offset)
        if not block:
            raise TransferFailed("it became shorter while it was read")
        digest.update(block)
        stream.send(block)
        if stream.has_word():       # before it has everything: it says what is wrong
            raise _refusal(stream.read_line())
        moved(len(block))
        offset += len(block)
    stream.send(digest.digest())


def _expect(stream: Stream, wanted: bytes) -> None:
    answer = stream.read_line()
    if answer != wanted:
        raise _refusal(answer)


def _refusal(answer: bytes) -> TransferFailed:
    if answer and not answer.startswith(b"error: "):
        return TransferFailed("what answers there is no `speedwell coflow recv`")
    reason = answer.decode("utf-8", "replace").strip().removeprefix("error: ")
    return TransferFailed(reason or "the receiver closed the connection")
