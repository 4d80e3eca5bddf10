"""What another version of us sends, and left on the disk: refused in words, or read as far as we know it."""

import json
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

from speedwell.coflow import host_heartbeat, report
from speedwell.coflow.errors import InvalidReport
from speedwell.controller.timeslices.watches import _Network
from speedwell.fs.dataserver.disk.data_directory import Directory, ForeignDirectory
from speedwell.fs.errors import StorageFailed
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import Superblock
from speedwell.fs.nameserver.replicas.registry import Registry
from speedwell.fs.proto.speedwell_pb2 import CallReply
from speedwell.fs.store import Batch, MemoryStore
from speedwell.fs.wire.channel import HEADER, Channel, OtherVersion
from speedwell.fs.wire.identification import WrongServer, identify
from speedwell.host_agent import channel as agents
from speedwell.host_agent.errors import InvalidDatagram


@pytest.mark.parametrize(("magic", "to_upgrade"), [(b"SPW2", "this process"), (b"SPW0", "the peer")])
def test_a_frame_of_another_version_tells_which_side_to_upgrade(magic: bytes, to_upgrade: str) -> None:
    ours, theirs = map(Channel, socket.socketpair())
    theirs.socket.send(HEADER.pack(magic, 0))
    with pytest.raises(OtherVersion, match=f"the peer speaks version {magic[3:].decode()} .* upgrade {to_upgrade} "):
        ours.receive(CallReply)
    theirs.send_bytes([HEADER.pack(magic, 0)])
    with pytest.raises(WrongServer, match=f"d0: .* upgrade {to_upgrade} "):
        identify(ours, "d0", b"")
    theirs.close()


def test_a_datagram_of_another_version_tells_which_side_to_upgrade() -> None:
    key = b"k" * 16
    flow = report.FlowReport(report.Flow("10.0.0.1", "10.0.0.2", 1, 2), 3)
    reported = bytearray(report.encode(report.Report(b"i" * 16, 1, 1, 1, (flow,)), key))
    reported[4] = 2
    with pytest.raises(InvalidReport, match="of version 2, this process reads version 1: upgrade this process"):
        report.decode(bytes(reported), key)
    beat = bytearray(host_heartbeat.encode(host_heartbeat.HostHeartbeat("10.0.0.1", 1, 1, 1, 1, 1), key))
    beat[4] = 0
    with pytest.raises(InvalidReport, match="of version 0, this process reads version 1: upgrade the sender"):
        host_heartbeat.decode(bytes(beat), key)
    turn = bytearray(agents.MAX_DATAGRAM_BYTES)
    turn[:5] = b"SPHA\x02"
    with pytest.raises(InvalidDatagram, match="upgrade this process"):
        agents.agent_of(bytes(turn))


def test_a_record_with_a_field_of_a_later_version_is_read_without_it() -> None:
    store = MemoryStore()
    server = Registry(store, now_seconds=0).heartbeat("a", "host", 7000, "r0", "p0", capacity_bytes=1,
                                                      available_bytes=1, now_seconds=0)
    batch = Batch()
    batch.put(records.dataserver_key(server.number), json.dumps({**asdict(server), "later": 1}).encode())
    store.write(batch)
    assert [known for known, _ in Registry(store, now_seconds=0).statuses()] == [server]


def test_an_answer_of_the_controller_with_a_field_of_a_later_version_is_read_without_it() -> None:
    link = {"source": "10.0.0.1", "destination": "0000000000000001", "capacity_bps": 1e6, "later": 1}
    network = _Network.model_validate_json(json.dumps({"links": [link], "later": {}}))
    assert [each.source for each in network.links] == ["10.0.0.1"]


def test_a_namespace_of_a_later_format_is_refused() -> None:
    later = (records.FORMAT_VERSION + 1).to_bytes(2, "big") + Superblock(2, 0, 1).encode()[2:]
    with pytest.raises(StorageFailed, match="format 3, this nameserver reads 2: start the version that wrote it"):
        Superblock.decode(later)


def test_a_directory_of_a_later_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.claim("d0")
    directory.close()
    (tmp_path / "format").write_text("2\n")
    (tmp_path / "making" / "of-the-later-version").touch()
    with pytest.raises(ForeignDirectory, match="has format 2, this dataserver reads 1: start the version"):
        Directory(tmp_path).claim("d0")
    assert (tmp_path / "making" / "of-the-later-version").exists()
