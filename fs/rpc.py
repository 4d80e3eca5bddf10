"""How the errors of `fs.errors` cross gRPC: a status code, the message, and the error's name beside them."""

import socket
from typing import Any

import grpc

from speedwell.fs import errors
from speedwell.fs.addresses import parse_address
from speedwell.fs.errors import InternalError, NameserverUnavailable, NotSupported, SpeedwellError

ERROR_NAME_KEY = "speedwell-error"
"""Key of the trailing metadata that carries the name of the error's class."""

SERVICE = "speedwell.Nameserver"
RECONNECTION = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),     # a server that restarts is found again at once
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 1000),        # how long an attempt may take, on a busy machine too
)
"""Options of every channel to a server that may come back."""

_CODES: dict[type[SpeedwellError], Any] = {
    errors.NoSuchFile: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.NotADirectory: grpc.StatusCode.FAILED_PRECONDITION,
    errors.IsADirectory: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DirectoryNotEmpty: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeviceBusy: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleFile: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Superseded: grpc.StatusCode.ABORTED,
    errors.NotPermitted: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotAuthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.NotAuthorised: grpc.StatusCode.PERMISSION_DENIED,
    errors.TooManyLinks: grpc.StatusCode.FAILED_PRECONDITION,
    errors.QuotaExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.CrossesQuota: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NoSuchAttribute: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Locked: grpc.StatusCode.FAILED_PRECONDITION,
    errors.WouldDeadlock: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TooManyLocks: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.LocksLost: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleEpoch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidName: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NameTooLong: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotSupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.NoSpace: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooFewReplicas: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DataserverInUse: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NoReplicaAvailable: grpc.StatusCode.UNAVAILABLE,
    errors.NotLeader: grpc.StatusCode.UNAVAILABLE,
    errors.NotOwner: grpc.StatusCode.UNAVAILABLE,
    errors.Conflict: grpc.StatusCode.UNAVAILABLE,
    errors.NamespaceRebuilding: grpc.StatusCode.UNAVAILABLE,
    errors.WrongNamespace: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NamespaceRolledBack: grpc.StatusCode.FAILED_PRECONDITION,
}

_BY_NAME: dict[str, type[SpeedwellError]] = {
    kind.__name__: kind for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, SpeedwellError)
}


def status_of(error: SpeedwellError) -> tuple[Any, str, tuple[tuple[str, str], ...]]:
    """(status code, details, trailing metadata) of an answer that reports `error`."""
    code = _CODES.get(type(error), grpc.StatusCode.INTERNAL)
    return code, error.message, ((ERROR_NAME_KEY, type(error).__name__),)


def listens(address: str, timeout_seconds: float) -> bool:
    """Whether a call to `address`, HOST:PORT, that failed before may wait for its connection.

    gRPC connects only while a call waits. After a failure a call that does not wait is refused at once, for seconds
    after the server is back; one that waits takes all its time if nobody is there.
    """
    try:
        socket.create_connection(parse_address(address, "address"), timeout_seconds).close()
    except OSError:
        return False
    return True


def is_transport_failure(error: Any) -> bool:
    """Whether no server answered the call that ended with `error` (a grpc.RpcError)."""
    return (_named(error) is None
            and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED,
                                 grpc.StatusCode.CANCELLED))


def error_from(error: Any, server: str) -> SpeedwellError:
    """The error that a server reported, or NameserverUnavailable if `server` did not answer."""
    kind = _named(error)
    if kind is not None:
        return kind(error.details())
    if is_transport_failure(error):
        return NameserverUnavailable(f"the nameserver at {server} does not answer")
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return NotSupported(f"the server at {server} does not know this request: is it a nameserver, and of "
                            "our version or a later one (docs/upgrades.md)?")
    return InternalError(f"the nameserver at {server} failed: {error.details() or 'its log says why'}")


def named_error(name: str, message: str) -> SpeedwellError:
    """The error of that class name, as a frame carries it."""
    return _BY_NAME.get(name, InternalError)(message)


def _named(error: Any) -> type[SpeedwellError] | None:
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_NAME_KEY:
            return _BY_NAME.get(value)
    return None
