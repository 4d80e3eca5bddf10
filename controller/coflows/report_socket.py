"""Where reports come in."""

from __future__ import annotations

from typing import Any

from eventlet.green import socket

from speedwell.controller.errors import InvalidSettings

RECEIVE_BUFFER_BYTES = 4 << 20
"""For reports that come while others have their turn. Without privileges the kernel gives no more than
net.core.rmem_max."""
SO_RCVBUFFORCE = 33
"""Linux's number, which Python has no name for."""


def report_socket(host: str, port: int) -> Any:
    """A socket that listens there. Raises InvalidSettings if the address cannot be had."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        listening.bind((host, port))
    except OSError as error:
        raise InvalidSettings(f"cannot take coflow reports at {host}:{port}: {error.strerror}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    except PermissionError:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return listening
