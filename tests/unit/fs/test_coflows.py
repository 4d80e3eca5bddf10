"""The filesystem's transfers as coflows: what is told, and when nothing is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from speedwell.coflow import decode
from speedwell.coflow.reporter import FlowProgress
from speedwell.fs import coflows
from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.read.choice import ReplicaChoice
from speedwell.fs.client.read.piece_stream import PieceStream
from speedwell.fs.client.read.plan import Source
from speedwell.fs.client.read.steering import SteeredRead
from speedwell.fs.coflows import MIN_BYTES, Coflows, configured
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.proto.speedwell_pb2 import Attributes, Replica

ENDS = (("10.0.0.1", 41000), ("10.0.1.1", 7100))


class Told:
    """Stands where reports go out."""

    def __init__(self) -> None:
        self.added: list[FlowProgress] = []
        self.over: list[FlowProgress] = []

    def add(self, flows, coflow_id):
        self.added += (new := [FlowProgress(flow, size, coflow_id) for flow, size in flows])
        return new

    def ended(self, progress: FlowProgress) -> None:
        self.over.append(progress)


def connection(here=ENDS[0], there=ENDS[1], family=2, acknowledged=0):
    info = SimpleNamespace(acknowledged=acknowledged)
    return SimpleNamespace(getsockname=lambda: here, getpeername=lambda: there, family=family, info=info,
                           getsockopt=lambda *which: bytes(120) + info.acknowledged.to_bytes(8, sys.byteorder))


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    configured.cache_clear()
    yield
    configured.cache_clear()


def test_an_append_is_one_coflow_at_the_client_and_at_every_replica() -> None:
    client, replica = Told(), Told()
    Coflows(client).append("file", 7, 3, connection(), MIN_BYTES)
    Coflows(replica).append("file", 7, 3, connection(ENDS[1], ("10.0.1.2", 7100)), MIN_BYTES)
    Coflows(replica).append("file", 7, 4, connection(), MIN_BYTES)
    assert client.added[0].coflow_id == replica.added[0].coflow_id != replica.added[1].coflow_id
    assert client.added[0].flow[:4] == ("10.0.0.1", "10.0.1.1", 41000, 7100)


def test_an_append_has_left_what_the_next_replica_has_not_acknowledged() -> None:
    told, used_before = Told(), connection(acknowledged=9000)
    Coflows(told).append("file", 7, 3, used_before, MIN_BYTES)
    assert told.added[0].remaining_bytes == MIN_BYTES
    used_before.info.acknowledged += 500_000
    assert told.added[0].remaining_bytes == MIN_BYTES - 500_000


def test_a_connection_of_a_read_that_is_asked_for_more_than_was_planned_has_that_left() -> None:
    told = Told()
    read = SteeredRead(replica_id="d0", replica_host=ENDS[0][0], replica_port=ENDS[0][1], client_port=ENDS[1][1],
                       chosen_by="controller", offset_bytes=0, size_bytes=1000)
    [account] = Coflows(told).flows(coflows.new_id(), [(*ENDS, read.size_bytes)])
    attributes = Attributes(replicas=[Replica(dataserver_id="d0")])
    stream = PieceStream(Source(read, account=account), attributes,
                         ReplicaChoice(cast(ClientContext, None), attributes))
    stream.asked.extend([(0, 900), (900, 1800)])
    stream.took(900)
    assert told.added[0].remaining_bytes == 900
    stream.took(900)
    assert told.added[0].remaining_bytes == 1


def test_small_appends_are_not_told() -> None:
    told = Told()
    assert Coflows(told).append("file", 7, 3, connection(), MIN_BYTES - 1) is None
    assert Coflows(told).append("file", 7, 3, connection(family=10), MIN_BYTES) is None
    assert told.added == []


def test_an_account_ends_once() -> None:
    told = Told()
    [account] = Coflows(told).flows(coflows.new_id(), [(*ENDS, 500)])
    account.moved(200)
    account.ended()
    account.ended()
    account.moved(100)
    assert [progress.remaining_bytes for progress in told.over] == [300]


def test_nothing_is_configured_without_an_address_and_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEEDWELL_COFLOW_ADDRESS", raising=False)
    assert configured() is None
    configured.cache_clear()
    monkeypatch.setenv("SPEEDWELL_COFLOW_ADDRESS", "127.0.0.1")
    monkeypatch.setenv("SPEEDWELL_COFLOW_KEY_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="cannot read"):
        configured()
    (tmp_path / "none").write_bytes(b"k" * 16)
    assert configured() is not None


def test_a_process_that_goes_tells_that_its_coflows_are_over(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k" * 16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.bind(("127.0.0.1", 0))
        heard.settimeout(20)
        environment = {**os.environ, "SPEEDWELL_COFLOW_ADDRESS": f"127.0.0.1:{heard.getsockname()[1]}",
                       "SPEEDWELL_COFLOW_KEY_FILE": str(tmp_path / "key")}
        subprocess.run([sys.executable, "-c", "from speedwell.fs.coflows import configured, new_id\n"
                        f"configured().flows(new_id(), [(*{ENDS!r}, 5000)])"], check=True, env=environment,
                       cwd=Path(__file__).parents[3])
        told = [decode(heard.recv(2000), b"k" * 16).flows[0].remaining_bytes for _ in range(4)]
    assert told == [5000, 0, 0, 0]


def test_a_client_that_reports_nothing_does_not_import_the_protocol() -> None:
    code = "import sys, speedwell.fs.client; assert 'speedwell.coflow' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True,
                          cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
