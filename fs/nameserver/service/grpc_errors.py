"""How the errors of `fs.errors` cross gRPC: a status code, the message, and the error's name beside them."""

from typing import Any

import grpc

from speedwell.fs import errors
from speedwell.fs.errors import SpeedwellError

ERROR_NAME_KEY = "speedwell-error"
"""Key of the trailing metadata that carries the name of the error's class."""

SERVICE = "speedwell.Nameserver"

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

def status_of(error: SpeedwellError) -> tuple[Any, str, tuple[tuple[str, str], ...]]:
    """(status code, details, trailing metadata) of an answer that reports `error`."""
    code = _CODES.get(type(error), grpc.StatusCode.INTERNAL)
    return code, error.message, ((ERROR_NAME_KEY, type(error).__name__),)
