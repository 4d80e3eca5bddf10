"""The reading processes of the hosts for Speedwell itself: `python -m speedwell.evaluation.replay.speedwell_agents`.

See `evaluation.replay.agents` for what it is told and answers; where no read is wanted the `kind` says what. One
process imports everything, then forks one child for each host, which enters the host's network: 64 take a tenth of a
second, and share their memory. Reads say `replica_policy`, `path_policy` and `parts`. Each child takes what others
send it at PORT.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

from speedwell.evaluation.flood import flood
from speedwell.fs.client import Client
from speedwell.fs.errors import NoSuchFile, SpeedwellError
from speedwell.fs.identity.known import identity_for
from speedwell.fs.metadata_store.client import MetadataClient
from speedwell.topo.emulation import namespace

PORT = 5900
PIECE_BYTES = 256 << 10
CONTROLLER_TIMEOUT_SECONDS = 2.0
SEND_TIMEOUT_SECONDS = 300.0
RECORD = b"record of a small file"


def main() -> None:
    """Fork a reader for each host and hand each request on."""
    settings = json.loads(sys.stdin.buffer.readline())
    os.environ.update(settings["environment"])
    inlets: dict[str, int] = {}
    for name, host in settings["hosts"].items():
        outlet, inlet = os.pipe()
        if os.fork() == 0:
            for other in (inlet, *inlets.values()):
                os.close(other)
            _leave_after(_serve, outlet, host, settings)
        os.close(outlet)
        inlets[name] = inlet
    for line in sys.stdin.buffer:
        os.write(inlets[json.loads(line)["host"]], line)


def _leave_after(work: Any, *arguments: Any) -> None:
    """Run a child's work and end it without what the parent meant to do later."""
    code = 1
    try:
        work(*arguments)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _serve(outlet: int, host: dict[str, Any], settings: dict[str, Any]) -> None:
    namespace.enter(host["pid"])
    stores = _Stores(settings["nameserver"])
    threading.Thread(target=_take, args=(host["ip"],), daemon=True).start()
    clients: dict[tuple[str, str, int], Client] = {}
    with open(outlet, "rb") as requests:
        for line in requests:
            request = json.loads(line)
            policies = (request["replica_policy"], request["path_policy"], request["parts"])
            if policies not in clients:
                clients[policies] = Client(
                    settings["nameserver"], controller=settings["controller"], local_host=host["ip"],
                    replica_policy=policies[0], path_policy=policies[1],
                    most_parts=policies[2], controller_timeout_seconds=CONTROLLER_TIMEOUT_SECONDS)
            threading.Thread(target=_answer, args=(clients[policies], stores, request), daemon=True).start()


class _Stores:
    """Clients of the metadata servers, each for one request at a time."""

    def __init__(self, nameserver: str) -> None:
        self._idle: list[MetadataClient] = []
        self._nameserver = nameserver

    def ask(self, kind: str, key: str) -> None:
        """Put a record, or get it. Raises SpeedwellError."""
        client = self._idle.pop() if self._idle else MetadataClient(    # what is late is measured
            timeout_seconds=SEND_TIMEOUT_SECONDS, identity=identity_for(self._nameserver))
        if kind == "put":
            client.put(key.encode(), RECORD)
        elif client.get(key.encode()) != RECORD:
            raise NoSuchFile(f"{key} has no record")
        self._idle.append(client)


def _answer(client: Client, stores: _Stores, request: dict[str, Any]) -> None:
    kind, path, size_bytes = request.get("kind", "read"), request["path"], request["size_bytes"]
    try:
        started = time.monotonic()
        if kind == "flood":
            answer = _flood(path, request["rate_bps"], request["seconds"])
        elif kind == "send":
            answer = _send(path, size_bytes)
        elif kind in ("put", "get"):
            stores.ask(kind, path)
            answer = _done(started)
        elif kind == "lookup":
            client.lookup(path, fresh=True)
            answer = _done(started)
        else:
            answer = (_write if kind == "write" else _read)(client, path, size_bytes)
    except (SpeedwellError, OSError) as error:
        answer = {"error": f"{request['host']} cannot {kind} {path}: {error}"[:2000]}
    # one write of less than PIPE_BUF bytes: lines of several hosts do not mix
    os.write(1, json.dumps({"id": request["id"], **answer}).encode() + b"\n")


def _done(started: float, size_bytes: int = 0) -> dict[str, Any]:
    return {"started": started, "finished": time.monotonic(), "bytes": size_bytes, "steered": False, "sources": []}


def _read(client: Client, path: str, size_bytes: int) -> dict[str, Any]:
    started = time.monotonic()
    piece = bytearray(PIECE_BYTES)
    with client.open_read(path) as reader:
        position = 0
        while count := reader.readinto(position, piece):
            position += count
        finished = time.monotonic()
        sources = reader.last_sources
    if position != size_bytes:
        return {"error": f"{path} has {position} bytes, not {size_bytes}"}
    return {"started": started, "finished": finished, "bytes": position,
            "sources": [source.replica_id for source in sources],
            "steered": all(source.chosen_by == "controller" for source in sources),
            "paths": [source.path for source in sources],
            "estimated_bps": sum(source.estimated_bps or 0.0 for source in sources)}


def _write(client: Client, path: str, size_bytes: int) -> dict[str, Any]:
    started = time.monotonic()
    attributes = client.create(path, exclusive=True, expected_bytes=size_bytes)
    with client.open_append(path, attributes) as appender:
        for offset in range(0, size_bytes, PIECE_BYTES):
            appender.write(bytes(min(PIECE_BYTES, size_bytes - offset)))
    return {"started": started, "finished": time.monotonic(), "bytes": size_bytes, "steered": False,
            "sources": [replica.dataserver_id for replica in attributes.replicas]}


def _flood(address: str, rate_bps: float, seconds: float) -> dict[str, Any]:
    started = time.monotonic()
    return _done(started, flood(address, rate_bps, seconds))


def _send(address: str, size_bytes: int) -> dict[str, Any]:
    """Over TCP, in plain bytes that nobody is told of, until the other host has all."""
    started = time.monotonic()
    with socket.create_connection((address, PORT), SEND_TIMEOUT_SECONDS) as connection:
        connection.sendall(bytes(size_bytes))
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1) != b".":
            raise ConnectionError(f"{address} has not taken all")
    return _done(started, size_bytes)


def _take(address: str) -> None:
    with socket.create_server((address, PORT), backlog=128) as listener:
        while True:
            threading.Thread(target=_taken, args=(listener.accept()[0],), daemon=True).start()


def _taken(connection: socket.socket) -> None:
    with connection:
        while connection.recv(PIECE_BYTES):
            pass
        connection.sendall(b".")


if __name__ == "__main__":
    main()
