"""What operators ask a nameserver for: what lies where, and what is to be done about it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from speedwell.fs.proto import speedwell_pb2 as pb


class OperatorRequests(ABC):
    """A part of `fs.client.names.metadata.MetadataClient`; every method raises NameserverUnavailable too."""

    @abstractmethod
    def _call(self, method: str, request: Any) -> Any: ...

    def authorize(self) -> bytes:
        """The token with which an operator asks dataservers what lies there."""
        reply: pb.AuthorizeReply = self._call("Authorize", pb.AuthorizeRequest())
        return reply.token

    def set_draining(self, dataserver_id: str, draining: bool) -> None:
        """Have a dataserver emptied, or used again. Raises InvalidArgument for one that was never seen."""
        self._call("SetDraining", pb.SetDrainingRequest(dataserver_id=dataserver_id, draining=draining))

    def remove_dataserver(self, dataserver_id: str, *, force: bool = False) -> pb.RemoveDataserverReply:
        """Have a dataserver forgotten that never comes back. Raises DataserverInUse, InvalidArgument."""
        reply: pb.RemoveDataserverReply = self._call(
            "RemoveDataserver", pb.RemoveDataserverRequest(dataserver_id=dataserver_id, force=force))
        return reply

    def balance(self) -> None:
        """Have replicas moved in the background until all dataservers are about equally full."""
        self._call("Balance", pb.BalanceRequest())

    def contents(self, after: int = 0) -> Iterator[pb.ContentEntry]:
        """The content of every file beyond an inode with its replicas, page by page."""
        more = True
        while more:
            reply = self._call("Contents", pb.ContentsRequest(after=after))
            yield from (entry for entry in reply.entries if entry.HasField("content"))
            after = reply.entries[-1].inode if reply.entries else after
            more = reply.more

    def surplus(self) -> set[tuple[str, str]]:
        """(file id, dataserver id) of contents that lie where no file has them, and are to: copies that are being
        made, and contents of removed files that wait for their grace period."""
        reply: pb.ContentsReply = self._call("Contents", pb.ContentsRequest(limit=1))
        return {(finding.file_id, finding.dataserver_id) for finding in reply.surplus}

    def repair(self, bad_replicas: Sequence[pb.Finding], orphans: Sequence[pb.Finding], *,
               lost_tails: Sequence[pb.LostTail] = (), accept_roll_back: bool = False) -> None:
        """Have what a check found put right, without waiting for dataservers that are away. Raises
        NamespaceRolledBack, unless the old copy is accepted."""
        self._call("Repair", pb.RepairRequest(bad_replicas=bad_replicas, orphans=orphans, lost_tails=lost_tails,
                                              accept_roll_back=accept_roll_back))

    def adopt(self, dataserver_id: str) -> None:
        """Have a dataserver that is refused belong to this namespace from its next heartbeat on."""
        self._call("Adopt", pb.AdoptRequest(dataserver_id=dataserver_id))
