"""Whether what lies on the dataservers belongs to this namespace, and all of it: before that nothing is deleted.

A namespace has an id, which dataservers remember with their contents. One that has another id is refused: the
nameserver may have been started with the wrong store. And every dataserver that counts has to have reported all its
contents since this nameserver began to serve: a content with an inode number that was never given out here proves
that the store is an old copy.
"""

import logging
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from speedwell.fs.errors import NamespaceRolledBack, WrongNamespace
from speedwell.fs.nameserver.namespace.superblocks import Superblocks
from speedwell.fs.nameserver.replicas.registry import Dataserver, Registry
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.slots import note_highest
from speedwell.fs.store import IDENTITY_KEY, Batch, JournaledStore, Store
from speedwell.fs.wire.identification import UNKNOWN_NAMESPACE

log = logging.getLogger(__name__)

SKIPPED_INODES = 100_000
"""So many numbers are left out where given out ones may be lost."""

REFUSAL_SECONDS = 15.0
"""For so long after its last heartbeat a refused dataserver is spoken of."""


@dataclass(frozen=True, slots=True)
class _Refused:
    namespace: bytes
    address: str
    heard_seconds: float


class Provenance:
    """One thread at a time; times are monotonic seconds, passed in. `counts` says whether what lies on a dataserver
    is to be waited for."""

    def __init__(self, store: Store, superblocks: Superblocks, registry: Registry,
                 counts: Callable[[int, float], bool]) -> None:
        """Raises StorageFailed."""
        self.namespace_id = identity_of(store)
        self.term = secrets.randbits(63) | 1
        self._superblocks = superblocks
        self._registry = registry
        self._counts = counts
        self._complete: set[int] = set()
        self._refused: dict[str, _Refused] = {}
        self._adopting: set[str] = set()
        self._adopted: set[str] = set()
        self._highest: dict[int, int] = {}      # by block (`speedwell.fs.slots`)
        self._proof = ""

    # ------------------------------------------------------------------ heartbeats

    def is_adopted(self, request: pb.HeartbeatRequest, now_seconds: float) -> bool:
        """Whether the dataserver is to be told that it belongs here now, by the word of an operator. Raises
        WrongNamespace for one that does not belong here."""
        name, theirs = request.server.dataserver_id, request.namespace
        if theirs in (b"", self.namespace_id):
            self._refused.pop(name, None)
            self._adopting.discard(name)
            return False
        if name in self._adopting:
            log.warning("the dataserver %s of the namespace %s is adopted", name, theirs.hex())
            self._adopted.add(name)
            return True
        self._refused[name] = _Refused(theirs, f"{request.server.host}:{request.server.port}", now_seconds)
        raise WrongNamespace(self._refusal(name, self._refused[name]))

    def heard(self, server: Dataserver, request: pb.HeartbeatRequest) -> None:
        """Take note of what a dataserver of this namespace says that it holds."""
        if request.term == self.term and request.inventory_complete:
            self._complete.add(server.number)
        highest: dict[int, int] = {}
        for number in (*request.highest_inode, *(report.inode for report in request.reports)):
            note_highest(highest, number)
            note_highest(self._highest, number)
        for number in highest.values():
            if self._proof or self._superblocks.was_given(number):
                continue
            if server.dataserver_id in self._adopted:
                self._superblocks.skip_inodes(number + 1)   # numbers of another namespace prove nothing
            else:
                self._proof = (f"the dataserver {server.dataserver_id} holds a content of inode {number}, and only "
                               f"numbers below {self._superblocks.next_beside(number)} have been given out here")
                log.error("%s", self._roll_back())

    # ------------------------------------------------------------------ what is allowed

    @property
    def is_rolled_back(self) -> bool:
        return bool(self._proof)

    def require_newest(self) -> None:
        """Raises NamespaceRolledBack."""
        if self._proof:
            raise NamespaceRolledBack(self._roll_back())

    def may_delete(self, now_seconds: float) -> bool:
        return not self._proof and not self.awaited(now_seconds)

    def awaited(self, now_seconds: float) -> list[str]:
        """The dataservers that have not reported all they hold in this term."""
        return [server.dataserver_id for server, _ in self._registry.statuses()
                if server.number not in self._complete and self._counts(server.number, now_seconds)]

    # ------------------------------------------------------------------ an operator's word

    def adopt(self, dataserver_id: str) -> None:
        """With its next heartbeat the dataserver belongs here."""
        self._adopting.add(dataserver_id)

    def accept_roll_back(self) -> None:
        """Go on with the namespace as it is. Raises StorageFailed."""
        if self._proof:
            for number in self._highest.values():
                self._superblocks.skip_inodes(number + SKIPPED_INODES)
            log.warning("an operator accepts that %s", self._proof)
            self._proof = ""

    def warnings(self, now_seconds: float) -> list[str]:
        """What an operator has to decide."""
        self._refused = {name: refused for name, refused in self._refused.items()
                         if now_seconds - refused.heard_seconds < REFUSAL_SECONDS}
        found = [self._refusal(name, refused) for name, refused in sorted(self._refused.items())]
        return [self._roll_back(), *found] if self._proof else found

    # ------------------------------------------------------------------ messages

    def _refusal(self, name: str, refused: _Refused) -> str:
        whose = (f"belongs to the namespace {refused.namespace.hex()}" if refused.namespace != UNKNOWN_NAMESPACE
                 else "holds contents and has forgotten to which namespace they belong")
        return (f"the dataserver {name} ({refused.address}) {whose}, this nameserver keeps "
                f"{self.namespace_id.hex()}: it is refused and deletes nothing. Start the nameserver with the store "
                "of that namespace (--directory, --etcd, --etcd-prefix), or have the dataserver belong to this one: "
                f"speedwell node adopt {name}")

    def _roll_back(self) -> str:
        return (f"the namespace is an old copy of itself: {self._proof}. It is only read, and nothing is deleted. "
                "Start the nameserver with the newest store; or, if that is lost, go on with this one: "
                "speedwell fsck --accept-roll-back (contents that it does not know go to quarantine)")


def identity_of(store: Store) -> bytes:
    """The id of the namespace in `store`, 16 bytes; it is made if it has none. Raises StorageFailed."""
    if isinstance(store, JournaledStore):
        return store.position.namespace
    known = store.get(IDENTITY_KEY)
    if known is None:
        known = uuid.uuid4().bytes
        batch = Batch()
        batch.put(IDENTITY_KEY, known)
        store.write(batch)
    return known
