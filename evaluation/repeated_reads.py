"""Reads files again and again, all at once, until its standard input ends:
`python -m speedwell.evaluation.repeated_reads --help`.

Prints `{"bytes": N}` a line, what has arrived so far. Run it inside an emulated host.
"""

import json
import sys
import threading
import time

import click

from speedwell.fs.client import Client
from speedwell.fs.errors import SpeedwellError

PIECE_BYTES = 64 << 10
REPORT_SECONDS = 0.05


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--nameserver", required=True)
@click.option("--controller", required=True)
@click.option("--local-host", required=True)
@click.option("--parts", required=True, type=int, help="The most replicas to read a file from at once.")
def main(paths: tuple[str, ...], nameserver: str, controller: str, local_host: str, parts: int) -> None:
    """Read each of PATHS again when it and all others have been read."""
    arrived = [0] * len(paths)
    ended = threading.Event()
    failures: list[SpeedwellError] = []
    together = threading.Barrier(len(paths))

    def read(client: Client, number: int) -> None:
        try:
            while not ended.is_set():
                together.wait()
                with client.open_read(paths[number]) as reader:
                    position = 0
                    while position < reader.size and not ended.is_set():
                        got = len(reader.read(position, min(PIECE_BYTES, reader.size - position)))
                        position += got
                        arrived[number] += got
        except threading.BrokenBarrierError:
            pass
        except SpeedwellError as error:
            failures.append(error)
            ended.set()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    with Client(nameserver, controller=controller, local_host=local_host, controller_timeout_seconds=2.0,
                most_parts=parts) as client:
        threads = [threading.Thread(target=read, args=(client, number)) for number in range(len(paths))]
        for thread in threads:
            thread.start()
        while not ended.is_set():
            click.echo(json.dumps({"bytes": sum(arrived)}))
            time.sleep(REPORT_SECONDS)
        together.abort()
        for thread in threads:
            thread.join()
    if failures:
        raise click.ClickException(str(failures[0]))


if __name__ == "__main__":
    main()
