"""What operators ask a nameserver for: what lies where, and what is to be done about it."""

from collections.abc import Iterator, Sequence

from speedwell.fs import paths
from speedwell.fs.client.names.requests import Ask, message
from speedwell.fs.proto import speedwell_pb2 as pb


class OperatorRequests:
    """`MetadataClient.operator`, whose docstring says what every method raises."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def authorize(self) -> bytes:
        """The token with which an operator asks dataservers what lies there."""
        reply: pb.AuthorizeReply = self._ask("Authorize", pb.AuthorizeRequest())
        return reply.token

    def set_quota(self, path: str | bytes, *, max_bytes: int | None = None, max_files: int | None = None) -> bool:
        """Limit what may lie in a directory with all below it, or with neither limit end that; whether that
        changed anything. Raises NoSuchFile, NotADirectory, DeviceBusy (another one is being counted)."""
        request = message(pb.SetQuotaRequest, path=paths.normalise(path), max_bytes=max_bytes, max_files=max_files)
        return bool(self._ask("SetQuota", request).changed)

    def set_draining(self, dataserver_id: str, draining: bool) -> None:
        """Have a dataserver emptied, or used again. Raises InvalidArgument for one that was never seen."""
        self._ask("SetDraining", pb.SetDrainingRequest(dataserver_id=dataserver_id, draining=draining))

    def remove_dataserver(self, dataserver_id: str, *, force: bool = False) -> pb.RemoveDataserverReply:
        """Have a dataserver forgotten that never comes back. Raises DataserverInUse, InvalidArgument."""
        reply: pb.RemoveDataserverReply = self._ask(
            "RemoveDataserver", pb.RemoveDataserverRequest(dataserver_id=dataserver_id, force=force))
        return reply

    def balance(self) -> None:
        """Have replicas moved in the background until all dataservers are about equally full."""
        self._ask("Balance", pb.BalanceRequest())

    def contents(self, after: int = 0) -> Iterator[pb.ContentEntry]:
        """The content of every file beyond an inode with its replicas, page by page."""
        more = True
        while more:
            reply = self._ask("Contents", pb.ContentsRequest(after=after))
            yield from (entry for entry in reply.entries if entry.HasField("content"))
            after = reply.entries[-1].inode if reply.entries else after
            more = reply.more

    def surplus(self) -> set[tuple[str, str]]:
        """(file id, dataserver id) of contents that lie where no file has them, and are to: copies that are being
        made, and contents of removed files that wait for their grace period."""
        reply: pb.ContentsReply = self._ask("Contents", pb.ContentsRequest(limit=1))
        return {(finding.file_id, finding.dataserver_id) for finding in reply.surplus}

    def repair(self, bad_replicas: Sequence[pb.Finding], orphans: Sequence[pb.Finding], *,
               lost_tails: Sequence[pb.LostTail] = (), accept_roll_back: bool = False) -> None:
        """Have what a check found put right, without waiting for dataservers that are away. Raises
        NamespaceRolledBack, unless the old copy is accepted."""
        self._ask("Repair", pb.RepairRequest(bad_replicas=bad_replicas, orphans=orphans, lost_tails=lost_tails,
                                             accept_roll_back=accept_roll_back))

    def adopt(self, dataserver_id: str) -> None:
        """Have a dataserver that is refused belong to this namespace from its next heartbeat on."""
        self._ask("Adopt", pb.AdoptRequest(dataserver_id=dataserver_id))
