"""The requests of a nameserver by name, as serialised messages, whichever way they came."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import DecodeError, Message

from speedwell.fs.errors import (
    DatabaseDamaged,
    InternalError,
    InvalidArgument,
    NamespaceRebuilding,
    NotAuthorised,
    NotLeader,
    NotSupported,
    SpeedwellError,
)
from speedwell.fs.identity.bundle import Peer
from speedwell.fs.identity.roles import DATASERVER, WRITERS
from speedwell.fs.nameserver.backup.rebuilding import Rebuilding
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.nameserver.service.asking import asking
from speedwell.fs.nameserver.service.authorization import FREE
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.rates import REQUESTS_PER_SECOND, Rates
from speedwell.fs.slots import block_of_request
from speedwell.fs.store.shared import SharedStore

log = logging.getLogger(__name__)

Methods = dict[str, tuple[type[Message], Callable[[Any], Message | bytes]]]
"""By name: the request's type, and what answers it, with a message or that serialised."""

CHANGES = ("Create", "MakeDirectory", "MakeSymbolicLink", "MakeSpecial", "Link", "Remove", "Rename", "SetAttributes",
           "SetExtendedAttribute", "RemoveExtendedAttribute", "Truncate", "Restore", "Purge")
"""Requests that have a `ChangeId`. All others may be carried out twice: it makes no difference."""

READ_ONLY = ("Lookup", "List", "ListExtendedAttributes", "RenewSession", "EndSession", "Lock", "Statistics",
             "Heartbeat", "Quotas", "Trash", "Contents", "Repair", "Adopt", "Authorize", "ProofKey", "Dump",
             "UploadMirror", "Owners")
"""Requests that are answered from an old copy of the namespace too."""

ANYWHERE = ("Statistics", "Owners")
"""Requests that every owner answers."""

UNSHARED = ("Mirror", "UploadMirror")
"""Requests for one nameserver that has all of the namespace: copies of what etcd keeps are of no use."""

SHORT = frozenset({"Lookup", "List", "ListExtendedAttributes", "RenewSession", "Commit",
                   *CHANGES}) - {"Restore", "Purge"}
"""Requests that wait for the guard alone, and let it go soon."""

ADVISED = frozenset({"Create", "Truncate"})
"""Requests that wait for the controller, where there is one."""


class Requests:
    """Finds the method for a request. Callable from any thread."""

    names = tuple(pb.DESCRIPTOR.services_by_name["Nameserver"].methods_by_name)

    def __init__(self, service: NameserverService | None = None,
                 requests_per_second: float = REQUESTS_PER_SECOND) -> None:
        """So many each sender may make. Without a service every request is refused with NotLeader. `permit` raises
        what keeps a sender from a request by that name; `local` is the client that all are whose certificate is not
        known. Whatever else it does, it answers `always`."""
        self.permit: Callable[[Peer, str], None] = lambda sender, name: None
        self.local = ""
        self.short = SHORT
        self._rates = Rates(requests_per_second, requests_per_second)
        self._service = service
        self._methods: Methods = {} if service is None else _methods(service)
        self.always: Methods = {}
        self._refusal: Callable[[], SpeedwellError] = _not_leading
        self._damaged: Callable[[str], None] | None = None

    def lead(self, service: NameserverService, damaged: Callable[[str], None] | None = None) -> None:
        """From now on `service` answers. `damaged` is told when its database turns out to be."""
        self._damaged = damaged
        self._service = service
        self._methods = _methods(service)
        self.short = SHORT if service.questions.advice is None else SHORT - ADVISED

    def stand_by(self) -> None:
        """From now on every request is refused: another nameserver leads."""
        self._refusal = _not_leading
        self._methods = {}

    def rebuild(self, rebuilding: Rebuilding) -> None:
        """From now on only dataservers are answered, until the namespace is there again."""
        self._refusal = rebuilding.refusal
        self._methods = {"Heartbeat": (pb.HeartbeatRequest, rebuilding.heartbeat),
                         "UploadMirror": (pb.UploadMirrorRequest, rebuilding.upload)}

    def pace(self, who: str) -> float:
        """Take note of a request; returns for how many seconds it has to wait."""
        return self._rates.take(who, time.monotonic())

    def answer(self, name: str, data: bytes, sender: Peer | None = None) -> bytes:
        """The serialised reply to whom a certificate says `sender` is. Raises the errors of `fs.errors` and no
        others."""
        methods = self._methods | self.always if self.always else self._methods
        if name not in methods and name not in self.names:
            raise NotSupported(f"method: this nameserver knows no request {name[:60]!r}: if a later release has it, "
                               "upgrade the nameserver (docs/upgrades.md)")
        if sender is not None:
            self.permit(sender, name)
        if name not in methods:
            raise self._refusal()
        request_type, method = methods[name]
        try:
            request = _parse(request_type, data)
            asking.may_write = sender is None or sender.role in WRITERS
            asking.client, asking.serial = (self.local, "") if sender is None else (sender.text, sender.serial)
            asking.authorization = None if self._service is None else self._service.grants.authorization(sender)
            if sender is not None and sender.role == DATASERVER:
                _require_own_name(sender, request)
            reply = method(request)
            return reply if isinstance(reply, bytes) else reply.SerializeToString()
        except DatabaseDamaged as error:
            log.error("%s: %s", name, error)
            if self._damaged is None:
                raise
            self._damaged(str(error))
            raise NamespaceRebuilding(f"{error}; it is made again from the dataservers' copies") from None
        except SpeedwellError as error:
            if error.errno == InternalError.errno:
                log.warning("%s: %s", name, error)
            raise
        except Exception:
            log.exception("%s failed", name)
            raise InternalError(f"{name} failed in the nameserver; its log says why") from None
        finally:    # whoever uses the service next in this thread is not that sender
            asking.may_write, asking.client, asking.serial, asking.authorization = True, "", "", None


def _methods(service: NameserverService) -> Methods:
    methods: dict[str, tuple[type[Message], Callable[[Any], Message | bytes]]] = {
        "Lookup": (pb.LookupRequest, service.lookup),
        "List": (pb.ListRequest, service.list),
        "MakeDirectory": (pb.MakeDirectoryRequest, service.make_directory),
        "MakeSymbolicLink": (pb.MakeSymbolicLinkRequest, service.posix.make_symbolic_link),
        "MakeSpecial": (pb.MakeSpecialRequest, service.posix.make_special),
        "Link": (pb.LinkRequest, service.posix.link),
        "Remove": (pb.RemoveRequest, service.remove),
        "Rename": (pb.RenameRequest, service.rename),
        "SetAttributes": (pb.SetAttributesRequest, service.set_attributes),
        "ListExtendedAttributes": (pb.ListExtendedAttributesRequest, service.posix.list_extended_attributes),
        "SetExtendedAttribute": (pb.SetExtendedAttributeRequest, service.posix.set_extended_attribute),
        "RemoveExtendedAttribute": (pb.RemoveExtendedAttributeRequest, service.posix.remove_extended_attribute),
        "RenewSession": (pb.RenewSessionRequest, service.sessions.renew_session),
        "EndSession": (pb.EndSessionRequest, service.sessions.end_session),
        "Lock": (pb.LockRequest, service.sessions.lock),
        "Release": (pb.ReleaseRequest, service.sessions.release),
        "Truncate": (pb.TruncateRequest, service.truncate),
        "Commit": (pb.CommitRequest, service.commit),
        "Publish": (pb.PublishRequest, service.publish),
        "Sync": (pb.SyncRequest, service.sync),
        "Owners": (pb.OwnersRequest, service.owners),
        "Statistics": (pb.StatisticsRequest, service.statistics),
        "Heartbeat": (pb.HeartbeatRequest, service.dataservers.heartbeat),
        "ChangeReplicas": (pb.ChangeReplicasRequest, service.dataservers.change_replicas),
        "SetQuota": (pb.SetQuotaRequest, service.quota.set_quota),
        "Quotas": (pb.QuotasRequest, service.quota.quotas),
        "SetTrash": (pb.SetTrashRequest, service.trash.set_trash),
        "Trash": (pb.TrashRequest, service.trash.entries),
        "Restore": (pb.RestoreRequest, service.trash.restore),
        "Purge": (pb.PurgeRequest, service.trash.purge),
        "SetDraining": (pb.SetDrainingRequest, service.administration.set_draining),
        "RemoveDataserver": (pb.RemoveDataserverRequest, service.administration.remove_dataserver),
        "Balance": (pb.BalanceRequest, service.administration.balance),
        "Contents": (pb.ContentsRequest, service.administration.contents),
        "Repair": (pb.RepairRequest, service.administration.repair),
        "Adopt": (pb.AdoptRequest, service.administration.adopt),
        "Authorize": (pb.AuthorizeRequest, service.grants.authorize),
        "ProofKey": (pb.ProofKeyRequest, service.grants.proof_key),
        "Dump": (pb.DumpRequest, service.copies.dump),
        "Load": (pb.LoadRequest, service.copies.load),
        "Mirror": (pb.MirrorRequest, service.dataservers.mirror),
        "UploadMirror": (pb.UploadMirrorRequest, _not_rebuilding),
    }
    doors: Methods = {name: (request_type, _door(service, name, method))
                      for name, (request_type, method) in methods.items()}
    questions = service.questions
    return doors | {"Create": (pb.CreateRequest, _advised(service, "Create", questions.create, service.create)),
                    "Truncate": (pb.TruncateRequest, _advised(service, "Truncate", questions.truncate,
                                                              service.truncate))}


def _advised(service: NameserverService, name: str, ask: Callable[[Any], Sequence[int]],
             method: Callable[[Any, Sequence[int]], Message]) -> Callable[[Any], Message | bytes]:
    """Waits for the controller's advice before it takes the guard."""
    door = _door(service, name, lambda request: method(request, asking.advised))

    def answer(request: Any) -> Message | bytes:
        asking.advised = ask(request)
        return door(request)
    return answer


def _door(service: NameserverService, name: str, method: Callable[[Any], Any]
          ) -> Callable[[Any], Message | bytes]:
    method = _authorized(service, name, method)
    if name in CHANGES:
        method = _newest_only(service, _once(service, method))
    elif name not in READ_ONLY:
        method = _newest_only(service, method)
    return method if service.shared is None else _owned(service, service.shared, name, method)


def _owned(service: NameserverService, store: SharedStore, name: str, method: Callable[[Any], Any]
           ) -> Callable[[Any], Any]:
    """Answered by the owner of what it is about (`fs.slots`)."""
    def decided(request: Any) -> Any:
        if store.served_by is not service:      # what that one has in memory is from before blocks came here
            raise _not_leading()
        if name != "Dump":
            return method(request)
        with store.still():
            return method(request)

    def answer(request: Any) -> Any:
        if name in UNSHARED and len(store.owners.runs()) > 1:
            raise NotSupported(f"{name}: several nameservers own this namespace; stop all but one first")
        if name == "Dump":
            store.catch_up()
        return store.decide(None if name in ANYWHERE else block_of_request(request), decided, request)
    return answer


def _authorized(service: NameserverService, name: str, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What it is asked for is still so when it is carried out."""
    def answer(request: Any) -> Any:
        if asking.authorization is None or name in FREE:
            return method(request)
        with service.guard:
            asking.authorization.check(name, request)
            return method(request)
    return answer


def _newest_only(service: NameserverService, method: Callable[[Any], Message | bytes]
                 ) -> Callable[[Any], Message | bytes]:
    """An old copy of the namespace is not changed."""
    def answer(request: Any) -> Message | bytes:
        service.provenance.require_newest()
        return method(request)
    return answer


def _once(service: NameserverService, method: Callable[[Any], Message]) -> Callable[[Any], Message | bytes]:
    """A change that is carried out once however often a request with its id comes (`service.outcomes`)."""
    def answer(request: Any) -> Message | bytes:
        if not request.HasField("id"):
            return method(request)
        requester = requests.number(request.id.requester, "id.requester", 2**64 - 1, 1)
        sequence = requests.number(request.id.sequence, "id.sequence", 2**64 - 1, 1)
        with service.guard:
            return service.outcomes.once(requester, sequence, lambda: method(request).SerializeToString(),
                                         asking.client if asking.serial else "",
                                         asking.authorization is not None)
    return answer


def _not_rebuilding(request: pb.UploadMirrorRequest) -> pb.UploadMirrorReply:
    return pb.UploadMirrorReply(stop=True)


def _not_leading() -> SpeedwellError:
    return NotLeader("this nameserver does not lead: ask the others")


def _require_own_name(sender: Peer, request: Any) -> None:
    """A dataserver speaks for itself alone."""
    claimed = getattr(getattr(request, "server", request), "dataserver_id", sender.name)
    if claimed != sender.name:
        raise NotAuthorised(f"the {sender} may not speak for the dataserver {claimed[:60]}")


def _parse(request_type: type[Message], data: bytes) -> Message:
    try:
        return request_type.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"the request is not a {request_type.DESCRIPTOR.name} message") from error
