"""The nameserver's gRPC: what a hostile client can hold up."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from speedwell.fs.nameserver.service import grpc_door
from speedwell.fs.nameserver.service.grpc_door import GrpcDoor
from speedwell.fs.wire.channel import Channel


def test_who_floods_grpc_until_it_reads_no_more_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_door, "SEND_STALL_SECONDS", 0.2)
    door = GrpcDoor(lambda name, data, channel: (b"", 0.0), ())
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "grpc"))
        deaf.listen(1)
        monkeypatch.setattr(door, "_path", lambda: str(tmp_path / "grpc"))
        ours, theirs = socket.socketpair()
        conversation = threading.Thread(target=door.converse, args=(Channel(ours), lambda: None), daemon=True)
        conversation.start()
        theirs.settimeout(60)
        with theirs, ours:
            sending = threading.Thread(target=_flood, args=(theirs,), daemon=True)
            sending.start()
            conversation.join(60)
            assert not conversation.is_alive()
            theirs.shutdown(socket.SHUT_RDWR)
            sending.join()


def _flood(connection: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection.sendall(bytes(1 << 16))
