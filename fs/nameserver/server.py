"""The nameserver's gRPC side: connections, malformed messages, errors to status codes."""

import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from fs import rpc
from fs.errors import InternalError, InvalidArgument, SpeedwellError
from fs.nameserver.service import NameserverService
from fs.proto import speedwell_pb2 as pb

log = logging.getLogger(__name__)

WORKERS = 4
"""Handlers take microseconds and mostly hold Python's lock: two run as many requests a second as eight."""

_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second nameserver on the same port must fail, not share it
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
]


class ListenFailed(SpeedwellError):
    """The address cannot be listened on; the message says why."""


def serve(service: NameserverService, host: str, port: int) -> tuple[Any, int]:
    """Start a gRPC server (port 0: any free one); returns it and its port. Raises ListenFailed."""
    server = grpc.server(ThreadPoolExecutor(WORKERS, thread_name_prefix="rpc"), options=_OPTIONS)
    server.add_generic_rpc_handlers((_handlers(service),))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound_port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise ListenFailed(f"--listen: cannot listen on {address}: {error}") from error
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


def _handlers(service: NameserverService) -> Any:
    methods: dict[str, tuple[type[Message], Callable[[Any], Message]]] = {
        "Lookup": (pb.LookupRequest, service.lookup),
        "List": (pb.ListRequest, service.list),
        "Create": (pb.CreateRequest, service.create),
        "MakeDirectory": (pb.MakeDirectoryRequest, service.make_directory),
        "Remove": (pb.RemoveRequest, service.remove),
        "Rename": (pb.RenameRequest, service.rename),
        "SetAttributes": (pb.SetAttributesRequest, service.set_attributes),
        "Truncate": (pb.TruncateRequest, service.truncate),
        "Commit": (pb.CommitRequest, service.commit),
        "Statistics": (pb.StatisticsRequest, service.statistics),
        "Heartbeat": (pb.HeartbeatRequest, service.heartbeat),
    }
    return grpc.method_handlers_generic_handler(rpc.SERVICE, {
        name: grpc.unary_unary_rpc_method_handler(
            _handler(name, request_type, method),
            request_deserializer=None,  # here it would turn a malformed message into an INTERNAL error
            response_serializer=None)
        for name, (request_type, method) in methods.items()})


def _handler(name: str, request_type: type[Message],
             method: Callable[[Any], Message]) -> Callable[[bytes, Any], bytes]:
    def handle(data: bytes, context: Any) -> bytes:
        try:
            return method(_parse(request_type, data)).SerializeToString()
        except SpeedwellError as error:
            failure = error
            if error.errno == InternalError.errno:
                log.warning("%s: %s", name, error)
        except Exception:
            log.exception("%s failed", name)
            failure = InternalError(f"{name} failed in the nameserver; its log says why")
        code, details, metadata = rpc.status_of(failure)
        context.set_trailing_metadata(metadata)
        context.abort(code, details)
        raise AssertionError  # abort does not return
    return handle


def _parse(request_type: type[Message], data: bytes) -> Message:
    try:
        return request_type.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"the request is not a {request_type.DESCRIPTOR.name} message") from error
