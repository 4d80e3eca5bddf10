"""The word of a primary, for tests that speak to one replica by hand."""

from speedwell.fs.checksums import BLOCK_BYTES, block_sum, digest, pack
from speedwell.fs.proto.speedwell_pb2 import (
    OK,
    AppendOperation,
    AppendRecord,
    Attributes,
    CommitAppend,
    DataReply,
    DataRequest,
    ReadOperation,
    Replica,
)
from speedwell.fs.wire.channel import connect


def commit_of(host: str, port: int, file_id: str, offset: int, data: bytes, token: bytes = b"") -> CommitAppend:
    """The commit of an append of `data` at `offset`, with the digest that a replica expects that holds what this
    one does."""
    start = offset - offset % BLOCK_BYTES
    content = bytearray()
    if offset > start:
        channel = connect(host, port)
        channel.send(DataRequest(read=ReadOperation(file_id=file_id, offset=start, length=offset - start),
                                 token=token))
        content = bytearray(channel.expect(DataReply).length)
        channel.receive_all(memoryview(content))
        channel.close()
    content += data
    blocks = [content[at:at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES)]
    return CommitAppend(commit=True, digest=digest(pack([block_sum(block) for block in blocks])))


def commit_on(replica: Replica, attributes: Attributes, data: bytes, offset: int, *, epoch: int | None = None,
              sequence: int = 0) -> DataReply:
    """What a primary makes one replica do, without the others: as if it died in the middle of the commits.
    `attributes` have a token for servers."""
    records = [AppendRecord(writer=77, sequence=sequence, offset=offset, length=len(data))] if sequence else []
    channel = connect(replica.host, replica.port)
    channel.send(DataRequest(append=AppendOperation(
        file_id=attributes.file_id, inode=attributes.inode, path=b"/by-hand", chunk_size=attributes.chunk_size,
        length=len(data), epoch=epoch or attributes.epoch, offset=offset, records=records), token=attributes.token))
    channel.send_bytes([data])
    reply = channel.expect(DataReply)
    if reply.status == OK:
        channel.send(commit_of(replica.host, replica.port, attributes.file_id, offset, data, attributes.token))
        reply = channel.expect(DataReply)
    channel.close()
    return reply
