"""fsync: what was acknowledged goes to the disks of the replicas and of the nameserver."""

import time

from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.patience import PAUSE_SECONDS, Patience
from speedwell.fs.errors import NoSuchFile, SpeedwellError, StorageFailed
from speedwell.fs.proto.speedwell_pb2 import OK, TOKEN_REFUSED, Attributes, DataReply, DataRequest, SyncOperation
from speedwell.fs.tokens import WRITE
from speedwell.fs.wire.channel import ConnectionLost, MalformedFrame

ANSWER_SECONDS = 60.0


def force_to_disk(context: ClientContext, attributes: Attributes) -> None:
    """Have what of the file was acknowledged, up to the length in `attributes` at least, and all changes of names be
    on the disks, unless the installation's policy is never.

    Raises StorageFailed (no promise then), NameserverUnavailable.
    """
    patience = Patience()
    while attributes.size and attributes.replicas:
        try:
            _ask_primary(context, attributes)
            break
        except StorageFailed as error:
            failure = error
        before = attributes
        try:
            attributes = context.metadata.lookup_inode(before.inode, to_append=True)
        except NoSuchFile:
            break   # nobody will look for its bytes
        except SpeedwellError:
            pass
        if patience.is_over((attributes.file_id, attributes.epoch) != (before.file_id, before.epoch)):
            raise failure
        time.sleep(PAUSE_SECONDS)
    context.metadata.sync()


def _ask_primary(context: ClientContext, attributes: Attributes) -> None:
    """Raises StorageFailed, also if it does not answer."""
    primary, *others = attributes.replicas
    where = f"dataserver {primary.dataserver_id} did not force inode {attributes.inode} to the disks"
    token = context.tokens.of(attributes, WRITE)
    try:
        channel = context.connection_to(primary, 0)
    except ConnectionLost as error:
        raise StorageFailed(f"{where}: {error}") from None
    try:
        channel.set_timeout(ANSWER_SECONDS)
        channel.send(DataRequest(sync=SyncOperation(file_id=attributes.file_id, epoch=attributes.epoch,
                                                    length=attributes.size, others=others), token=token))
        reply = channel.expect(DataReply)
    except (ConnectionLost, MalformedFrame) as error:
        channel.close()
        context.note_failure(primary)
        raise StorageFailed(f"{where}: {error}") from None
    context.connections.give_back(primary.host, primary.port, channel)
    if reply.status == TOKEN_REFUSED:
        context.tokens.refused(attributes)
    if reply.status != OK:
        raise StorageFailed(f"{where}: {reply.message}")
