"""A namespace as a sequence of records that another one can be filled with (`fs.nameserver.backup.loading`).

Names, attributes, links, what files hold and on which dataservers, limits of quotas, and for how long what is removed
is kept. Not what passes: locks, sessions, files that are open without a name, the trash, contents that wait for their
deletion, answers to changes. A quota's counters are not in it either: they follow from the rest. Toward which quota a
file counts does not, where it has names under several: it is said of what is no directory.
"""

import json
from collections.abc import Iterator, Mapping

from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import DIRECTORY, Superblock
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Store, end_of_prefix


def next_inode(store: Store) -> int:
    """All inode numbers given out so far are below. Raises StorageFailed."""
    return Superblock.decode(store.get(records.SUPERBLOCK_KEY) or b"").next_inode


def dump(store: Store) -> Iterator[pb.NamespaceRecord]:
    """The records of the namespace in `store` as it is now: what is written later is not in it. Nothing may be
    written during the call itself. Raises StorageFailed."""
    nameless = {records.orphan_inode(key) for key, _ in _below(store, records.ORPHAN_PREFIX)}
    nameless |= {records.trash_place(key)[1] for key, _ in _below(store, records.TRASH_PREFIX)}
    quotas = {records.quota_directory(key): pb.QuotaRecord.FromString(value)
              for key, value in _below(store, records.QUOTA_PREFIX)}
    return _records(iter(store.iterate(b"")), nameless, quotas)


def _below(store: Store, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    return store.iterate(prefix, end_of_prefix(prefix))


def _records(pairs: Iterator[tuple[bytes, bytes]], nameless: set[int],
             quotas: Mapping[int, pb.QuotaRecord]) -> Iterator[pb.NamespaceRecord]:
    # Policies may be left of directories that are gone, and records of dataservers; their keys come later.
    directories, holders = set(), set[int]()
    for key, value in pairs:
        record = _record(key, value, quotas)
        kind = record.WhichOneof("record") if record is not None else None
        if record is None or (kind == "inode" and record.inode.number in nameless):
            continue
        if kind == "inode" and record.inode.inode.type == DIRECTORY:
            directories.add(record.inode.number)
        elif kind == "inode":
            holders.update(record.inode.inode.content.replicas)
        is_left_over = (kind == "quota" and record.quota.directory not in directories,
                        kind == "trash" and record.trash.directory not in directories,
                        kind == "dataserver" and json.loads(value).get("removed")
                        and record.dataserver.number not in holders)
        if not any(is_left_over):
            yield record


def _record(key: bytes, value: bytes, quotas: Mapping[int, pb.QuotaRecord]) -> pb.NamespaceRecord | None:
    prefix = key[:1]
    if prefix == records.INODE_PREFIX:
        inode = pb.InodeRecord.FromString(value)
        inode.quota = 0 if inode.type == DIRECTORY else _limited(inode.quota, quotas)
        return pb.NamespaceRecord(inode=pb.NumberedInode(number=records.inode_number(key), inode=inode))
    if prefix == records.DENTRY_PREFIX:
        return pb.NamespaceRecord(entry=pb.Entry(directory=records.dentry_directory(key),
                                                 name=records.dentry_name(key),
                                                 inode=records.decode_dentry(value)[1]))
    if prefix == records.QUOTA_PREFIX:
        return _quota(records.quota_directory(key), pb.QuotaRecord.FromString(value))
    if prefix == records.TRASH_POLICY_PREFIX:
        return pb.NamespaceRecord(trash=pb.DirectoryTrash(directory=records.trash_policy_directory(key),
                                                          keep_ns=pb.TrashPolicy.FromString(value).keep_ns))
    if prefix == records.DATASERVER_PREFIX:
        server = json.loads(value)
        return pb.NamespaceRecord(dataserver=pb.NumberedDataserver(
            **{name: server[name] for name in ("number", "dataserver_id", "host", "port", "rack", "pod")}))
    return None


def _limits(record: pb.QuotaRecord) -> dict[str, int]:
    return {name: getattr(record, name) for name in ("max_bytes", "max_files") if record.HasField(name)}


def _limited(quota: int, quotas: Mapping[int, pb.QuotaRecord]) -> int:
    """The innermost one with limits of those that count together with `quota`; 0: none."""
    while (record := quotas.get(quota)) and not _limits(record):
        quota = record.above
    return quota if record else 0


def _quota(directory: int, record: pb.QuotaRecord) -> pb.NamespaceRecord | None:
    """One without limits only counts."""
    limits = _limits(record)
    return pb.NamespaceRecord(quota=pb.DirectoryQuota(directory=directory, **limits)) if limits else None
