"""Nameservers with identities: who is asked when one is refused, and what a reader cannot do."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.dataserver.nameserver_link import CALL_TIMEOUT_SECONDS, NameserverLink
from speedwell.fs.errors import SpeedwellError
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import DATASERVER, NAMESERVER, OPERATOR, READER
from speedwell.fs.nameserver.replicas.registry import LEASE_SECONDS
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.nameserver.service.frames import NameserverFrames, listen
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import MemoryStore
from tests.waiting import wait_until


class Site:
    """Two nameservers, of which the second leads, and three dataservers."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.make(directory)
        self.authority.ensure([("ns1", NAMESERVER), ("ns2", NAMESERVER), ("d0", DATASERVER), ("op", OPERATOR),
                               ("reader", READER)])
        self.now_seconds = 1000.0
        self.service = NameserverService(
            MemoryStore(), Settings(), generator=random.Random(1), clock_ns=lambda: int(self.now_seconds * 1e9),
            clock_seconds=lambda: self.now_seconds)
        self.beat("d0", "d1", "d2")
        self.frames = [NameserverFrames(requests, listen("127.0.0.1"), self.identity(name))
                       for name, requests in (("ns1", Requests()), ("ns2", Requests(self.service)))]
        for each in self.frames:
            each.start()
        self.address = ",".join(f"127.0.0.1:{each.port}" for each in self.frames)

    def identity(self, name: str) -> Identity:
        return Identity(self.authority.directory / name)

    def client(self, name: str) -> MetadataClient:
        return MetadataClient(self.address, 0, identity=self.authority.directory / name)

    def beat(self, *names: str) -> None:
        for name in names:
            self.service.dataservers.heartbeat(pb.HeartbeatRequest(
                server=pb.Replica(dataserver_id=name, host="10.0.0.1", port=7000 + int(name[1:])),
                capacity_bytes=10**9, available_bytes=10**9, inventory_complete=True,
                term=self.service.provenance.term))


def refusal(ask: Callable[[], object]) -> str:
    try:
        ask()
    except SpeedwellError as error:     # the one that does not lead may notice last
        return str(error)
    return ""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "identity")
    yield site
    for each in site.frames:
        each.stop()


def test_a_revoked_nameserver_keeps_nobody_from_the_one_that_leads(site: Site) -> None:
    site.authority.revoke("ns1")
    with site.client("op") as client:
        assert client.lookup("/").inode == 1
    link = NameserverLink(site.address, "d0", site.identity("d0"))
    assert link.look_up(1).inode == 1
    link.close()


def test_a_certificate_that_all_refuse_is_said(site: Site) -> None:
    with site.client("op") as client:
        site.authority.revoke("op")
        wait_until(lambda: "operator op was revoked" in refusal(lambda: client.lookup("/")), 15, "it is not refused")
    link = NameserverLink(site.address, "d0", site.identity("d0"))
    site.authority.revoke("d0")
    wait_until(lambda: "dataserver d0 was revoked" in refusal(lambda: link.look_up(1)), 15, "it is not refused")
    link.close()


def test_a_reader_deposes_no_primary(site: Site) -> None:
    with site.client("op") as operator, site.client("reader") as reader:
        made, _ = operator.create("/f", replication=3)
        site.now_seconds += LEASE_SECONDS + 1
        site.beat(*(replica.dataserver_id for replica in made.replicas[1:]))
        assert reader.lookup_inode(made.inode, to_append=True).epoch == made.epoch
        assert operator.lookup_inode(made.inode, to_append=True).epoch > made.epoch


def test_a_nameserver_that_does_not_answer_is_asked_last_from_then_on(site: Site) -> None:
    candidate = Requests()
    frames = NameserverFrames(candidate, listen("127.0.0.1"), site.identity("ns1"))
    frames.start()
    with listen("127.0.0.1") as silent:
        link = NameserverLink(f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{frames.port}", "d0",
                              site.identity("d0"))
        assert "does not lead" in refusal(lambda: link.look_up(1))      # as while it takes over
        candidate.lead(site.service)
        began = time.monotonic()
        assert link.look_up(1).inode == 1
        assert time.monotonic() - began < CALL_TIMEOUT_SECONDS
        link.close()
    frames.stop()
