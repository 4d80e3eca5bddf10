"""Which replicas a range may still come from, after some of them have failed."""

import logging

from speedwell.fs.client.context import ClientContext
from speedwell.fs.errors import NoReplicaAvailable, ReadFailed, SpeedwellError, StaleFile
from speedwell.fs.proto.speedwell_pb2 import Attributes, Replica

log = logging.getLogger(__name__)


class ReplicaChoice:
    """Once all have failed, the replicas are looked up again and each gets one more chance."""

    def __init__(self, context: ClientContext, attributes: Attributes) -> None:
        self._context = context
        self._attributes = attributes
        self._replicas = list(attributes.replicas)
        self._excluded: set[str] = set()
        self._tried: list[str] = []
        self._looked_up_again = False
        self.reached_any = False
        """Whether any of them has answered."""
        self.missing = 0
        """How often one answered that it does not have the content."""

    def replica(self, dataserver_id: str) -> Replica:
        """Raises StopIteration if the file has none there."""
        return next(replica for replica in self._replicas if replica.dataserver_id == dataserver_id)

    def failed(self, replica: Replica, reason: str, position: int) -> None:
        """A replica did not serve, or stopped in the middle, at `position` of the file."""
        log.warning("dataserver %s %s; trying another from byte %d on (content %s)", replica.dataserver_id, reason,
                    position, self._attributes.file_id)
        self._context.note_failure(replica)
        self._context.metrics.add(replica_failures=1)
        self._excluded.add(replica.dataserver_id)
        self._tried.append(f"{replica.dataserver_id} ({replica.host}:{replica.port}): {reason}")

    def damaged(self, replica: Replica) -> None:
        """A replica sent a block that differs from its sum."""
        self._context.metrics.add(damaged_blocks=1)
        self._context.report_damage(replica, self._attributes)

    def delivered(self) -> None:
        """Bytes have come: whoever failed before may be tried again when the next one fails."""
        if self._excluded:
            self._excluded.clear()
            self._looked_up_again = False

    def candidates(self, position: int) -> list[Replica]:
        """Those left, in the order to try them. Raises NoReplicaAvailable (none could be reached), ReadFailed (none
        could deliver), StaleFile (none has the content any more); their messages say what was tried."""
        left = [replica for replica in self._replicas if replica.dataserver_id not in self._excluded]
        if not left and not self._looked_up_again:
            self._look_up_again()
            left = self._replicas
        if left:
            return self._context.near_first(left, self._attributes.file_id)
        if not self._tried:
            raise NoReplicaAvailable(f"the file {self._attributes.file_id} has no replica")
        tried = "; ".join(dict.fromkeys(self._tried))
        if self.missing >= len(self._tried):
            raise StaleFile(f"the content {self._attributes.file_id} is gone, tried {tried}")
        kind = ReadFailed if self.reached_any else NoReplicaAvailable
        raise kind(f"no replica delivers {self._attributes.file_id} at {position}, tried {tried}")

    def _look_up_again(self) -> None:
        self._looked_up_again = True
        self._excluded.clear()
        try:
            attributes = self._context.metadata.lookup_inode(self._attributes.inode)
        except SpeedwellError as error:
            log.debug("replicas of %s could not be looked up again: %s", self._attributes.file_id, error)
            return
        if attributes.file_id == self._attributes.file_id:
            self._replicas = list(attributes.replicas)
