"""Reads one file through the client library and reports how: `python -m speedwell.evaluation.timed_read --help`.

Prints a JSON object a line: `{"bytes": N}` as it goes on, last the result. Run it inside an emulated host.
"""

import json
import time
from pathlib import Path

import click

from speedwell.fs.client import Client
from speedwell.fs.client.context import DEFAULT_PARTS
from speedwell.fs.errors import SpeedwellError

PIECE_BYTES = 1 << 20
REPORT_SECONDS = 0.2


@click.command()
@click.argument("path")
@click.option("--nameserver", required=True)
@click.option("--controller", required=True)
@click.option("--local-host", required=True)
@click.option("--replica-policy", required=True)
@click.option("--path-policy", required=True)
@click.option("--parts", default=DEFAULT_PARTS, show_default=True, help="The most replicas to read from at once.")
@click.option("--copy-to", type=click.Path(path_type=Path), help="Copy it to this file instead.")
def main(path: str, nameserver: str, controller: str, local_host: str, replica_policy: str, path_policy: str,
         parts: int, copy_to: Path | None) -> None:
    """Read PATH once, in order, steered by the named policies."""
    client = Client(nameserver, controller=controller, local_host=local_host, replica_policy=replica_policy,
                    path_policy=path_policy, controller_timeout_seconds=2.0, most_parts=parts)
    try:
        click.echo(json.dumps(_copy(client, path, copy_to) if copy_to else _read(client, path)))
    except SpeedwellError as error:
        raise click.ClickException(str(error)) from error
    finally:
        client.close()


def _read(client: Client, path: str) -> dict[str, object]:
    begin = time.monotonic()
    reader = client.open_read(path)
    try:
        position, reported = 0, begin
        while position < reader.size:
            data = reader.read(position, min(PIECE_BYTES, reader.size - position))
            if not data:
                break
            position += len(data)
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                click.echo(json.dumps({"bytes": position}))
        seconds = time.monotonic() - begin
        steered, sources = reader.last_read, reader.last_sources
    finally:
        reader.close()
    return {"bytes": position, "seconds": seconds, "parts": len(sources),
            "replica_failures": client.metrics.replica_failures,
            "replica": " and ".join(source.replica_id for source in sources) or None,
            "chosen_by": steered.chosen_by if steered else None,
            "sources": [{"replica": source.replica_id, "bytes": source.size_bytes, "path": list(source.path)}
                        for source in sources]}


def _copy(client: Client, path: str, destination: Path) -> dict[str, object]:
    begin = time.monotonic()
    with destination.open("wb") as output:
        size_bytes = client.fetch(path, output.fileno())
    return {"bytes": size_bytes, "seconds": time.monotonic() - begin, "parts": 1 + int(client.metrics.split_reads)}


if __name__ == "__main__":
    main()
