"""Requests that only a POSIX mount makes: links and special files, extended attributes."""

import threading
from collections.abc import Callable

from speedwell.fs.errors import InvalidArgument
from speedwell.fs.file_status import CAPABILITIES
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.namespace.namespace_records import SPECIAL_KINDS, Inode
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.nameserver.service.asking import asking
from speedwell.fs.nameserver.service.grants import Grants
from speedwell.fs.proto import speedwell_pb2 as pb


class PosixRequests:
    """One method per rpc, callable from any thread; `guard` is the service's."""

    def __init__(self, guard: threading.RLock, namespace: Namespace, grants: Grants,
                 attributes: Callable[[Inode], pb.Attributes], clock_ns: Callable[[], int]) -> None:
        self._guard = guard
        self._namespace = namespace
        self._grants = grants
        self._attributes = attributes
        self._clock_ns = clock_ns

    # -------------------------------------------------------------- links and special files

    def make_symbolic_link(self, request: pb.MakeSymbolicLinkRequest) -> pb.MakeSymbolicLinkReply:
        target = requests.link_target(request.target)
        uid, gid = requests.owner(request.uid, "uid"), requests.owner(request.gid, "gid")
        with self._guard:
            inode = self._namespace.make_symbolic_link(request.path, target, uid=uid, gid=gid,
                                                       now_ns=self._clock_ns())
            return pb.MakeSymbolicLinkReply(attributes=self._attributes(inode))

    def make_special(self, request: pb.MakeSpecialRequest) -> pb.MakeSpecialReply:
        if request.type not in SPECIAL_KINDS:
            raise InvalidArgument(f"type: {request.type} is not a fifo, socket or device")
        mode = requests.mode(request.mode)
        uid, gid = requests.owner(request.uid, "uid"), requests.owner(request.gid, "gid")
        umask = requests.mode(request.umask, "umask")
        with self._guard:
            inode = self._namespace.make_special(request.path, request.type, mode=mode, uid=uid, gid=gid,
                                                 device=request.device, umask=umask, now_ns=self._clock_ns())
            return pb.MakeSpecialReply(attributes=self._attributes(inode))

    def link(self, request: pb.LinkRequest) -> pb.LinkReply:
        destination = requests.path(request.destination, "destination")
        with self._guard:
            inode = self._namespace.link(request.source, destination, now_ns=self._clock_ns())
            return pb.LinkReply(attributes=self._attributes(inode))

    # -------------------------------------------------------------- extended attributes

    def list_extended_attributes(self, request: pb.ListExtendedAttributesRequest
                                 ) -> pb.ListExtendedAttributesReply:
        with self._guard:
            inode = self._namespace.tree.lookup(request.path)
        attributes = inode.extended_attributes
        return pb.ListExtendedAttributesReply(extended_attributes=[
            pb.ExtendedAttribute(name=name, value=value) for name, value in attributes.items()
            if asking.authorization is None or asking.authorization.visible(name, inode.number)])

    def set_extended_attribute(self, request: pb.SetExtendedAttributeRequest) -> pb.SetExtendedAttributeReply:
        name = requests.attribute_name(request.extended_attribute.name)
        value = requests.attribute_value(request.extended_attribute.value)
        if request.create and request.replace:
            raise InvalidArgument("create: one of create and replace at most")
        with self._guard:
            if name == CAPABILITIES:
                self._grants.end_writes(self._namespace.tree.lookup(request.path))
            inode = self._namespace.extended_attributes.set(
                request.path, name, value, create=request.create, replace=request.replace,
                now_ns=self._clock_ns(), clear_setgid=request.clear_setgid)
            return pb.SetExtendedAttributeReply(attributes=self._attributes(inode))

    def remove_extended_attribute(self, request: pb.RemoveExtendedAttributeRequest
                                  ) -> pb.RemoveExtendedAttributeReply:
        with self._guard:
            inode = self._namespace.extended_attributes.remove(request.path, request.name, now_ns=self._clock_ns())
            return pb.RemoveExtendedAttributeReply(attributes=self._attributes(inode))
