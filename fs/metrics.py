"""`/metrics` of all processes but the controller, in Prometheus' terms."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import click

from speedwell.fs.addresses import parse_address
from speedwell.fs.errors import InvalidArgument, reason

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

OPTION = click.option("--metrics", metavar="HOST:PORT", help="Answer Prometheus at http://HOST:PORT/metrics; "
                      "with an identity and beyond loopback at https://, for readers and operators.")


def check(address: str | None) -> None:
    """Refuse what cannot be, before anything is made. Raises InvalidArgument for an address that is malformed,
    ModuleNotFoundError where the library is missing."""
    if address:
        parse_address(address, "--metrics", lowest_port=0)
        importlib.import_module("prometheus_client")


def serve(address: str, collectors: Iterable[Collector], identity: Path | None = None) -> str:
    """Answer at http://HOST:PORT/metrics, on threads of its own, until the process ends; returns this URL. Who has an
    `identity` answers beyond loopback over TLS, and only readers and operators of its installation: https://.

    Raises InvalidArgument if the address is malformed or cannot be had, IdentityError.
    """
    # takes 10 MiB, which who is not to answer does without
    from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, start_http_server

    host, port = parse_address(address, "--metrics", lowest_port=0)
    # A second series for each counter, saying when it was created: of no use here and half of the page.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    for collector in (ProcessCollector(registry=None), *collectors):
        registry.register(collector)
    is_secured = identity is not None and not is_loopback(address)
    try:
        if identity is None or not is_secured:
            bound = start_http_server(port, host, registry)[0].server_port
        else:
            from speedwell.fs.secured_metrics import SecuredMetrics

            bound = SecuredMetrics(host, port, registry, identity).server_port
    except OSError as error:
        raise InvalidArgument(f"--metrics: cannot listen on {address}: {reason(error)}") from None
    return f"{'https' if is_secured else 'http'}://{address.rpartition(':')[0]}:{bound}/metrics"


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches HOST:PORT, which then needs no certificate for metrics."""
    host = parse_address(address, "--metrics", lowest_port=0)[0]
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"
