"""`/metrics` of the servers, in Prometheus' terms."""

from collections.abc import Iterable

import click
from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, start_http_server
from prometheus_client.registry import Collector

from fs.addresses import parse_address
from fs.errors import InvalidArgument, reason

# A second series for each counter, saying when it was created: of no use here and half of the page.
disable_created_metrics()  # type: ignore[no-untyped-call]

OPTION = click.option("--metrics", metavar="HOST:PORT", help="Answer Prometheus at http://HOST:PORT/metrics.")


def serve(address: str, collectors: Iterable[Collector]) -> int:
    """Answer at http://HOST:PORT/metrics, on threads of its own, until the process ends; returns the port.

    Raises InvalidArgument if the address is malformed or cannot be had.
    """
    host, port = parse_address(address, "--metrics", lowest_port=0)
    registry = CollectorRegistry()
    for collector in (ProcessCollector(registry=None), *collectors):
        registry.register(collector)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise InvalidArgument(f"--metrics: cannot listen on {address}: {reason(error)}") from None
    return int(server.server_port)
