"""Random histories of changes of a namespace, as requests to a nameserver's service."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.proto import speedwell_pb2 as pb

NAMES = [b"a", b"b", b"c", b"d", "ä\n".encode(), b"x" * 200]


class NamespaceHistory:
    """Changes drawn from `generator`. What the namespace refuses is no failure."""

    def __init__(self, service: Callable[[], NameserverService], generator: random.Random) -> None:
        self._service = service
        self._generator = generator
        self._changes = [self.create, self.create, self.directory, self.directory, self.symbolic_link, self.special,
                         self.link, self.rename, self.rename, self.rename, self.remove, self.attributes, self.times,
                         self.extended_attribute, self.remove_extended_attribute, self.append, self.append,
                         self.truncate, self.lock, self.remove_open]

    def run(self, count: int) -> None:
        """Make `count` changes."""
        for _ in range(count):
            with contextlib.suppress(SpeedwellError):
                self._generator.choice(self._changes)()

    def path(self) -> bytes:
        return b"".join(b"/" + self._generator.choice(NAMES) for _ in range(self._generator.choice([1, 1, 2, 2, 3])))

    def create(self) -> None:
        self._service().create(pb.CreateRequest(path=self.path(), mode=self._mode(), uid=self._number(), gid=7,
                                                exclusive=self._generator.random() < 0.5))

    def directory(self) -> None:
        self._service().make_directory(pb.MakeDirectoryRequest(path=self.path(), mode=self._mode(),
                                                               uid=self._number(), gid=self._number()))

    def symbolic_link(self) -> None:
        self._service().posix.make_symbolic_link(
            pb.MakeSymbolicLinkRequest(path=self.path(), target=self.path(), uid=1))

    def special(self) -> None:
        kind: Any = self._generator.choice([pb.FIFO, pb.SOCKET, pb.CHARACTER_DEVICE])
        self._service().posix.make_special(pb.MakeSpecialRequest(path=self.path(), type=kind, mode=self._mode(),
                                                           device=0 if kind != pb.CHARACTER_DEVICE else 259))

    def link(self) -> None:
        self._service().posix.link(pb.LinkRequest(source=self.path(), destination=self.path()))

    def rename(self) -> None:
        self._service().rename(pb.RenameRequest(source=self.path(), destination=self.path(),
                                                exchange=self._generator.random() < 0.2))

    def remove(self) -> None:
        self._service().remove(pb.RemoveRequest(path=self.path(), directory=self._generator.random() < 0.5))

    def remove_open(self) -> None:
        self._service().sessions.renew_session(pb.RenewSessionRequest(session=5))
        self._service().remove(pb.RemoveRequest(path=self.path(), session=5))

    def attributes(self) -> None:
        self._service().set_attributes(pb.SetAttributesRequest(path=self.path(), mode=self._mode(),
                                                               uid=self._number(), gid=self._number()))

    def times(self) -> None:
        self._service().set_attributes(pb.SetAttributesRequest(path=self.path(), atime_ns=self._number(),
                                                               mtime_ns=self._number() << 40))

    def extended_attribute(self) -> None:
        self._service().posix.set_extended_attribute(pb.SetExtendedAttributeRequest(
            path=self.path(), extended_attribute=pb.ExtendedAttribute(
                name=b"user." + self._generator.choice(NAMES), value=self._generator.randbytes(50))))

    def remove_extended_attribute(self) -> None:
        self._service().posix.remove_extended_attribute(pb.RemoveExtendedAttributeRequest(
            path=self.path(), name=b"user." + self._generator.choice(NAMES)))

    def append(self) -> None:
        attributes = self._service().lookup(pb.LookupRequest(path=self.path())).attributes
        self._service().commit(pb.CommitRequest(inode=attributes.inode, file_id=attributes.file_id,
                                                size=attributes.size + self._number()))

    def truncate(self) -> None:
        self._service().truncate(pb.TruncateRequest(path=self.path()))

    def lock(self) -> None:
        service = self._service()
        service.sessions.renew_session(pb.RenewSessionRequest(session=5))
        inode = service.lookup(pb.LookupRequest(path=self.path())).attributes.inode
        service.sessions.lock(pb.LockRequest(action=pb.LockRequest.ACQUIRE, inode=inode, session=5, first=0,
                                    owner=self._number(), last=self._number(), exclusive=True))

    def _mode(self) -> int:
        return self._generator.choice([0o644, 0o700, 0o2755, 0o4711, 0])

    def _number(self) -> int:
        return self._generator.randrange(1, 1000)
