"""What one host sends to the other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from speedwell.coflow import Flow
from tests.integration.host_agent.hosts import RECEIVER, SENDER, Hosts, inside

PORT = 9000


class Datagrams:
    """Numbered ones from one host to the other."""

    def __init__(self, hosts: Hosts) -> None:
        with inside(hosts.receiver):
            self._into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._into.bind((RECEIVER, PORT))
        self._into.setblocking(False)
        with inside(hosts.sender):
            self._out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._next = 0
        self.received: list[int] = []
        self.received_at: list[float] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            self._out.sendto(self._next.to_bytes(4) + bytes(996), (RECEIVER, PORT))
            self._next += 1

    def arrived(self, count: int) -> Callable[[], bool]:
        def have_they() -> bool:
            try:
                while True:
                    self.received.append(int.from_bytes(self._into.recv(1500)[:4]))
                    self.received_at.append(time.monotonic())
            except BlockingIOError:
                return len(self.received) >= count
        return have_they

    def close(self) -> None:
        self._into.close()
        self._out.close()


class Transfer:
    """One connection that sends as much as it can; `received_bytes` grows at the other end."""

    def __init__(self, hosts: Hosts, port: int, opened_by_receiver: bool = False) -> None:
        opener, server, address = ((hosts.receiver, hosts.sender, SENDER) if opened_by_receiver
                                   else (hosts.sender, hosts.receiver, RECEIVER))
        with inside(server):
            listener = socket.create_server((address, port))
        with inside(opener):
            opened = socket.create_connection((address, port))
        accepted, _ = listener.accept()
        listener.close()
        self.out, self._into = (accepted, opened) if opened_by_receiver else (opened, accepted)
        (source, from_port), (destination, to_port) = self.out.getsockname(), self.out.getpeername()
        self.flow = Flow(source, destination, from_port, to_port)
        self.received_bytes = 0
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        with suppress(OSError):
            while True:
                self.out.send(bytes(1 << 16))

    def _receive(self) -> None:
        with suppress(OSError):
            while data := self._into.recv(1 << 16):
                self.received_bytes += len(data)

    def close(self) -> None:
        for each in (self.out, self._into):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self.out.close()
        self._into.close()
