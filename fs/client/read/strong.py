"""The length of a file that has every append acknowledged so far, from its primary (Mayflower, section 3.4).

Bytes before that length never change, and every replica of the set has them: they may come from any.
"""

import time

from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.patience import PAUSE_SECONDS, Patience
from speedwell.fs.errors import NoReplicaAvailable, NoSuchFile, ReadFailed, SpeedwellError, StaleFile
from speedwell.fs.proto.speedwell_pb2 import (
    NOT_FOUND,
    OK,
    TOKEN_REFUSED,
    Attributes,
    DataReply,
    DataRequest,
    LengthOperation,
    Replica,
)
from speedwell.fs.wire.channel import ConnectionLost, MalformedFrame

ANSWER_SECONDS = 5.0


def strong_length(context: ClientContext, attributes: Attributes) -> tuple[int, Attributes]:
    """The length in bytes (of a file that was removed: what it had last), and the attributes with the newest set of
    replicas.

    Raises ReadFailed when no primary answers, StaleFile when the file has another content.
    """
    patience = Patience()
    while True:
        try:
            return _ask(context, attributes), attributes
        except (ConnectionLost, MalformedFrame, _Refused) as error:
            failure = error
        try:
            newest = context.metadata.lookup_inode(attributes.inode, to_append=True)
        except NoSuchFile:
            return _length_of_removed(context, attributes), attributes
        except SpeedwellError:
            newest = attributes
        if newest.file_id != attributes.file_id:
            raise StaleFile(f"{attributes.file_id} is not the file's content any more: open it again")
        has_changed = newest.epoch > attributes.epoch
        if patience.is_over(has_changed):
            raise ReadFailed(f"no primary of {attributes.file_id} says how long it is: {failure}")
        if not has_changed:
            time.sleep(PAUSE_SECONDS)
        attributes = newest if newest.epoch >= attributes.epoch else attributes


class _Refused(Exception):
    """The primary answered, but not with a length."""


def _ask(context: ClientContext, attributes: Attributes) -> int:
    if not attributes.replicas:
        raise NoReplicaAvailable(f"{attributes.file_id} has no replica")
    primary, *others = attributes.replicas
    return _length_at(context, primary, attributes, LengthOperation(
        file_id=attributes.file_id, strong=True, epoch=attributes.epoch, others=others))


def _length_of_removed(context: ClientContext, attributes: Attributes) -> int:
    """No append to a removed file is acknowledged any more, and any replica has all that were. Raises ReadFailed."""
    reason: Exception | str = "it has none"
    for replica in attributes.replicas:
        try:
            return _length_at(context, replica, attributes, LengthOperation(file_id=attributes.file_id))
        except (ConnectionLost, MalformedFrame, _Refused) as error:
            reason = error
    raise ReadFailed(f"the file was removed, and no replica of {attributes.file_id} is left: {reason}")


def _length_at(context: ClientContext, replica: Replica, attributes: Attributes, operation: LengthOperation) -> int:
    token = context.tokens.of(attributes)
    channel = context.connection_to(replica)
    try:
        channel.set_timeout(ANSWER_SECONDS)
        channel.send(DataRequest(length=operation, token=token))
        reply = channel.expect(DataReply)
    except BaseException:
        channel.close()
        raise
    context.connections.give_back(replica.host, replica.port, channel)
    if reply.status == NOT_FOUND and not attributes.size:
        return 0  # nothing was ever appended
    if reply.status == TOKEN_REFUSED:
        context.tokens.refused(attributes)
    if reply.status != OK:
        raise _Refused(reply.message)
    return reply.file_size
