"""The door of the controller's listening sockets over TLS, without what is behind it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import eventlet
import pytest
from eventlet.green import socket

from speedwell.controller.secure import Door, NotAdmitted
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import CONTROLLER


def test_of_connections_that_say_nothing_the_oldest_makes_room(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "identity")
    authority.ensure([("controller", CONTROLLER)], "127.0.0.1")
    refusals: list[tuple[str, str, str]] = []
    door = Door(Identity(authority.directory / "controller"), lambda *refused: refusals.append(refused),
                anonymous=True, most=3, deadline_seconds=3600.0)
    ended: list[int] = []

    def admit(number: int, accepted: socket.socket) -> None:
        with pytest.raises(NotAdmitted):
            door.admit(accepted, "127.0.0.1")
        ended.append(number)

    with ExitStack() as stack:
        listening = stack.enter_context(eventlet.listen(("127.0.0.1", 0)))
        for number in range(5):
            stack.enter_context(socket.create_connection(listening.getsockname()))
            eventlet.spawn(admit, number, listening.accept()[0])
            eventlet.sleep(0)
        with eventlet.Timeout(20):
            while len(ended) < 2:
                eventlet.sleep(0.01)
        assert ended == [0, 1]
    with eventlet.Timeout(20):
        while len(ended) < 5:
            eventlet.sleep(0.01)
    assert refusals == [("ended", "it ended before the handshake", "127.0.0.1")] * 5
