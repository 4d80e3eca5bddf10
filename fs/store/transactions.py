"""Parts of etcd's transactions."""

from speedwell.fs.proto import etcd_pb2 as pb


def operation(key: bytes, value: bytes | None) -> pb.RequestOp:
    """Put a key, or delete it."""
    if value is None:
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))


def leased(key: bytes, value: bytes, lease: int) -> pb.RequestOp:
    """Put a key that goes with its lease."""
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def fetch(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def unchanged(key: bytes, revision: int) -> pb.Compare:
    """Whether a key is as that revision left it; 0: not there."""
    return pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=revision)


def absent(key: bytes, end: bytes = b"") -> pb.Compare:
    """Whether there is no such key, or none from there to before `end`."""
    return pb.Compare(target=pb.Compare.CREATE, key=key, range_end=end, create_revision=0)


def present(key: bytes) -> pb.Compare:
    return pb.Compare(target=pb.Compare.CREATE, result=pb.Compare.GREATER, key=key, create_revision=0)
