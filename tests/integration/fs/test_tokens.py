"""Real dataservers and who is not served by them: each attack is refused, changes nothing and tells nothing."""

import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError

from speedwell.fs import tokens
from speedwell.fs.client import Client
from speedwell.fs.client.append.durability import _ask_primary
from speedwell.fs.client.change.version import Changes
from speedwell.fs.proto.speedwell_pb2 import (
    INVALID,
    NOT_FOUND,
    OK,
    TOKEN_REFUSED,
    Admission,
    AppendOperation,
    AppendRecord,
    Attributes,
    DataReply,
    DataRequest,
    HistoryOperation,
    InventoryOperation,
    QuarantineOperation,
    Range,
    ReadOperation,
    Replica,
    WriteOperation,
)
from speedwell.fs.tokens import READ, WRITE
from speedwell.fs.wire import local_sockets as local
from speedwell.fs.wire.channel import MAGIC, connect
from tests.local_cluster import SCRIPTS, LocalCluster
from tests.waiting import wait_until

DATA = b"kept from strangers"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=2, deletion_grace_seconds=0) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Client:
    return cluster.client(metadata_cache_seconds=0)


@pytest.fixture
def file(client: Client, request: pytest.FixtureRequest) -> Attributes:
    client.create(f"/{request.node.name}")
    client.append(f"/{request.node.name}", DATA)
    return client.lookup(f"/{request.node.name}", fresh=True)


def ask(server: Replica, request: DataRequest, payload: bytes = b"", *, over: object = None) -> DataReply:
    channel = over or connect(server.host, server.port, stall_timeout_seconds=15)
    try:
        channel.send(request, more=bool(payload))
        if payload:
            channel.send_bytes([payload])
        return channel.expect(DataReply)
    finally:
        channel.close()


def read(file: Attributes, token: bytes, file_id: str = "") -> DataRequest:
    return DataRequest(token=token, read=ReadOperation(file_id=file_id or file.file_id, length=100))


def append(file: Attributes, token: bytes, **fields: object) -> DataRequest:
    fields.setdefault("relay", file.replicas[1:])
    return DataRequest(token=token, append=AppendOperation(
        file_id=file.file_id, inode=file.inode, path=b"/by-hand", chunk_size=file.chunk_size, length=4,
        epoch=file.epoch, records=[AppendRecord(writer=77, sequence=1)], **fields))  # type: ignore[arg-type]


def signed(cluster: LocalCluster, file: Attributes, rights: int, now_seconds: float | None = None) -> bytes:
    """With the cluster's own key, which no client has."""
    admission = Admission.FromString((cluster.data_directory("d0") / "admission").read_bytes())
    now_ms = int(1000 * (time.time() if now_seconds is None else now_seconds))
    return tokens.sign(admission.keys[0].number, admission.keys[0].secret, file.file_id, rights, now_ms, 3_600_000,
                       file.inode)


def test_without_a_token_nothing_is_served_and_nobody_learns_what_there_is(file: Attributes) -> None:
    server = file.replicas[0]
    there, missing = (ask(server, read(file, b"", each)) for each in (file.file_id, str(uuid.uuid4())))
    assert there == missing
    assert (there.status, there.length, there.file_size) == (TOKEN_REFUSED, 0, 0)
    for operation in ({"history": HistoryOperation(file_id=file.file_id)}, {"inventory": InventoryOperation()},
                      {"quarantine": QuarantineOperation(empty=True)}):
        assert ask(server, DataRequest(**operation)).status == TOKEN_REFUSED  # type: ignore[arg-type]


def test_a_local_socket_is_no_way_around(file: Attributes) -> None:
    server = file.replicas[0]
    channel = local.connect(server.host, server.port, 15)
    assert channel is not None
    assert ask(server, read(file, b""), over=channel).status == TOKEN_REFUSED


def test_tokens_that_are_not_for_this_are_refused_and_change_nothing(cluster: LocalCluster, client: Client,
                                                                     file: Attributes) -> None:
    client.create("/another")
    client.append("/another", DATA)
    another = client.lookup("/another", fresh=True)
    primary = file.replicas[0]
    altered = file.token[:-1] + bytes([file.token[-1] ^ 1])
    expired = signed(cluster, file, READ | WRITE, time.time() - 3600 - 61)
    for token in (b"", another.token, altered, expired, signed(cluster, file, READ)):
        refused = ask(primary, append(file, token), b"more")
        assert (refused.status, refused.file_size) == (TOKEN_REFUSED, 0), token
    for token in (b"", another.token, altered, expired):
        assert ask(primary, read(file, token)).status == TOKEN_REFUSED
    ordered = append(file, file.token, offset=len(DATA), relay=())
    assert ask(primary, ordered, b"more").status == TOKEN_REFUSED
    for replica in file.replicas:
        assert cluster.stored_bytes(replica.dataserver_id, file.file_id) == DATA
    assert ask(primary, append(file, file.token), b"more").status == OK


def test_a_listing_gives_no_right_to_write(client: Client, file: Attributes, request: pytest.FixtureRequest) -> None:
    listed = next(entry.attributes for entry in client.metadata.list("/") if entry.attributes.inode == file.inode)
    assert ask(file.replicas[0], append(file, listed.token), b"more").status == TOKEN_REFUSED
    with client.open_append(f"/{request.node.name}", listed) as appender:     # the library asks for one that does
        appender.write(b"more")


def test_a_relay_leads_to_registered_servers_alone(file: Attributes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        there = Replica(dataserver_id="d1", host="127.0.0.1", port=stranger.getsockname()[1], alive=True)
        refused = ask(file.replicas[0], append(file, file.token, relay=[there]), b"more")
        assert refused.status == TOKEN_REFUSED
        assert "no dataserver of this installation" in refused.message
        with pytest.raises(BlockingIOError):
            stranger.accept()


def test_a_version_does_not_take_the_content_of_another_file(cluster: LocalCluster, client: Client,
                                                             file: Attributes) -> None:
    client.create("/mine")
    client.append("/mine", b"mine")
    mine = client.lookup("/mine", fresh=True)
    steal = DataRequest(token=mine.token, write=WriteOperation(
        file_id=file.file_id, base=mine.file_id, inode=mine.inode, path=b"/mine", chunk_size=mine.chunk_size,
        base_size=4, ranges=[Range(offset=0, length=4)], relay=mine.replicas[1:], epoch=mine.epoch))
    assert ask(mine.replicas[0], steal, b"evil").status == INVALID
    assert cluster.stored_bytes(file.replicas[0].dataserver_id, file.file_id) == DATA


def test_a_copy_does_not_begin_over_the_content_of_another_file(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=3, replication=2) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        for name, replicas in (("mine", ["d0", "d1"]), ("theirs", ["d2"])):
            client.create(f"/{name}", replicas=replicas)
            client.append(f"/{name}", DATA)
        mine, theirs = client.lookup("/mine"), client.lookup("/theirs")
        named = DataRequest(token=mine.token, write=WriteOperation(
            file_id=theirs.file_id, base=mine.file_id, inode=mine.inode, path=b"/mine", chunk_size=mine.chunk_size,
            base_size=len(DATA), ranges=[Range(offset=0, length=4)], relay=mine.replicas[1:], epoch=mine.epoch))
        assert ask(mine.replicas[0], named, b"evil").status == OK
        client.metadata.operator.set_draining("d1", True)    # orders a copy of what is now the content of both
        wait_until(lambda: "of another file" in cluster.dataserver("d2").log.read_text(), 60, "no copy is ordered")
        assert cluster.stored_bytes("d2", theirs.file_id) == DATA


def test_what_was_removed_is_not_begun_again(cluster: LocalCluster, client: Client, file: Attributes,
                                             request: pytest.FixtureRequest) -> None:
    client.remove(f"/{request.node.name}")
    primary = file.replicas[0]
    wait_until(lambda: ask(primary, read(file, file.token)).status == NOT_FOUND, 30, "the content stays")
    assert ask(primary, append(file, file.token), b"more").status == NOT_FOUND
    cluster.dataserver(primary.dataserver_id).kill()
    cluster.revive()
    assert ask(primary, append(file, file.token), b"more").status == TOKEN_REFUSED
    assert not cluster.stored(primary.dataserver_id, file.file_id).exists()


def test_servers_that_start_while_the_nameserver_is_away_serve_who_has_a_token(cluster: LocalCluster,
                                                                               file: Attributes) -> None:
    cluster.nameserver.kill()
    server = cluster.dataserver(file.replicas[0].dataserver_id)
    server.kill()
    server.start()
    assert ask(file.replicas[0], read(file, file.token)).status == OK
    cluster.revive()
    assert ask(file.replicas[0], read(file, file.token)).status == OK


def test_handles_outlive_tokens_and_keys_and_the_nameserver(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=2, nameserver_arguments=("--token-lifetime", "1")) as cluster:
        client, idle = cluster.client(), cluster.client()
        client.create("/f")
        client.append("/f", DATA)
        with client.open_append("/f") as appender, client.open_read("/f") as reader, idle.open_read("/f") as rare:
            appended, keys = 0, set[int]()
            while len(keys) < 4:    # of the first two none is left
                appender.write(DATA)
                appender.flush()
                appended += 1
                assert reader.read(0, len(DATA)) == DATA
                known = Admission.FromString((cluster.data_directory("d0") / "admission").read_bytes())
                keys.update(key.number for key in known.keys)
                if keys == {1, 2}:
                    cluster.nameserver.kill()
                    cluster.nameserver.start()
                time.sleep(0.05)
            assert rare.read(0, len(DATA)) == DATA
        with client.open_read("/f") as reader:
            assert reader.read(0, reader.size) == DATA * (1 + appended)


def test_an_insecure_installation_serves_everybody_and_says_so(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=1, nameserver_arguments=("--no-tokens",),
                      dataserver_arguments=("--no-tokens",), secure=False) as cluster:
        client = cluster.client()
        client.create("/f")
        client.append("/f", DATA)
        file = client.lookup("/f", fresh=True)
        assert file.token == b""
        assert ask(file.replicas[0], read(file, b"")).status == OK
        assert list(client.statistics().insecure) == ["nameserver", "d0"]
        status = subprocess.run([str(SCRIPTS / "speedwell"), "status", "--nameserver", cluster.nameserver.address],
                                capture_output=True, text=True, check=True)
        assert "without tokens (--no-tokens): nameserver, d0" in status.stdout


@pytest.mark.full
def test_a_server_that_comes_back_at_another_address_is_appended_to_by_who_knows_the_old_one(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=2) as cluster:
        client = cluster.client(metadata_cache_seconds=60)
        client.create("/f")
        client.append("/f", DATA)
        known = client.lookup("/f")
        primary, secondary = (cluster.dataserver(replica.dataserver_id) for replica in known.replicas)
        primary.kill()
        secondary.kill()
        secondary.port = 0
        cluster.revive()
        kept = cluster.data_directory(primary.name) / "admission"
        wait_until(lambda: secondary.port in {server.port for server in Admission.FromString(
            kept.read_bytes()).servers}, 15, "the primary does not hear of the new address")
        with client.open_append("/f", known) as appender:
            appender.write(DATA)
        assert cluster.stored_bytes(secondary.name, known.file_id) == DATA * 2


def test_a_file_that_names_a_removed_server_takes_changes(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=3, nameserver_arguments=("--min-replicas", "1")) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        client.create("/f", replicas=["d0", "d1"])
        client.append("/f", DATA)
        cluster.dataserver("d1").kill()
        cluster.wait_alive({"d0", "d2"})
        client.metadata.operator.remove_dataserver("d1")
        client.append("/f", DATA)
        assert cluster.stored_bytes("d0", client.lookup("/f").file_id) == DATA * 2


def test_what_the_network_carries_between_dataservers_is_of_no_use_to_who_reads_it(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=2, replication=2, secure=True) as cluster, \
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire:     # all protocols: packet(7)
        wire.bind(("lo", 0))
        client = cluster.client(metadata_cache_seconds=0)
        client.create("/seen")
        client.append("/seen", DATA)
        file = client.lookup("/seen", fresh=True)
        wire.setblocking(False)
        seen = set()
        with suppress(BlockingIOError):
            while True:
                seen.update(relayed_tokens(wire.recv(65536), file.file_id))
        assert seen, "no order of the primary was seen"
        for token in seen:
            for server in file.replicas:
                assert ask(server, read(file, token)).status == TOKEN_REFUSED
                assert ask(server, append(file, token, relay=()), b"more").status == TOKEN_REFUSED
                history = DataRequest(token=token, history=HistoryOperation(file_id=file.file_id))
                assert ask(server, history).status == TOKEN_REFUSED
        client.append("/seen", DATA)
        with client.open_read("/seen") as reader:
            assert reader.read(0, 100) == 2 * DATA


def test_a_version_that_was_made_just_now_is_forced_to_the_disks_and_read_at_once(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=1, secure=True) as cluster:
        client = cluster.client()
        client.create("/f")
        client.append("/f", DATA)
        made = client.change("/f", Changes.of({0: b"KEPT"}))
        _ask_primary(client._context, made)
        proven = client._context.connection_to(made.replicas[0])
        assert ask(made.replicas[0], read(made, made.token), over=proven).status == OK


def relayed_tokens(packet: bytes, file_id: str) -> Iterator[bytes]:
    """Of a primary's orders in a packet."""
    for frame in packet.split(MAGIC)[1:]:
        length = int.from_bytes(frame[:4], "big")
        with suppress(DecodeError):
            request = DataRequest.FromString(frame[4:4 + length])
            if request.append.HasField("offset") and request.append.file_id == file_id:
                yield request.token
