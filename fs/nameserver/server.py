"""The nameserver's gRPC side: connections, errors to status codes."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from fs import rpc
from fs.errors import SpeedwellError
from fs.nameserver.dispatch import Requests

WORKERS = 4
"""Handlers take microseconds and mostly hold Python's lock: two run as many requests a second as eight."""

_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second nameserver on the same port must fail, not share it
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
]


class ListenFailed(SpeedwellError):
    """The address cannot be listened on; the message says why."""


def serve(requests: Requests, host: str, port: int) -> tuple[Any, int]:
    """Start a gRPC server (port 0: any free one); returns it and its port. Raises ListenFailed."""
    server = grpc.server(ThreadPoolExecutor(WORKERS, thread_name_prefix="rpc"), options=_OPTIONS)
    server.add_generic_rpc_handlers((_handlers(requests),))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound_port = server.add_insecure_port(address)
    except RuntimeError as error:           # gRPC names itself and no cause
        raise ListenFailed(f"--listen: cannot listen on {address}: another process has it by now") from error
    server.start()
    return server, bound_port


def check_address(host: str, port: int) -> None:
    """Raises ListenFailed with the reason, which gRPC does not tell, if the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        raise ListenFailed(f"--listen: cannot listen on {host}:{port}: {error.strerror}") from error


def _handlers(requests: Requests) -> Any:
    return grpc.method_handlers_generic_handler(rpc.SERVICE, {
        name: grpc.unary_unary_rpc_method_handler(
            _handler(requests, name),
            request_deserializer=None,  # here it would turn a malformed message into an INTERNAL error
            response_serializer=None)
        for name in requests.names})


def _handler(requests: Requests, name: str) -> Callable[[bytes, Any], bytes]:
    def handle(data: bytes, context: Any) -> bytes:
        try:
            return requests.answer(name, data)
        except SpeedwellError as error:
            code, details, metadata = rpc.status_of(error)
        context.set_trailing_metadata(metadata)
        context.abort(code, details)
        raise AssertionError  # abort does not return
    return handle
