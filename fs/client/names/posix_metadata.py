"""Requests that only a POSIX mount makes: links and special files, extended attributes, sessions."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from speedwell.fs import paths
from speedwell.fs.client.names.attribute_cache import AttributeCache
from speedwell.fs.client.names.namespace_copies import NamespaceCopies
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.proto.speedwell_pb2 import Attributes


class PosixMetadata(NamespaceCopies):
    """Half of `fs.client.names.metadata.MetadataClient`, whose docstring says what holds for every method."""

    _cache: AttributeCache

    def make_symbolic_link(self, path: str | bytes, target: bytes, uid: int = 0, gid: int = 0) -> Attributes:
        """Raises AlreadyExists, NoSuchFile, NotADirectory, NameTooLong."""
        path = paths.normalise(path)
        request = message(pb.MakeSymbolicLinkRequest, path=path, target=target, uid=uid, gid=gid)
        return self._made(path, self._change("MakeSymbolicLink", request, path))

    def make_special(self, path: str | bytes, kind: int, mode: int, uid: int = 0, gid: int = 0,
                     device: int = 0, umask: int = 0) -> Attributes:
        """A fifo, socket or device (`kind` is one of the wire format's FileType).

        Raises AlreadyExists, NoSuchFile, NotADirectory.
        """
        path = paths.normalise(path)
        request = message(pb.MakeSpecialRequest, path=path, type=kind, mode=mode, uid=uid, gid=gid, device=device,
                          umask=umask)
        return self._made(path, self._change("MakeSpecial", request, path))

    def _made(self, path: bytes, reply: Any) -> Attributes:
        attributes: Attributes = reply.attributes
        self._changed(path, attributes)
        self._added(path, attributes, is_directory=False)
        return attributes

    def link(self, source: str | bytes, destination: str | bytes) -> Attributes:
        """Give a file another name.

        Raises NoSuchFile, NotADirectory, NotPermitted (a directory), AlreadyExists, TooManyLinks.
        """
        source, destination = paths.normalise(source, "source"), paths.normalise(destination, "destination")
        reply = self._change("Link", pb.LinkRequest(source=source, destination=destination), destination)
        self._cache.changed(source, None, time.monotonic())
        return self._made(destination, reply)

    # -------------------------------------------------------------- extended attributes

    def list_extended_attributes(self, path: str | bytes) -> dict[bytes, bytes]:
        """Values by name. Raises NoSuchFile, NotADirectory."""
        request = pb.ListExtendedAttributesRequest(path=paths.normalise(path))
        reply = self._call("ListExtendedAttributes", request)
        return {each.name: each.value for each in reply.extended_attributes}

    def set_extended_attribute(self, path: str | bytes, name: bytes, value: bytes, *, create: bool = False,
                               replace: bool = False, clear_setgid: bool = False) -> None:
        """`clear_setgid` with an access control list of who is not in the file's group. Raises NoSuchFile,
        NotADirectory, AlreadyExists (`create`), NoSuchAttribute (`replace`), NoSpace, InvalidArgument (a list)."""
        path = paths.normalise(path)
        request = pb.SetExtendedAttributeRequest(
            path=path, extended_attribute=pb.ExtendedAttribute(name=name, value=value), create=create,
            replace=replace, clear_setgid=clear_setgid)
        self._changed(path, self._change("SetExtendedAttribute", request, path).attributes)

    def remove_extended_attribute(self, path: str | bytes, name: bytes) -> None:
        """Raises NoSuchFile, NotADirectory, NoSuchAttribute."""
        path = paths.normalise(path)
        request = pb.RemoveExtendedAttributeRequest(path=path, name=name)
        self._changed(path, self._change("RemoveExtendedAttribute", request, path).attributes)

    # -------------------------------------------------------------- sessions

    def renew_session(self, session: int) -> pb.RenewSessionReply:
        """The seconds within which to renew it again, and whether the nameserver had not known it."""
        reply: pb.RenewSessionReply = self._call("RenewSession", pb.RenewSessionRequest(session=session))
        return reply

    def end_session(self, session: int) -> None:
        """Give up all the session holds."""
        self._call("EndSession", pb.EndSessionRequest(session=session))

    def release(self, session: int, inodes: Sequence[int]) -> None:
        """Let files without a name go that the session held when they were removed."""
        self._call("Release", pb.ReleaseRequest(session=session, inodes=inodes))

    def lock(self, request: pb.LockRequest) -> pb.LockReply:
        """Raises WouldDeadlock, TooManyLocks. Asking again changes nothing."""
        reply: pb.LockReply = self._call("Lock", request)
        return reply

    # -------------------------------------------------------------- the other half

    def _changed(self, path: bytes, attributes: Attributes) -> None:
        raise NotImplementedError

    def _added(self, path: bytes, attributes: Attributes, *, is_directory: bool) -> None:
        raise NotImplementedError

    def _change(self, method: str, request: Any, path: bytes) -> Any:
        raise NotImplementedError

    def _call(self, method: str, request: Any) -> Any:
        raise NotImplementedError


def message(kind: Callable[..., Any], **fields: Any) -> Any:
    """A request, with a number that does not fit its field turned into InvalidArgument."""
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (ValueError, TypeError):
                raise InvalidArgument(f"{name}: {value!r} is out of range") from error
        raise
