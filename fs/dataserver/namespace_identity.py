"""The namespace that the contents in a dataserver's directories belong to.

`ROOT/namespace` of each has its id and a CRC. It is written when the first nameserver answers, and from then on a
nameserver of another namespace is refused, unless there is nothing here to be lost, or an operator has the dataserver
adopted.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from crc32c import crc32c

from speedwell.fs import durable
from speedwell.fs.dataserver.disk.disk_errors import PUBLIC
from speedwell.fs.errors import StorageFailed, WrongNamespace
from speedwell.fs.proto.speedwell_pb2 import HeartbeatReply, HeartbeatRequest
from speedwell.fs.wire.identification import UNKNOWN_NAMESPACE

log = logging.getLogger(__name__)


class Identity:
    """Used by one thread. `holds_anything` says whether there is anything to be lost."""

    def __init__(self, directories: Iterable[Path], holds_anything: Callable[[], bool],
                 mirrored: bytes = b"") -> None:
        """`mirrored` is the namespace of which the copy here is, if the directories themselves do not say. Raises
        StorageFailed if they belong to different ones."""
        self._paths = [directory / "namespace" for directory in directories]
        self._holds_anything = holds_anything
        said = {path: namespace for path in self._paths if (namespace := _read(path))}
        if len(set(said.values())) > 1:
            raise StorageFailed("the directories belong to different namespaces: " + ", ".join(
                f"{path.parent} to {namespace.hex()}" for path, namespace in said.items()))
        self.namespace = next(iter(said.values()), mirrored)
        if said and len(said) < len(self._paths):
            self._remember(self.namespace)

    def introduce(self, request: HeartbeatRequest) -> None:
        """Add to a heartbeat where the contents here belong."""
        request.namespace = self.namespace or (UNKNOWN_NAMESPACE if self._holds_anything() else b"")
        if request.holders.namespace != request.namespace:
            request.ClearField("holders")   # it is remembered from before this dataserver was adopted

    def check(self, reply: HeartbeatReply) -> None:
        """Whether to do what a nameserver answers; remembers its namespace if there is none yet. Raises
        WrongNamespace, StorageFailed."""
        if reply.rebuilding or reply.namespace == self.namespace:
            return
        if reply.adopt:
            log.warning("by the word of an operator this dataserver belongs to %s from now on", reply.namespace.hex())
        elif self.namespace or self._holds_anything():
            raise WrongNamespace(f"the nameserver keeps the namespace {reply.namespace.hex()}, and what is here "
                                 f"belongs to {self.namespace.hex() or 'another one'}: it is not obeyed")
        self._remember(reply.namespace)

    def refused(self) -> None:
        """The nameserver keeps another namespace: with nothing to be lost here that is where this server belongs."""
        if not self._holds_anything():
            self.namespace = b""

    def _remember(self, namespace: bytes) -> None:
        text = namespace.hex().encode()
        for path in self._paths:
            try:
                durable.replace(path, text + b" %08x\n" % crc32c(text), PUBLIC)
            except OSError as error:
                raise StorageFailed(f"cannot write to {path}: {error.strerror}") from None
        self.namespace = namespace


def _read(path: Path) -> bytes:
    """Empty: there is none, or it is damaged."""
    try:
        text, _, total = path.read_bytes().strip().rpartition(b" ")
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}") from None
    if total != b"%08x" % crc32c(text):
        log.error("%s is damaged", path)
        return b""
    return bytes.fromhex(text.decode())
