"""Which role may make which requests of a nameserver."""

from speedwell.fs.errors import NotAuthenticated, NotAuthorised
from speedwell.fs.identity.bundle import Identity, Peer
from speedwell.fs.identity.roles import CONTROLLER, DATASERVER, MOUNT, NAMESERVER, OPERATOR, READER
from speedwell.fs.nameserver.service.dispatch import CHANGES

READS = frozenset({"Lookup", "List", "ListExtendedAttributes", "Statistics", "Quotas", "Trash", "ProofKey",
                   "Owners"})
USES = READS | {*CHANGES, "RenewSession", "EndSession", "Lock", "Release", "Commit", "Sync"}
ALLOWED = {
    READER: READS,
    CONTROLLER: READS,
    NAMESERVER: READS,
    MOUNT: USES,
    OPERATOR: USES | {"SetQuota", "SetTrash", "SetDraining", "RemoveDataserver", "Balance", "Contents", "Repair",
                      "Adopt", "Authorize", "Dump", "Load"},
    DATASERVER: {"Lookup", "Statistics", "Owners", "ProofKey", "Heartbeat", "ChangeReplicas", "Publish", "Mirror",
                 "UploadMirror"},
}
"""By role; a switch may ask nothing."""


def require_method(identity: Identity, peer: Peer, method: str) -> None:
    """Raises NotAuthenticated for a certificate that counts for nothing any more, NotAuthorised for a role that may
    not ask that."""
    refusal = identity.refusal(peer)
    if refusal:
        raise NotAuthenticated(refusal)
    if method not in ALLOWED.get(peer.role, ()):
        raise NotAuthorised(f"the {peer} may not ask for {method[:60]}: that is for "
                            f"{', '.join(_roles_with(method)) or 'nobody'}")


def _roles_with(method: str) -> list[str]:
    return sorted(role for role, methods in ALLOWED.items() if method in methods)
