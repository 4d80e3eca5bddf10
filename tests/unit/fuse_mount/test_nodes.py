"""What the mount remembers of the inodes that the kernel has."""

from speedwell.fs.file_status import NS, STATUS
from speedwell.fuse_mount.nodes import Nodes

LISTED = STATUS.pack(7, 300, 1, 1, 2, 3, 10, 20, 30, 0o100644, 1, 0, 0, 0, 4096, 0)

def test_an_inode_is_known_until_the_kernel_has_forgotten_each_look_up() -> None:
    nodes = Nodes(kept_seconds=1.0)
    nodes.found(7, b"a")
    nodes.found(7, b"b")
    assert nodes.get(7).place == b"b"
    nodes.forget([(7, 1)])
    assert len(nodes) == 1
    nodes.forget([(7, 1), (8, 3)])
    assert len(nodes) == 0 and nodes.get(7).place is None


def test_what_is_noted_of_an_inode_goes_when_the_kernel_has_it_no_more() -> None:
    nodes = Nodes(kept_seconds=1.0)
    for inode in (7, 7, 8):
        nodes.found(inode, b"a")
        nodes.get(inode).sets_id = True
    nodes.forget([(7, 1), (8, 1)])
    assert (nodes.get(7).sets_id, nodes.get(8).sets_id) == (True, False)
    nodes.forget([(7, 1)])
    assert not nodes.get(7).sets_id


def test_what_a_listing_found_is_known_and_forgotten_like_what_was_looked_up() -> None:
    nodes = Nodes(kept_seconds=1.0)
    nodes.found_all(b"above/", [(7, b"a", LISTED), (8, b"b", LISTED), (9, b"c", LISTED)])
    assert (nodes.get(7).place, nodes.get(7).told) == (b"above/a", (300, 2 * NS + 20, 3 * NS + 30))
    nodes.get(7).sets_id = True
    nodes.found_all(b"above/", [(7, b"a", LISTED), (8, b"b", LISTED), (10, b"d", LISTED)])   # while two are known
    nodes.found(10, b"elsewhere")
    assert nodes.get(10).doubtful_until and not nodes.get(8).doubtful_until
    nodes.forget([(7, 1), (8, 1), (9, 1), (10, 1)])
    assert len(nodes) == 3 and nodes.get(7).sets_id
    nodes.forget([(7, 1), (8, 1), (10, 1)])
    assert len(nodes) == 0


def test_a_listing_with_two_names_of_one_file_counts_both() -> None:
    nodes = Nodes(kept_seconds=1.0)
    nodes.found_all(b"above/", [(7, b"a", LISTED), (7, b"b", LISTED)])
    nodes.forget([(7, 1)])
    assert (len(nodes), nodes.get(7).place) == (1, b"above/b")
    nodes.forget([(7, 1)])
    assert len(nodes) == 0


def test_pages_are_of_the_content_that_was_read_last_or_made_from_it_here() -> None:
    nodes = Nodes(kept_seconds=1.0)
    nodes.found(7, b"a")
    assert not nodes.reads(7, "first")
    assert nodes.reads(7, "first")
    nodes.published(7, "another", "second")
    assert nodes.get(7).pages == "first"
    nodes.published(7, "first", "second")
    assert nodes.reads(7, "second")
    nodes.forget([(7, 1)])     # the kernel drops the pages with the inode
    assert not nodes.reads(7, "second")
