"""How a dataserver reads what others hold: as every client does, steered by the controller where there is one, from
the nearest replica otherwise, from another one when that fails."""

from pathlib import Path

from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.client.names.tokens import Tokens
from speedwell.fs.client.read.receiver import RangeReceiver
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.proto.speedwell_pb2 import Attributes, ProofKeyReply
from speedwell.fs.tokens import READ
from speedwell.fs.wire.connections import ConnectionPool

STEERED_BYTES = 262144


class ClientSource:
    """A `speedwell.fs.dataserver.replication.copies.Source`. Thread-safe."""

    def __init__(self, nameserver: str, door: Door, *, controller: str | None, local_host: str,
                 identity: Path | None = None) -> None:
        """Raises InvalidArgument for a malformed controller URL."""
        metadata = MetadataClient(nameserver, 0, identity=identity)
        self._context = ClientContext(
            metadata, tokens=_OwnTokens(metadata, door), controller=controller, local_host=local_host,
            replica_policy=None, path_policy=None, steer_min_bytes=STEERED_BYTES, controller_timeout_seconds=0.5,
            most_parts=1, paced=True, identity=identity)

    @property
    def connections(self) -> ConnectionPool:
        return self._context.connections

    def look_up(self, inode: int) -> Attributes:
        return self._context.metadata.lookup_inode(inode)

    def receiver(self, attributes: Attributes, offset: int, stop: int) -> RangeReceiver:
        return RangeReceiver(self._context, attributes, offset, stop, steer=True)

    def close(self) -> None:
        self._context.close()
        self._context.metadata.close()


class _OwnTokens(Tokens):
    """Those of a dataserver that reads from others as a client does."""

    def __init__(self, metadata: MetadataClient, door: Door) -> None:
        super().__init__(metadata)
        self._door = door

    def proof_key(self) -> ProofKeyReply | None:
        return self._door.proof_key()

    def of(self, attributes: Attributes, right: int = READ) -> bytes:
        return self._door.sign(attributes.file_id)
