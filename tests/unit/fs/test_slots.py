"""Slots in inode numbers: what one block has is one range of each kind of record, and no number is given twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs import paths, slots
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.namespace.namespace_records import Content, Superblock
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import MemoryStore

numbers = st.integers(1, 2**64 - 1)
NOBODY = {"uid": 0, "gid": 0, "now_ns": 1}


def content() -> Content:
    return Content(bytes(16), 1, 1, (0,))


def namespace(store: MemoryStore, *, hashes: bool = True) -> Namespace:
    return Namespace(store, now_ns=0, deletion_grace_ns=0, hashes=hashes)


@given(numbers, numbers, st.binary(min_size=1, max_size=20))
def test_the_records_of_a_block_are_one_range_of_each_kind(one: int, other: int, name: bytes) -> None:
    for key_of in (records.inode_key, records.quota_key, records.locks_key, records.outcome_key,
                   lambda number: records.dentry_key(number, name)):
        kind = key_of(0)[:1]
        key, low = key_of(one), kind + bytes([slots.block_of(other)])
        high = kind + bytes([slots.block_of(other) + 1]) if slots.block_of(other) < 255 else bytes([kind[0] + 1])
        assert (low <= key < high) == (slots.block_of(one) == slots.block_of(other))


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60))
def test_files_lie_with_their_directories_and_numbers_are_given_once(made: list[tuple[int, bool]]) -> None:
    names = namespace(MemoryStore())
    directories, seen = [1], {1}
    for position, (where, is_directory) in enumerate(made):
        parent = directories[where % len(directories)]
        path = paths.below(parent, b"n%d" % position)
        if is_directory:
            number = names.make_directory(path, mode=0o755, **NOBODY).number
            directories.append(number)
        else:
            number = names.create(path, mode=0o644, exclusive=True, new_content=content, **NOBODY)[0].number
            assert slots.slot_of(number) == slots.slot_of(parent)
            assert names.superblocks.was_given(number) and not names.superblocks.was_given(number + 1000)
        assert number not in seen
        seen.add(number)
    superblocks = names.superblocks
    assert (superblocks.file_count, superblocks.directory_count) == (len(seen) - len(directories), len(directories))
    for number in directories[1:]:
        entries = names.tree.names(paths.of_inode(number), b"", 100)[1]
        for name in [name for name, kind, _ in entries if kind == pb.REGULAR]:
            names.remove_file(paths.below(number, name), now_ns=1)
    for number in reversed(directories[1:]):
        if not names.tree.names(paths.of_inode(number), b"", 1)[1]:
            inode = names.tree.inode(number)
            names.remove_directory(paths.below(inode.parent, inode.name), now_ns=1)
    assert superblocks.directory_count == 1


def test_new_directories_spread_over_the_blocks() -> None:
    blocks = [slots.block_of(slots.hashed(1, b"d%d" % number, number)) for number in range(4096)]
    assert len(set(blocks)) == slots.BLOCKS
    assert max(map(blocks.count, set(blocks))) < 40     # 16 each


def test_a_namespace_from_before_slots_opens_and_lies_in_slot_0() -> None:
    store = MemoryStore()
    old = namespace(store, hashes=False)
    kept = old.make_directory(b"/d", mode=0o755, **NOBODY)
    assert (kept.number, records.SUPERBLOCK_KEY) == (2, records.superblock_key(0))
    new = namespace(store)
    assert new.tree.lookup(b"/d") == kept
    file, _ = new.create(b"/d/f", mode=0o644, exclusive=True, new_content=content, **NOBODY)
    assert file.number == 3
    assert Superblock.decode(store.get(records.SUPERBLOCK_KEY) or b"") == Superblock(4, 1, 2)


@pytest.mark.parametrize(("request_", "block"), [
    (pb.LookupRequest(inode=5 << 56), 5),
    (pb.LookupRequest(path=paths.below(7 << 56 | 3, b"x")), 7),
    (pb.ListRequest(path=paths.of_inode(255 << 56)), 255),
    (pb.CreateRequest(path=b"/a/b"), 0),
    (pb.RenameRequest(source=paths.below(1 << 56, b"a"), destination=paths.below(2 << 56, b"b")), 1),
    (pb.LinkRequest(source=paths.of_inode(1 << 56), destination=paths.below(2 << 56, b"b")), 2),
    (pb.RemoveRequest(path=paths.below(3 << 56, b"a"), session=9), 0),
    (pb.SetAttributesRequest(path=paths.of_inode(3 << 56), mode=0o4755), 0),
    (pb.SetAttributesRequest(path=paths.of_inode(3 << 56), mode=0o755), 3),
    (pb.CommitRequest(inode=4 << 56), 4),
    (pb.ChangeReplicasRequest(inode=4 << 56), 0),
    (pb.StatisticsRequest(), 0),
    (pb.LookupRequest(path=b"/\x00nonsense"), 0),
    (pb.LookupRequest(path=b"/\x00" + b"9" * 20), 0),
])
def test_a_request_goes_to_the_owner_of_its_directory(request_: object, block: int) -> None:
    assert slots.block_of_request(request_) == block    # type: ignore[arg-type]
