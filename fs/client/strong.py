"""The length of a file that has every append acknowledged so far, from its primary (Mayflower, section 3.4).

Bytes before that length never change, and every replica of the set has them: they may come from any.
"""

import time

from fs.channel import ConnectionLost, MalformedFrame
from fs.client.append_request import PATIENCE_SECONDS, PAUSE_SECONDS
from fs.client.context import ClientContext
from fs.errors import NoReplicaAvailable, ReadFailed, SpeedwellError, StaleFile
from fs.proto.speedwell_pb2 import NOT_FOUND, OK, Attributes, DataReply, DataRequest, LengthOperation

ANSWER_SECONDS = 5.0


def strong_length(context: ClientContext, attributes: Attributes) -> tuple[int, Attributes]:
    """The length in bytes, and the attributes with the newest set of replicas.

    Raises ReadFailed when no primary answers, StaleFile when the file has another content.
    """
    deadline = 0.0
    while True:
        try:
            return _ask(context, attributes), attributes
        except (ConnectionLost, MalformedFrame, _Refused) as error:
            deadline = deadline or time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() > deadline:
                raise ReadFailed(f"no primary of {attributes.file_id} says how long it is: {error}") from None
        try:
            newest = context.metadata.lookup_inode(attributes.inode, to_append=True)
        except SpeedwellError:
            newest = attributes
        if newest.file_id != attributes.file_id:
            raise StaleFile(f"{attributes.file_id} is not the file's content any more: open it again")
        if newest.epoch <= attributes.epoch:
            time.sleep(PAUSE_SECONDS)
        attributes = newest if newest.epoch >= attributes.epoch else attributes


class _Refused(Exception):
    """The primary answered, but not with a length."""


def _ask(context: ClientContext, attributes: Attributes) -> int:
    if not attributes.replicas:
        raise NoReplicaAvailable(f"{attributes.file_id} has no replica")
    primary, *others = attributes.replicas
    channel = context.connection_to(primary)
    try:
        channel.set_timeout(ANSWER_SECONDS)
        channel.send(DataRequest(length=LengthOperation(
            file_id=attributes.file_id, strong=True, epoch=attributes.epoch, others=others)))
        reply = channel.expect(DataReply)
    except BaseException:
        channel.close()
        raise
    context.connections.give_back(primary.host, primary.port, channel)
    if reply.status == NOT_FOUND and not attributes.size:
        return 0  # nothing was ever appended
    if reply.status != OK:
        raise _Refused(reply.message)
    return reply.file_size
