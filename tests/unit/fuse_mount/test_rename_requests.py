"""Finding libfuse's table of functions among the words of its session."""

import threading

from fuse_mount.rename_requests import FUNCTIONS, RenameRequests, table_at

CODE = range(0x7000, 0x8000)
TABLE = [*range(0x7100, 0x7100 + 16 * FUNCTIONS, 16), 0, 0x7700]


def test_the_table_is_found_behind_other_fields() -> None:
    assert table_at([0x5550, 1, 0x7010, 0, *TABLE], CODE) == 4


def test_what_does_not_look_like_the_table_is_not_taken_for_it() -> None:
    assert table_at([0x5550, 0, *TABLE[1:]], CODE) is None      # a function is missing
    assert table_at([0x5550, 0, *TABLE], range(0x7000, 0x7110)) is None    # some lead elsewhere
    assert table_at([0x5550, 0, *(TABLE[:FUNCTIONS]), 0x7200], CODE) is None  # there is one too many
    assert table_at([], CODE) is None


def test_each_thread_has_its_own_rename() -> None:
    requests = RenameRequests()
    requests.here.new_name = b"new"
    seen = []
    thread = threading.Thread(target=lambda: seen.append(requests.here.new_name))
    thread.start()
    thread.join()
    assert (requests.here.new_name, seen) == (b"new", [None])
