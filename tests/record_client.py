"""A client of its own process that appends records and reads the file, and writes down what it did and saw.

    python -m tests.record_client NAMESERVER PATH WRITER LOG [--lose 0.05] [--strong]

With `--lose` it throws away that part of the answers to its appends, as a network that breaks does.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any, TextIO

from speedwell.fs.client import Client
from speedwell.fs.errors import SpeedwellError
from speedwell.fs.proto.speedwell_pb2 import DataReply
from speedwell.fs.wire.channel import Channel, ConnectionLost
from tests.histories import digest, record

READ_EVERY = 5


def lose_answers(part: float, generator: random.Random) -> None:
    """Have this process lose answers of dataservers after it received them."""
    expect = Channel.expect

    def lossy(channel: Channel, kind: Any) -> Any:
        message = expect(channel, kind)
        if kind is DataReply and generator.random() < part:
            channel.close()
            raise ConnectionLost("the answer was lost")
        return message

    Channel.expect = lossy  # type: ignore[method-assign]


def note(log: TextIO, kind: str, **fields: Any) -> None:
    log.write(json.dumps({"kind": kind, **fields}) + "\n")
    log.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("nameserver")
    parser.add_argument("path")
    parser.add_argument("writer", type=int)
    parser.add_argument("log", type=Path)
    parser.add_argument("--lose", type=float, default=0.0)
    arguments = parser.parse_args()
    generator = random.Random(arguments.writer)
    if arguments.lose:
        lose_answers(arguments.lose, generator)
    with arguments.log.open("w") as log, Client(arguments.nameserver) as client:
        number = 0
        while True:
            number += 1
            note(log, "begin", writer=arguments.writer, number=number, begun=time.monotonic())
            try:
                offset = client.append(arguments.path, record(arguments.writer, number))
            except SpeedwellError:
                time.sleep(0.05)
            else:
                note(log, "acknowledged", writer=arguments.writer, number=number, time=time.monotonic(),
                     offset=offset)
            if number % READ_EVERY == 0:
                read(client, arguments.path, arguments.writer, log)


def read(client: Client, path: str, reader: int, log: TextIO) -> None:
    begun = time.monotonic()
    try:
        with client.open_read(path) as file:
            data = file.read(0, file.size)
    except SpeedwellError:
        return
    note(log, "read", reader=reader, begun=begun, ended=time.monotonic(), length=len(data), digest=digest(data))


if __name__ == "__main__":
    main()
