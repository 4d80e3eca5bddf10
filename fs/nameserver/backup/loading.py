"""From the records of a dump (`backup.dumping`) to what fills an empty store, with everything checked first.

Nothing is taken on trust that follows from the rest: link counts, directories above, the quota that each directory
counts toward and how much of it is used are worked out anew.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from speedwell.fs import paths, slots
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.limits import MAX_FILE_BYTES
from speedwell.fs.nameserver.backup.provenance import SKIPPED_INODES
from speedwell.fs.nameserver.namespace import acls
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace import MAX_LINKS
from speedwell.fs.nameserver.namespace.namespace_records import (
    DIRECTORY,
    REGULAR,
    ROOT_INODE,
    SPECIAL_KINDS,
    SYMBOLIC_LINK,
    Inode,
    Superblock,
)
from speedwell.fs.nameserver.replicas.replica_set import MAX_EPOCH
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Batch

MAX_INODE = 2**64 - 1
DEVICES = (pb.CHARACTER_DEVICE, pb.BLOCK_DEVICE)


@dataclass
class Dumped:
    """The records of a dump by kind, as they arrive."""

    inodes: dict[int, Inode] = field(default_factory=dict)
    entries: dict[int, dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))
    quotas: dict[int, pb.DirectoryQuota] = field(default_factory=dict)
    trash: dict[int, int] = field(default_factory=dict)
    dataservers: dict[int, pb.NumberedDataserver] = field(default_factory=dict)
    file_ids: set[bytes] = field(default_factory=set)

    def add(self, record: pb.NamespaceRecord) -> None:
        """Take one record, checked by itself. Raises InvalidArgument naming what is wrong with it."""
        kind = record.WhichOneof("record")
        if kind == "inode":
            self._add_inode(record.inode)
        elif kind == "entry":
            self._add_entry(record.entry)
        elif kind == "quota":
            requests.number(record.quota.max_bytes, "quota.max_bytes", requests.MAX_SIZE_BYTES)
            requests.number(record.quota.max_files, "quota.max_files", requests.MAX_FILES)
            _put_new(self.quotas, record.quota.directory, record.quota, "quota.directory")
        elif kind == "trash":
            keep_ns = requests.number(record.trash.keep_ns, "trash.keep_ns", requests.MAX_TIME_NS)
            _put_new(self.trash, record.trash.directory, keep_ns, "trash.directory")
        elif kind == "dataserver":
            self._add_dataserver(record.dataserver)
        else:
            raise InvalidArgument("record: it is of no kind that is known here")

    def _add_inode(self, given: pb.NumberedInode) -> None:
        number = requests.number(given.number, "inode.number", MAX_INODE, 1)
        where = f"inode {number}"
        record = given.inode
        if record.type not in (REGULAR, DIRECTORY, SYMBOLIC_LINK, *SPECIAL_KINDS):
            raise InvalidArgument(f"{where}: type: {record.type} is none")
        if record.HasField("content") != (record.type == REGULAR):
            raise InvalidArgument(f"{where}: content: a regular file has one, and nothing else")
        if record.type == SYMBOLIC_LINK:
            requests.link_target(record.target)
        elif record.target:
            raise InvalidArgument(f"{where}: target: it is no symbolic link")
        if record.device and record.type not in DEVICES:
            raise InvalidArgument(f"{where}: device: it is none")
        requests.number(record.mode, f"{where}: mode", requests.MAX_MODE)
        requests.owner(record.uid, f"{where}: uid")
        requests.owner(record.gid, f"{where}: gid")
        for attribute in record.extended_attributes:
            requests.attribute_name(attribute.name)
            requests.attribute_value(attribute.value)
            if attribute.name in acls.NAMES:
                acls.decode(attribute.value)
        if len({attribute.name for attribute in record.extended_attributes}) < len(record.extended_attributes):
            raise InvalidArgument(f"{where}: extended_attributes: a name is given twice")
        if record.HasField("content"):
            self._check_content(record.content, where)
        _put_new(self.inodes, number, Inode.decode(number, record.SerializeToString()), "inode.number")

    def _check_content(self, content: pb.ContentRecord, where: str) -> None:
        if len(content.file_id) != 16 or content.file_id in self.file_ids:
            raise InvalidArgument(f"{where}: content.file_id: it is not 16 bytes that no other file has")
        if content.origin and len(content.origin) != 16:
            raise InvalidArgument(f"{where}: content.origin: it has not 16 bytes")
        self.file_ids.add(content.file_id)
        requests.number(content.size, f"{where}: content.size", MAX_FILE_BYTES)
        requests.number(content.hole_bytes, f"{where}: content.hole_bytes", content.size)
        requests.number(content.chunk_size, f"{where}: content.chunk_size", requests.MAX_CHUNK_BYTES,
                        requests.MIN_CHUNK_BYTES)
        requests.number(content.replication, f"{where}: content.replication", requests.MAX_REPLICATION, 1)
        requests.number(content.epoch, f"{where}: content.epoch", MAX_EPOCH, 1)
        if len(set(content.replicas)) < len(content.replicas):
            raise InvalidArgument(f"{where}: content.replicas: a dataserver is named twice")

    def _add_entry(self, entry: pb.Entry) -> None:
        requests.name(entry.name, "entry.name")
        if entry.name in (b"", b".", b".."):
            raise InvalidArgument(f"entry.name: {paths.display(entry.name)!r} is no name")
        _put_new(self.entries[entry.directory], entry.name, entry.inode, "entry.name")

    def _add_dataserver(self, server: pb.NumberedDataserver) -> None:
        requests.dataserver_id(server.dataserver_id, "dataserver.dataserver_id")
        requests.text(server.host, "dataserver.host", required=True)
        requests.number(server.port, "dataserver.port", 65535, 1)
        requests.text(server.rack, "dataserver.rack")
        requests.text(server.pod, "dataserver.pod")
        if any(other.dataserver_id == server.dataserver_id for other in self.dataservers.values()):
            raise InvalidArgument(f"dataserver.dataserver_id: {server.dataserver_id} is given twice")
        _put_new(self.dataservers, server.number, server, "dataserver.number")


def fill(batch: Batch, dumped: Dumped, numbers: Mapping[str, int], next_inode: int) -> Superblock:
    """Put a whole namespace into `batch`; returns its counters. `numbers` has the number here of each dataserver by
    its id. Numbers of new inodes begin well above `next_inode`: some may have been given out since the dump was made.

    Raises InvalidArgument naming what does not go together.
    """
    _check_references(dumped)
    order = list(_walk(dumped))
    if len(order) < len(dumped.inodes):
        lost = min(dumped.inodes.keys() - set(order))
        raise InvalidArgument(f"inode {lost}: no name leads to it from the root")
    used = _set_quotas(dumped, order)
    for number in order:
        inode = dumped.inodes[number]
        if inode.content is not None:
            inode.content.replicas = tuple(
                numbers[_dataserver_of(dumped, inode, replica).dataserver_id] for replica in inode.content.replicas)
        batch.put(records.inode_key(number), inode.encode())
    for directory, names in dumped.entries.items():
        for name, number in names.items():
            batch.put(records.dentry_key(directory, name), records.encode_dentry(dumped.inodes[number].kind, number))
    where = _paths(dumped, [*dumped.quotas, *dumped.trash])
    for directory, record in used.items():
        record.path = where[directory]
        batch.put(records.quota_key(directory), record.SerializeToString())
    for directory, keep_ns in dumped.trash.items():
        batch.put(records.trash_policy_key(directory),
                  pb.TrashPolicy(path=where[directory], keep_ns=keep_ns).SerializeToString())
    if any(name in inode.extended_attributes for inode in dumped.inodes.values() for name in acls.NAMES):
        batch.put(records.ACLS_KEY, b"")
    directories = sum(inode.is_directory for inode in dumped.inodes.values())
    used_up = {0: next_inode}
    for number in dumped.inodes:
        block, local = slots.block_of(number), number & slots.LOCAL_MASK
        if local < slots.HASHED:
            used_up[block] = max(used_up.get(block, 0), local)
    superblock = Superblock(used_up.pop(0) + SKIPPED_INODES, len(dumped.inodes) - directories, directories)
    others = [Superblock(last + SKIPPED_INODES, 0, 0, block) for block, last in used_up.items()]
    for counters in (superblock, *others):
        batch.put(records.superblock_key(counters.block), counters.encode())
    return superblock


def _check_references(dumped: Dumped) -> None:
    inodes = dumped.inodes
    if ROOT_INODE not in inodes or not inodes[ROOT_INODE].is_directory:
        raise InvalidArgument("inode 1: the root directory is missing")
    for what, numbers in (("entry.directory", dumped.entries), ("quota.directory", dumped.quotas),
                          ("trash.directory", dumped.trash)):
        for number in numbers:
            if number not in inodes or not inodes[number].is_directory:
                raise InvalidArgument(f"{what}: inode {number} is no directory")
    for names in dumped.entries.values():
        for name, number in names.items():
            if number not in inodes or number == ROOT_INODE:
                raise InvalidArgument(f"entry.inode: {paths.display(name)} leads to inode {number}, which is none "
                                      "that may have a name")


def _walk(dumped: Dumped) -> Iterator[int]:
    """All inodes from the root down, a directory before what it holds, with link counts and directories above put
    right. Raises InvalidArgument for a directory with two names and for too many links."""
    names: dict[int, list[int]] = defaultdict(list)
    for directory, entries in dumped.entries.items():
        for name, number in entries.items():
            names[number].append(directory)
            dumped.inodes[number].name = name if dumped.inodes[number].is_directory else b""
    for number, above in names.items():
        inode = dumped.inodes[number]
        if len(above) > (1 if inode.is_directory else MAX_LINKS):
            raise InvalidArgument(f"inode {number}: it has {len(above)} names")
        inode.parent = inode.parent if inode.parent in above else above[-1]
        inode.link_count = len(above)
    seen, waiting = {ROOT_INODE}, [ROOT_INODE]
    dumped.inodes[ROOT_INODE].parent = ROOT_INODE
    while waiting:
        number = waiting.pop()
        yield number
        inode = dumped.inodes[number]
        below = [other for other in dumped.entries.get(number, {}).values() if other not in seen]
        if inode.is_directory:
            inode.link_count = 2 + sum(dumped.inodes[other].is_directory
                                       for other in dumped.entries.get(number, {}).values())
        seen.update(below)
        waiting += dict.fromkeys(below)


def _set_quotas(dumped: Dumped, order: Iterable[int]) -> dict[int, pb.QuotaRecord]:
    """Have each directory count toward the innermost quota around it, and a file toward the one that it names, or
    that of the directory above it; returns the quotas with what is used of them."""
    found: dict[int, pb.QuotaRecord] = {}
    # a file may have been reached by another name than that in the directory above it
    for number in sorted(order, key=lambda number: not dumped.inodes[number].is_directory):
        inode = dumped.inodes[number]
        above = dumped.inodes[inode.parent].quota if number != ROOT_INODE else 0
        if inode.is_directory or inode.quota not in dumped.quotas:
            inode.quota = above
        if number in dumped.quotas:
            limits = dumped.quotas[number]
            found[number] = pb.QuotaRecord(above=above)
            for limit in ("max_bytes", "max_files"):
                if limits.HasField(limit):
                    setattr(found[number], limit, getattr(limits, limit))
            inode.quota = number
        counts = inode.quota
        while counts:
            found[counts].used_bytes += inode.size_bytes
            found[counts].used_files += 1
            counts = found[counts].above
    return found


def _paths(dumped: Dumped, directories: Iterable[int]) -> dict[int, bytes]:
    wanted = set(directories)
    places = {number: (directory, name) for directory, names in dumped.entries.items() if wanted
              for name, number in names.items() if dumped.inodes[number].is_directory}
    found = {}
    for directory in wanted:
        way: list[bytes] = []
        above = directory
        while above != ROOT_INODE:
            above, name = places[above]
            way.append(name)
        found[directory] = b"/" + b"/".join(reversed(way))
    return found


def _dataserver_of(dumped: Dumped, inode: Inode, number: int) -> pb.NumberedDataserver:
    if number not in dumped.dataservers:
        raise InvalidArgument(f"inode {inode.number}: content.replicas: there is no dataserver {number}")
    return dumped.dataservers[number]


def _put_new(known: dict, key: object, value: object, what: str) -> None:  # type: ignore[type-arg]
    if key in known:
        shown = paths.display(key) if isinstance(key, bytes) else key
        raise InvalidArgument(f"{what}: {shown} is given twice")
    known[key] = value
