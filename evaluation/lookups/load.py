"""Clients of metadata servers on one host of an experiment. `python -m speedwell.evaluation.lookups.load FILE` prints
what became of their requests as one line of JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from random import Random

from pydantic import TypeAdapter

from speedwell.evaluation.lookups.server import CHORD, LOCATE, STEERED, owner_of
from speedwell.fs.metadata_store.addresses import PORT, address_of, block_of
from speedwell.fs.metadata_store.wire import Connection, connect

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 60.0
FILE_BYTES, DIRECTORY_BYTES = 250, 290
"""Of a record (MetaFlow, section VII-A)."""
PUT_SHARE = 0.8
STORAGE_PORT = 9100


@dataclass(frozen=True)
class Load:
    """`threads` clients that ask as fast as they are answered, or together `per_second` times a second at random
    (Poisson), from `begin` on the monotonic clock for `seconds`, of which the first `warm_seconds` do not count; with
    `requests`, so many in all and no longer. Without `keep` each request has connections of its own. With
    `file_bytes` each puts the record of a file and then sends the file to one of the hosts `storage`."""

    method: str
    hosts: tuple[str, ...]
    threads: int
    seed: int
    begin: float
    seconds: float
    warm_seconds: float = 0.0
    per_second: float = 0.0
    requests: int = 0
    keep: bool = True
    file_bytes: int = 0
    storage: tuple[str, ...] = ()


@dataclass
class Outcome:
    """The requests that ended in time, how long each took from when it was due, those that failed and why, and how
    many messages were sent in all."""

    answered: int = 0
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    messages: int = 0
    ended: float = 0.0


class Asker:
    """Finds the server of each key by one method. For one thread."""

    def __init__(self, method: str, hosts: tuple[str, ...], keep: bool, draw: Random) -> None:
        self._method, self._hosts, self._keep, self._draw = method, hosts, keep, draw
        self._connections: dict[str, Connection] = {}
        self._blocks: list[tuple[list[IPv4Network], str]] = []
        self.messages = 0

    def request(self, *parts: bytes) -> None:
        """GET or SET. Raises OSError, EOFError, SpeedwellError."""
        try:
            self._call(self._host(parts[1]), *parts)
        except BaseException:
            self.close()
            raise
        if not self._keep:
            self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._blocks.clear()

    def _host(self, key: bytes) -> str:
        if self._method in STEERED:
            return self._steered(key)
        if self._method == "Hash mapping":
            return self._hosts[owner_of(key, len(self._hosts))]
        host = self._hosts[0] if self._method == "Central coordinator" else self._draw.choice(self._hosts)
        is_owner = False
        while not is_owner:
            told = self._call(host, LOCATE, key)
            assert isinstance(told, list) and isinstance(told[0], bytes)
            host, is_owner = told[0].decode(), self._method != CHORD or told[1] == b"1"
        return host

    def _steered(self, key: bytes) -> str:
        """The address of the key, or one of the same server to which there is a connection."""
        address = address_of(key)
        known = next((each for blocks, each in self._blocks if block_of(address, blocks)), None)
        if known is None and self._keep:
            told = self._connection(str(address)).call(b"BLOCKS")
            assert isinstance(told, list)
            self._blocks.append(([IPv4Network(each.decode()) for each in told if isinstance(each, bytes)],
                                 str(address)))
        return known or str(address)

    def _call(self, host: str, *parts: bytes) -> object:
        self.messages += 1
        return self._connection(host).call(*parts)

    def _connection(self, host: str) -> Connection:
        if host not in self._connections:
            self._connections[host] = connect((host, PORT), CONNECT_SECONDS, None)
            self._connections[host].set_timeout(ANSWER_SECONDS)
        return self._connections[host]


def play(load: Load) -> Outcome:
    outcome, lock = Outcome(), threading.Lock()
    due = _due(load)

    def client(number: int) -> None:
        draw = Random(f"{load.seed} {number}")
        asker = Asker(load.method, load.hosts, load.keep, draw)
        time.sleep(max(load.begin - time.monotonic(), 0.0))
        while True:
            with lock:
                at = next(due, None)
            if at is None:
                break
            began = max(at, time.monotonic()) if not load.per_second else at
            time.sleep(max(at - time.monotonic(), 0.0))
            key = b"%d %d" % (load.seed, draw.getrandbits(60))
            parts = (b"SET", key, bytes(draw.choice((FILE_BYTES, DIRECTORY_BYTES)))) \
                if load.file_bytes or draw.random() < PUT_SHARE else (b"GET", key)
            try:
                asker.request(*parts)
                if load.file_bytes:
                    store(draw.choice(load.storage), load.file_bytes)
            except Exception as error:
                with lock:
                    outcome.failures.append(f"{type(error).__name__}: {error}")
                continue
            ended = time.monotonic()
            with lock:
                outcome.ended = max(outcome.ended, ended)
                if load.requests or load.begin + load.warm_seconds <= ended <= load.begin + load.seconds:
                    outcome.answered += 1
                    outcome.seconds.append(ended - began)
        with lock:
            outcome.messages += asker.messages
        asker.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(load.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


def _due(load: Load) -> Iterator[float]:
    """When each request is to begin."""
    draw, at, number = Random(f"arrivals {load.seed}"), load.begin, 0
    while at < load.begin + load.seconds and (not load.requests or number < load.requests):
        number += 1
        if load.per_second:
            at += draw.expovariate(load.per_second)
        elif not load.requests:
            at = max(at, time.monotonic())
        yield at


def store(host: str, number: int) -> None:
    """Send so many bytes to a storage server and wait until it has them on its disk. Raises OSError, EOFError."""
    with socket.create_connection((host, STORAGE_PORT), CONNECT_SECONDS) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.sendall(number.to_bytes(8) + bytes(number))
        if not connection.recv(1):
            raise EOFError(f"{host} does not say that it has the file")


def serve_storage(directory: Path) -> None:
    """A storage server: keeps each file that it is sent, until the process is ended."""
    listener = socket.create_server(("0.0.0.0", STORAGE_PORT), backlog=1024)

    def receive(connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as stream, \
                (directory / str(number)).open("wb", 0) as file:
            left = int.from_bytes(stream.read(8))
            while left and (piece := stream.read(min(left, 1 << 18))):
                left -= file.write(piece)
            if not left:
                connection.sendall(b"1")

    print("ready", flush=True)
    number = 0
    while True:
        connection, _ = listener.accept()
        number += 1
        threading.Thread(target=receive, args=(connection, number), daemon=True).start()


if __name__ == "__main__":
    if sys.argv[1] == "storage":
        serve_storage(Path(sys.argv[2]))
    threading.stack_size(256 << 10)
    print(json.dumps(vars(play(TypeAdapter(Load).validate_json(Path(sys.argv[1]).read_bytes())))), flush=True)
