"""What is known of an open file without asking anybody."""

import threading
from typing import Any

from speedwell.fs.client.change.open_file import OpenFile
from speedwell.fs.proto.speedwell_pb2 import Attributes


def test_who_looks_at_a_file_does_not_wait_for_what_is_being_published() -> None:
    nobody: Any = None
    file = OpenFile(nobody, Attributes(inode=7, size=1 << 20, hole_bytes=1 << 19))
    told: list[int] = []
    looks = threading.Thread(target=lambda: told.append(file.hole_bytes), daemon=True)
    with file.lock:     # as a flush holds it until the servers have answered
        looks.start()
        looks.join(30)
        assert told == [1 << 19]
