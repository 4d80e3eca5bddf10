"""What who asks gets to show to dataservers, and what is checked of who has a certificate with a scope."""

from collections import defaultdict
from collections.abc import Callable

from speedwell.fs.identity.bundle import Peer
from speedwell.fs.identity.scope import Scope
from speedwell.fs.nameserver.namespace.namespace_records import Inode
from speedwell.fs.nameserver.namespace.tree import Tree
from speedwell.fs.nameserver.service.asking import asking
from speedwell.fs.nameserver.service.authorization import Authorization, Searched
from speedwell.fs.nameserver.service.request_fields import file_id_text
from speedwell.fs.nameserver.service.token_clock import TokenClock
from speedwell.fs.nameserver.service.token_keys import TokenKeys
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.tokens import OPERATE, WRITE

MAX_SCOPES = 256
"""For so many the directories are known that they may search."""


class Grants:
    """The caller holds the nameserver's guard where the namespace is looked at: for the `token` of a file."""

    def __init__(self, tree: Tree, keys: TokenKeys, is_rolled_back: Callable[[], bool], clock: TokenClock) -> None:
        """On an old copy of the namespace, which `is_rolled_back`, files are only read."""
        self.keys, self.clock = keys, clock
        self._tree = tree
        self._is_rolled_back = is_rolled_back
        self._searched: defaultdict[Scope, Searched] = defaultdict(dict)

    def token(self, file_id: str, inode: int, rights: int) -> bytes:
        """Of these rights those that who asks has."""
        rights = rights & ~WRITE if self._is_rolled_back() or not asking.may_write else rights
        if asking.authorization is not None:
            rights &= asking.authorization.rights(inode)
        if not rights or self.keys.is_revoked(asking.serial):   # noticed after it was let in
            return b""
        return self.keys.sign(file_id, inode, rights, self.clock.now_ms(), asking.client)

    def end_writes(self, inode: Inode) -> None:
        """Who got a token for the content of a file when it was no program with another's rights could keep these
        when writing to it. Raises StorageFailed."""
        if inode.content is not None:
            self.keys.end_writes(file_id_text(inode.content.file_id), self.clock.now_ms())

    def authorize(self, request: pb.AuthorizeRequest) -> pb.AuthorizeReply:
        return pb.AuthorizeReply(token=self.token("", 0, OPERATE))

    def proof_key(self, request: pb.ProofKeyRequest) -> pb.ProofKeyReply:
        return self.keys.proof_key(asking.client)

    def authorization(self, sender: Peer | None) -> Authorization | None:
        """None for who may do there what a role allows."""
        if sender is None or sender.scope is None:
            return None
        if len(self._searched) >= MAX_SCOPES:
            self._searched.clear()
        return Authorization(self._tree, sender, sender.scope, self._searched[sender.scope])
