"""What the readers and appenders of one client share."""

import logging
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from speedwell.fs import coflows
from speedwell.fs.client.metrics import Metrics
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.client.names.tokens import Tokens
from speedwell.fs.client.read.steering import Steering
from speedwell.fs.errors import InvalidArgument, SpeedwellError
from speedwell.fs.proto.speedwell_pb2 import Attributes, CheckOperation, DataReply, DataRequest, Replica
from speedwell.fs.wire.channel import Channel, ConnectionLost, MalformedFrame
from speedwell.fs.wire.connections import ConnectionPool
from speedwell.fs.wire.identification import Identified

log = logging.getLogger(__name__)

AVOID_SECONDS = 5.0
"""How long a dataserver that failed is tried last: a vanished host costs seconds at every attempt."""

PLACE_EXPIRES_SECONDS = 60.0
LOCAL_BYTES = 160 * 1024
DEFAULT_PARTS = 2  # as in the paper (section 4.3)
MOST_PARTS = 16


class Writer:
    """A name for somebody who appends one piece after the other, and the number of the last piece.

    Dataservers remember the last append of each writer; so a writer has one append under way at a time.
    """

    def __init__(self) -> None:
        self.id = secrets.randbits(64) or 1
        self.sequence = 0


class ClientContext:
    """Metadata, connections, steering and counters of one client. Thread-safe."""

    def __init__(self, metadata: MetadataClient, *, controller: str | None, local_host: str | None,
                 replica_policy: str | None, path_policy: str | None, steer_min_bytes: int,
                 controller_timeout_seconds: float, most_parts: int, paced: bool = False,
                 identity: Path | str | None = None, tokens: Tokens | None = None) -> None:
        """With `paced`, dataservers hold back what they send, as for new replicas. `tokens`: the nameserver's."""
        if not 1 <= most_parts <= MOST_PARTS:
            raise InvalidArgument(f"most_parts: {most_parts} is not between 1 and {MOST_PARTS}")
        if steer_min_bytes < 0:
            raise InvalidArgument(f"steer_min_bytes: {steer_min_bytes} is negative")
        if controller_timeout_seconds <= 0:
            raise InvalidArgument(f"controller_timeout_seconds: {controller_timeout_seconds} is not positive")
        self.metadata = metadata
        self.metrics = Metrics()
        self.connections = ConnectionPool(connector=metadata.nameservers.connect_data)
        self.steering = None if controller is None else Steering(
            controller, self.metrics, replica_policy=replica_policy, path_policy=path_policy,
            timeout_seconds=controller_timeout_seconds, identity=identity)
        self.coflows = coflows.configured()
        self.steer_min_bytes = steer_min_bytes
        self.most_parts = most_parts
        self.local_host = local_host
        self.paced = paced
        self.tokens = tokens or Tokens(metadata)
        self.identified = Identified(lambda: metadata.nameservers.namespace, self.tokens.proof_key)
        self._writers: list[Writer] = []
        self._failed_at: dict[tuple[str, int], float] = {}
        self._place: tuple[str, str] | None = None
        self._place_expires = 0.0
        self._place_lock = threading.Lock()

    def near_first(self, replicas: Iterable[Replica], file_id: str) -> list[Replica]:
        """The replicas in the order to try them: live ones, then same host, rack, pod, then the rest.

        Equals are ordered by a hash of file and client, so that clients spread and each stays with its
        choice (its dataserver has the file in the page cache then).
        """
        wanted = list(replicas)
        if len(wanted) < 2:
            return wanted
        own = self._own_place()
        now = time.monotonic()
        salt = f"{file_id} {self.local_host or ''} ".encode()

        def order(replica: Replica) -> tuple[bool, bool, int, int]:
            failed = now - self._failed_at.get((replica.host, replica.port), -AVOID_SECONDS) < AVOID_SECONDS
            return (failed, not replica.alive, self._distance(replica, own),
                    zlib.crc32(salt + replica.dataserver_id.encode()))

        return sorted(wanted, key=order)

    def take_writer(self) -> Writer:
        """A writer for the caller alone. Few are made, as dataservers remember only so many."""
        try:
            return self._writers.pop()
        except IndexError:
            return Writer()

    def give_back_writer(self, writer: Writer) -> None:
        """The caller has no append under way any more."""
        self._writers.append(writer)

    def note_failure(self, replica: Replica) -> None:
        """Try this dataserver last for a while."""
        self._failed_at[replica.host, replica.port] = time.monotonic()
        self.identified.forget(replica)

    def connection_to(self, replica: Replica, send_bytes: int = 0) -> Channel:
        """A connection to a dataserver, to send so many bytes to it. Not over the network if it is on this host, and
        they are not many: a local socket has a small buffer. Raises ConnectionLost."""
        if replica.host == self.local_host and send_bytes <= LOCAL_BYTES:
            channel = self.connections.take_on_this_host(replica.host, replica.port)
        else:
            channel = self.connections.take(replica.host, replica.port)
        return self.identified.require(channel, replica)

    def report_damage(self, replica: Replica, attributes: Attributes) -> None:
        """Have a dataserver compare a file with its sums, and repair it. Best effort."""
        log.error("dataserver %s has damaged bytes of %s", replica.dataserver_id, attributes.file_id)
        try:
            channel = self.connection_to(replica)
            channel.send(DataRequest(check=CheckOperation(file_id=attributes.file_id),
                                     token=self.tokens.of(attributes)))
            channel.expect(DataReply)
        except (ConnectionLost, MalformedFrame) as error:
            log.warning("dataserver %s could not be told: %s", replica.dataserver_id, error)
        else:
            self.connections.give_back(replica.host, replica.port, channel)

    def address_toward(self, replica: Replica) -> str:
        """This host's address as that dataserver sees it. Raises OSError if there is no route."""
        if self.local_host:
            return self.local_host
        family = socket.AF_INET6 if ":" in replica.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((replica.host, replica.port))
            return str(probe.getsockname()[0])

    def address_on_fabric(self) -> str:
        """This host's address as the dataservers see it; empty if that cannot be found out."""
        if self.local_host:
            return self.local_host
        try:
            servers = [status.server for status in self.metadata.statistics().dataservers if status.server.alive]
            return self.address_toward(servers[0]) if servers else ""
        except (SpeedwellError, OSError) as error:
            log.debug("the own address on the fabric is not known: %s", error)
            return ""

    def close(self) -> None:
        """Close all connections."""
        self.tokens.close()
        if self.steering is not None:
            self.steering.close()
        self.connections.close()

    # ------------------------------------------------------------------ private

    def _distance(self, replica: Replica, own: tuple[str, str] | None) -> int:
        if self.local_host and replica.host == self.local_host:
            return 0
        if own is None:
            return 3
        _, pod = own
        return 1 if (replica.rack, replica.pod) == own else 2 if replica.pod == pod else 3

    def _own_place(self) -> tuple[str, str] | None:
        """(rack, pod) of this host, which the dataserver on it told the nameserver."""
        if not self.local_host:
            return None
        with self._place_lock:
            if time.monotonic() >= self._place_expires:
                self._place_expires = time.monotonic() + PLACE_EXPIRES_SECONDS
                try:
                    servers = [status.server for status in self.metadata.statistics().dataservers]
                except SpeedwellError as error:
                    log.debug("own rack and pod are not known: %s", error)
                else:
                    self._place = next(((server.rack, server.pod) for server in servers
                                        if server.host == self.local_host), None)
            return self._place
