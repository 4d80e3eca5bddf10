"""How `speedwell trash list` shows what was removed."""

from speedwell.cluster.commands.trash import _trees
from speedwell.fs.proto.speedwell_pb2 import Attributes, TrashEntry


def entry(path: bytes, removed_ns: int, size: int = 0, kept_until_ns: int = 100) -> TrashEntry:
    return TrashEntry(path=path, removed_ns=removed_ns, kept_until_ns=kept_until_ns, attributes=Attributes(size=size))


def test_a_removed_tree_is_one_row_that_goes_with_its_first_part() -> None:
    trees = _trees([entry(b"/a/b/c", 1, 10, 101), entry(b"/a/b", 2, 0, 102), entry(b"/a", 3, 0, 103),
                    entry(b"/d", 1, 5, 50)])
    assert [(tree.top.path, tree.inside, tree.size_bytes, tree.kept_until_ns) for tree in trees] == [
        (b"/d", 0, 5, 50), (b"/a", 2, 10, 101)]


def test_what_was_removed_below_a_directory_that_is_there_is_a_row_of_its_own() -> None:
    assert [tree.top.path for tree in _trees([entry(b"/a/x", 1), entry(b"/a/y", 2)])] == [b"/a/x", b"/a/y"]


def test_a_name_that_was_removed_twice_holds_what_was_removed_before_each_time() -> None:
    trees = _trees([entry(b"/a/x", 1), entry(b"/a", 2), entry(b"/a/y", 3), entry(b"/a", 4)])
    assert sorted((tree.top.removed_ns, tree.inside) for tree in trees) == [(2, 1), (4, 1)]
