"""A real HDFS on emulated hosts: where files are, whence they are read, over what, and that nothing stays."""

from pathlib import Path

import pytest
import requests

from speedwell.cluster import supervisor
from speedwell.cluster.fabric_settings import read_settings
from speedwell.evaluation.hdfs import libraries
from speedwell.evaluation.hdfs.system import Hdfs
from speedwell.evaluation.papers.mayflower import HDFS_METHODS
from speedwell.evaluation.papers.reads import Method
from speedwell.evaluation.replay.agents import ReadingFailed
from speedwell.evaluation.replay.scale import StoredFile
from speedwell.topo.fabric import three_tier
from tests.machine_state import left_on_machine
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.timeout(400)]

HOST_BPS = 40e6
FABRIC = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, host_bps=HOST_BPS,
                    oversubscription={"edge": 1.0, "aggregation": 1.0})
FILE = StoredFile("/trace/file", ("p0r0h0", "p0r1h0", "p1r0h0"), 4 << 20)
STEERED, DEFAULT = HDFS_METHODS


@pytest.fixture(scope="module")
def hadoop():
    try:
        return libraries.prepare()
    except libraries.JavaMissing as missing:
        pytest.skip(str(missing))
    except libraries.LibrariesUnavailable as unavailable:
        pytest.skip(str(unavailable))


@pytest.fixture(scope="module")
def hdfs(hadoop, tmp_path_factory):
    directory = tmp_path_factory.mktemp("hdfs")
    before = left_on_machine()
    cluster = supervisor.up(read_settings(fabric=FABRIC, directory=directory / "cluster", identity=False))
    try:
        hdfs = Hdfs(cluster, FABRIC, hadoop, directory / "hdfs")
        try:
            hdfs.start(lambda message: None)
            hdfs.prepare([FILE], lambda message: None)
            yield hdfs
        finally:
            hdfs.close()
            assert java_processes(directory) == []
    finally:
        supervisor.down()
    assert left_on_machine() == before


def java_processes(directory):
    """Process ids of the Java processes that were started with a file below `directory`."""
    return [int(entry.name) for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and runs_with(entry, f"{directory}/".encode())]


def runs_with(entry, argument):
    try:
        line = (entry / "cmdline").read_bytes()
    except OSError:
        return False
    return line.startswith(b"java\0") and argument in line


def address(name):
    return FABRIC.host(name).ip


def test_a_file_is_whole_on_the_hosts_it_names_and_on_no_other(hdfs):
    blocks = {}
    for block in (hdfs.directory / "data").rglob("blk_*"):
        if block.suffix != ".meta" and block.stat().st_size == FILE.size_bytes:
            blocks[block.relative_to(hdfs.directory / "data").parts[0]] = block.read_bytes()
    assert set(blocks) == set(FILE.replicas)
    assert len(set(blocks.values())) == 1


@pytest.mark.parametrize(("reader", "nearest"), [("p0r0h1", "p0r0h0"), ("p0r1h1", "p0r1h0"), ("p1r0h1", "p1r0h0"),
                                                 ("p1r1h1", "p1r0h0")])
@pytest.mark.parametrize("method", HDFS_METHODS, ids=lambda method: method.name)
def test_a_client_reads_from_the_replica_in_its_rack_or_else_its_pod(hdfs, reader, nearest, method):
    report = hdfs.read(reader, FILE, method).result(60)
    assert report.sources == (address(nearest),)
    assert report.size_bytes == FILE.size_bytes


@pytest.mark.parametrize("method", HDFS_METHODS, ids=lambda method: method.name)
def test_data_crosses_the_fabric_at_no_more_than_its_rate(hdfs, method):
    report = hdfs.read("p0r0h1", FILE, method).result(60)
    assert 8 * FILE.size_bytes / (report.finished - report.started) < 1.02 * HOST_BPS


def test_only_a_steered_read_is_known_to_the_controller_which_forgets_it_at_its_end(hdfs):
    def reads():
        return requests.get("http://10.255.0.1:8080/v1/reads", timeout=30).json()["reads"]

    report = hdfs.read("p1r1h0", FILE, STEERED)
    placed = wait_until(reads, 20, "the controller was not asked")
    assert [part["replica"]["host"] for part in placed[0]["parts"]] == [address("p1r0h0")]
    assert len(placed[0]["parts"][0]["path"]) == 5
    assert report.result(60).steered
    wait_until(lambda: not reads(), 20, "the read stays with the controller")

    report = hdfs.read("p1r1h0", FILE, DEFAULT)
    while not report.done():
        assert reads() == []
    assert not report.result().steered


def test_reads_that_are_given_up_fail_at_once_and_new_ones_succeed(hdfs):
    running = [hdfs.read("p0r0h1", FILE, DEFAULT) for _ in range(8)]
    hdfs.abandon()
    with pytest.raises(ReadingFailed, match="abandoned"):
        running[0].result(20)
    assert hdfs.read("p0r0h1", FILE, DEFAULT).result(60).size_bytes == FILE.size_bytes


def test_a_file_that_is_not_there_is_named(hdfs):
    missing = StoredFile("/trace/missing", FILE.replicas, 1)
    with pytest.raises(ReadingFailed, match="/trace/missing"):
        hdfs.read("p0r0h1", missing, Method("", "nearest", "ecmp")).result(60)
