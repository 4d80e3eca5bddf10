"""What only POSIX has: links and special files, extended attributes."""

from typing import Any

from speedwell.fs import paths
from speedwell.fs.client.names.attribute_cache import AttributeCache
from speedwell.fs.client.names.requests import Requests, message
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.proto.speedwell_pb2 import Attributes


class PosixMetadata:
    """`MetadataClient.posix`, whose docstring says what every method raises."""

    def __init__(self, requests: Requests, cache: AttributeCache) -> None:
        self._requests = requests
        self._cache = cache

    def make_symbolic_link(self, path: str | bytes, target: bytes, uid: int = 0, gid: int = 0) -> Attributes:
        """Raises AlreadyExists, NoSuchFile, NotADirectory, NameTooLong."""
        path = paths.normalise(path)
        request = message(pb.MakeSymbolicLinkRequest, path=path, target=target, uid=uid, gid=gid)
        return self._make("MakeSymbolicLink", request, path)

    def make_special(self, path: str | bytes, kind: int, mode: int, uid: int = 0, gid: int = 0,
                     device: int = 0, umask: int = 0) -> Attributes:
        """A fifo, socket or device (`kind` is one of the wire format's FileType).

        Raises AlreadyExists, NoSuchFile, NotADirectory.
        """
        path = paths.normalise(path)
        request = message(pb.MakeSpecialRequest, path=path, type=kind, mode=mode, uid=uid, gid=gid, device=device,
                          umask=umask)
        return self._make("MakeSpecial", request, path)

    def link(self, source: str | bytes, destination: str | bytes) -> Attributes:
        """Give a file another name.

        Raises NoSuchFile, NotADirectory, NotPermitted (a directory), AlreadyExists, TooManyLinks.
        """
        source, destination = paths.normalise(source, "source"), paths.normalise(destination, "destination")
        request = pb.LinkRequest(source=source, destination=destination)
        attributes: Attributes = self._requests.change("Link", request, destination).attributes
        self._cache.changed(source)
        self._cache.made(destination, attributes)
        return attributes

    # -------------------------------------------------------------- extended attributes

    def list_extended_attributes(self, path: str | bytes) -> dict[bytes, bytes]:
        """Values by name. Raises NoSuchFile, NotADirectory."""
        request = pb.ListExtendedAttributesRequest(path=paths.normalise(path))
        reply = self._requests.ask("ListExtendedAttributes", request)
        return {each.name: each.value for each in reply.extended_attributes}

    def set_extended_attribute(self, path: str | bytes, name: bytes, value: bytes, *, create: bool = False,
                               replace: bool = False, clear_setgid: bool = False) -> None:
        """`clear_setgid` with an access control list of who is not in the file's group. Raises NoSuchFile,
        NotADirectory, AlreadyExists (`create`), NoSuchAttribute (`replace`), NoSpace, InvalidArgument (a list)."""
        path = paths.normalise(path)
        request = pb.SetExtendedAttributeRequest(
            path=path, extended_attribute=pb.ExtendedAttribute(name=name, value=value), create=create,
            replace=replace, clear_setgid=clear_setgid)
        self._cache.changed(path, self._requests.change("SetExtendedAttribute", request, path).attributes)

    def remove_extended_attribute(self, path: str | bytes, name: bytes) -> None:
        """Raises NoSuchFile, NotADirectory, NoSuchAttribute."""
        path = paths.normalise(path)
        request = pb.RemoveExtendedAttributeRequest(path=path, name=name)
        self._cache.changed(path, self._requests.change("RemoveExtendedAttribute", request, path).attributes)

    def _make(self, method: str, request: Any, path: bytes) -> Attributes:
        attributes: Attributes = self._requests.change(method, request, path).attributes
        self._cache.made(path, attributes)
        return attributes
