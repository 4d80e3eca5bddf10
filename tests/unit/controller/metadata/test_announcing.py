"""What an announcement changes, and what one that is refused leaves."""

import time
from ipaddress import IPv4Network
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from speedwell.controller.errors import UnknownHost
from speedwell.controller.metadata.app import Metadata
from speedwell.controller.metadata.book import MetadataBook, MetadataServerRefused, Server
from speedwell.controller.metadata.metrics import MetadataMetrics
from speedwell.controller.policy.metadata.blocks import SPACE


class Hosts:
    """Locates those that it knows."""

    def __init__(self, known: set[str]) -> None:
        self.known = known

    def locate(self, ip: str) -> None:
        if ip not in self.known:
            raise UnknownHost(ip)


def metadata(*hosts: str) -> Metadata:
    app = object.__new__(Metadata)
    app._state = SimpleNamespace(hosts=dict.fromkeys(hosts), reserved=set())    # type: ignore[assignment]
    app._hosts = Hosts(set(hosts))    # type: ignore[assignment]
    app._metrics = MetadataMetrics(CollectorRegistry())
    app.book = MetadataBook(lambda names: {}, lambda blocks: None, time.monotonic())
    return app


def said(host: str, port: int = 9000) -> Server:
    return Server(host, port, f"process at {host}", time.monotonic())


def test_the_keys_addresses_are_no_hosts_once_a_server_is_there():
    app = metadata("10.0.0.1")
    app.announce(said("10.0.0.1"))
    assert app._state.reserved == {IPv4Network(SPACE)}


def test_a_refused_announcement_reserves_no_address():
    app = metadata("10.0.0.1", "10.0.0.2")
    with pytest.raises(UnknownHost):
        app.announce(said("10.0.0.9"))
    assert app._state.reserved == set()
    app.book.servers["10.0.0.1"] = said("10.0.0.1")
    with pytest.raises(MetadataServerRefused, match="is not 9000"):
        app.announce(said("10.0.0.2", port=9001))
    assert app._state.reserved == set()


def test_no_server_joins_while_a_host_has_an_address_of_keys():
    app = metadata("10.0.0.1", "100.64.0.9")
    with pytest.raises(MetadataServerRefused, match=r"host 100\.64\.0\.9 has an address within"):
        app.announce(said("10.0.0.1"))
    assert app._state.reserved == set() and not app.book.servers
