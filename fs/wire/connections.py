"""Connections kept open to dataservers, so that a small request does not pay for a new one."""

import socket
import threading
import time
from collections import defaultdict, deque
from typing import Protocol

from speedwell.fs.wire import local_sockets as local
from speedwell.fs.wire.channel import CONNECT_TIMEOUT_SECONDS, STALL_TIMEOUT_SECONDS, Channel, connect

IDLE_SECONDS = 20.0
"""Shorter than a dataserver's own limit, so that it is the user of a connection who gives it up."""

KEPT_PER_SERVER = 8

NOT_LOCAL_SECONDS = 10.0
"""How long a server that has no local socket is not asked for one again."""

Address = tuple[str, int, bool]
"""Host, port, and whether over a local socket."""


class Connector(Protocol):
    """Makes connections, as `speedwell.fs.wire.channel.connect` does."""

    def __call__(self, host: str, port: int, *, timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
                 stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS,
                 bound: socket.socket | None = None) -> Channel:
        """Raises ConnectionLost."""


class ConnectionPool:
    """Idle connections by dataserver address. Thread-safe."""

    def __init__(self, *, connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
                 stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS, connector: Connector | None = None) -> None:
        self._connect = connector or connect
        self._connect_timeout_seconds = connect_timeout_seconds
        self._stall_timeout_seconds = stall_timeout_seconds
        self._idle: defaultdict[Address, deque[tuple[float, Channel]]] = defaultdict(deque)
        self._not_local: dict[tuple[str, int], float] = {}
        self._lock = threading.Lock()
        self._closed = False

    def take(self, host: str, port: int) -> Channel:
        """A connection to host:port for the caller alone. Raises ConnectionLost."""
        return self._take_idle((host, port, False)) or self._connect(
            host, port, timeout_seconds=self._connect_timeout_seconds,
            stall_timeout_seconds=self._stall_timeout_seconds)

    def take_on_this_host(self, host: str, port: int) -> Channel:
        """Like `take`, for a server on this host: over its local socket, if it has one."""
        channel = self._take_idle((host, port, True))
        if channel is None and time.monotonic() >= self._not_local.get((host, port), 0.0):
            channel = local.connect(host, port, self._stall_timeout_seconds)
            if channel is None:
                self.avoid_local(host, port)
        return channel or self.take(host, port)

    def avoid_local(self, host: str, port: int) -> None:
        """For a while `take_on_this_host` goes over the network to this server."""
        self._not_local[host, port] = time.monotonic() + NOT_LOCAL_SECONDS

    def _take_idle(self, address: Address) -> Channel | None:
        while True:
            with self._lock:
                kept = self._idle.get(address)
                since, channel = kept.pop() if kept else (0.0, None)
            if channel is None:
                return None
            if time.monotonic() - since < IDLE_SECONDS and channel.is_idle():
                channel.set_timeout(self._stall_timeout_seconds)
                return channel
            channel.close()

    def give_back(self, host: str, port: int, channel: Channel) -> None:
        """Keep a connection on which the last request was answered in full."""
        with self._lock:
            kept = self._idle[host, port, channel.is_local]
            surplus = kept.popleft()[1] if len(kept) >= KEPT_PER_SERVER else None
            if self._closed:
                surplus = channel
            else:
                kept.append((time.monotonic(), channel))
        if surplus is not None:
            surplus.close()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they are given back."""
        with self._lock:
            self._closed = True
            channels = [channel for kept in self._idle.values() for _, channel in kept]
            self._idle.clear()
        for channel in channels:
            channel.close()
