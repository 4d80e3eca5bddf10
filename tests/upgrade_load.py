"""Appends to a file of its own and to a shared one, makes, changes and renames others, and reads all of them back,
until standard input ends.

    python tests/upgrade_load.py MODULE NAMESERVER NAME

MODULE is `fs.client`, of this version or of the one before. Prints the offset in /shared of each record; ends
with a traceback at the first error.
"""

import importlib
import importlib.util
import select
import sys
from typing import Any

RECORD_BYTES, OTHER_BYTES, CHANGED_AT = 20_000, 200_000, 70_000


def record(name: str, number: int) -> bytes:
    """The same for the one who checks it afterwards."""
    return f"{name} {number} ".encode().ljust(RECORD_BYTES, b".")


def changed(data: bytes) -> bytes:
    """What NAME-changed holds after a record."""
    return bytes(CHANGED_AT) + data + bytes(OTHER_BYTES - CHANGED_AT - len(data))


def read(client: Any, path: str, offset: int, size: int) -> bytes:
    with client.open_read(path) as reader:
        return bytes(reader.read(offset, size))


def main(module: str, nameserver: str, name: str) -> None:
    place = "change.version" if importlib.util.find_spec(f"{module}.change") else "version"     # of a version before
    changes = importlib.import_module(f"{module}.{place}").Changes
    with importlib.import_module(module).Client(nameserver) as client:
        client.create("/shared")
        client.create(f"/{name}")
        number = 0
        while not select.select([sys.stdin], [], [], 0.05)[0]:
            data = record(name, number)
            client.append(f"/{name}", data)
            offset = client.append("/shared", data)
            number += 1
            assert read(client, f"/{name}", 0, (number + 1) * RECORD_BYTES)[-RECORD_BYTES:] == data, "its own file"
            assert read(client, "/shared", offset, RECORD_BYTES) == data, "the shared file"
            client.create(f"/{name}-new")
            client.append(f"/{name}-new", bytes(OTHER_BYTES))
            client.sync(client.change(f"/{name}-new", changes([(CHANGED_AT, CHANGED_AT + RECORD_BYTES)],
                                                              lambda channel, data=data: channel.send_bytes([data]))))
            client.rename(f"/{name}-new", f"/{name}-changed")
            assert read(client, f"/{name}-changed", 0, OTHER_BYTES) == changed(data), "the changed file"
            print(offset, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
