"""A cluster on an emulated fabric: starts whole, is refused twice, goes away whole, whatever killed it."""

import contextlib
import filecmp
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from speedwell.cluster import current
from speedwell.cluster.controller_client import session
from speedwell.cluster.errors import AlreadyRunning, InvalidSetting, NotRunning, StartFailed
from speedwell.cluster.fabric import SUPERVISOR_METRICS_PORT
from speedwell.cluster.fabric_settings import read_settings
from speedwell.cluster.processes import Processes, start_ticks
from speedwell.cluster.supervision import told
from speedwell.cluster.supervisor import STATE_FILE, down, running, up, up_again
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.limits import LEAST_ADVISED_BYTES
from speedwell.topo.emulation.processes import in_namespace
from speedwell.topo.fabric import Fabric, three_tier
from tests.etcd import requires_etcd
from tests.machine_state import left_on_machine
from tests.waiting import wait_until

pytestmark = pytest.mark.root

SPEEDWELL = Path(sys.executable).with_name("speedwell")
SMALL = three_tier(pods=2, racks_per_pod=1, hosts_per_rack=2, aggregations_per_pod=1, cores=1, host_bps=80e6)


@pytest.fixture
def settings(tmp_path, request):
    """Of a cluster with one nameserver, or with as many as the test asks for."""
    hosts = [host.name for host in SMALL.hosts]
    return read_settings(fabric=SMALL, directory=tmp_path / "cluster", chunk_size_bytes=1 << 20,
                         nameservers=getattr(request, "param", 1),
                         mounts={hosts[0]: tmp_path / "a", hosts[-1]: tmp_path / "b"})


@pytest.fixture
def cluster(settings):
    before = left_on_machine()
    try:
        yield up(settings)
    finally:
        with contextlib.suppress(NotRunning):
            down()
        assert left_on_machine() == before


@pytest.mark.parametrize("settings", [pytest.param(3, marks=requires_etcd)], indirect=True)
def test_a_file_written_on_one_host_is_read_steered_on_another(cluster, tmp_path):
    assert cluster["nameserver"] == "10.255.0.1:7000,10.255.0.1:7001,10.255.0.1:7002"
    original = Path(sys.executable).resolve()
    first, second = cluster["mounts"].values()
    subprocess.run(["cp", original, f"{first}/python"], check=True)
    assert filecmp.cmp(original, f"{second}/python", shallow=False)
    metrics = session(cluster["controller"]).get(f"{cluster['controller']}/metrics", timeout=30).text
    decisions = [line for line in metrics.splitlines() if line.startswith("speedwell_reads_total")]
    assert decisions and sum(float(line.rsplit(" ", 1)[1]) for line in decisions) >= 1

    stranger = in_namespace(cluster["hosts"][SMALL.hosts[1].name]["pid"],
                            (str(SPEEDWELL), "ls", "--nameserver", cluster["nameserver"]))
    assert "python" in subprocess.run(stranger, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    refused = subprocess.run(stranger, check=False, stderr=subprocess.PIPE, text=True, timeout=60,
                             env={**os.environ, "SPEEDWELL_STATE_DIRECTORY": str(tmp_path / "elsewhere")})
    assert refused.returncode != 0 and "only clients with a certificate are served" in refused.stderr

    with pytest.raises(AlreadyRunning, match="runs already"):
        up(read_settings(fabric=SMALL, directory=tmp_path / "second"))
    assert not (tmp_path / "second").exists()
    assert running()["supervisor"] == cluster["supervisor"]


def test_services_that_are_killed_come_back(cluster, settings):
    first, second = (Path(path) for path in cluster["mounts"].values())
    (first / "file").write_bytes(b"precious")
    processes = Processes(settings.directory)
    before = {record.name: record.pid for record in processes.running()}
    killed = ["nameserver", "controller", f"dataserver-{SMALL.hosts[0].name}", f"mount-{SMALL.hosts[-1].name}"]
    for name in killed:
        os.kill(before[name], signal.SIGKILL)

    def all_came_back() -> bool:
        processes.load()
        after = {record.name: record.pid for record in processes.running() if record.address}
        return after.keys() == before.keys() and all(after[name] != before[name] for name in killed)

    wait_until(all_came_back, 60, "not everything was started again")
    wait_until(lambda: reads(second / "file") == b"precious", 30, "the mount that came back does not serve")
    (second / "file").write_bytes(b"and on it goes")
    wait_until(lambda: reads(first / "file") == b"and on it goes", 30, "the other mount does not see the change")
    assert told(settings.directory)[killed[0]].count == 1


def test_large_files_go_where_the_controller_says_and_by_racks_while_it_stands_still(cluster, settings, tmp_path):
    source, writer = tmp_path / "large", SMALL.hosts[0]
    inside = in_namespace(cluster["hosts"][writer.name]["pid"], ())
    with source.open("wb") as stream:
        stream.truncate(LEAST_ADVISED_BYTES)

    def put(name: str) -> list[str]:
        subprocess.run([*inside, SPEEDWELL, "put", source, f"/{name}"], check=True, timeout=60)
        with MetadataClient(cluster["nameserver"]) as metadata:
            return [replica.host for replica in metadata.lookup(f"/{name}").replicas]

    def counted() -> dict[str, int]:
        with MetadataClient(cluster["nameserver"]) as metadata:
            return dict(metadata.statistics().placed_by_controller)

    def placed_by_the_controller() -> bool:
        put(f"file-{sum(counted().values())}")
        return counted().get("controller", 0) > 0

    wait_until(placed_by_the_controller, 30, "the controller was never asked in time")
    metrics = session(cluster["controller"]).get(f"{cluster['controller']}/metrics", timeout=30).text
    assert "speedwell_placements_total 0.0" not in metrics
    controller = next(record.pid for record in Processes(settings.directory).running() if record.name == "controller")
    os.kill(controller, signal.SIGSTOP)
    try:
        replicas = put("held-up")
    finally:
        os.kill(controller, signal.SIGCONT)
    assert len(replicas) == 3 and replicas[0] == writer.ip
    not_asked = counted()
    assert sum(not_asked.get(why, 0) for why in ("late", "failed", "pause")) >= 1


def reads(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def test_a_cluster_whose_supervisor_was_killed_is_cleared_by_down(cluster):
    os.kill(cluster["supervisor"]["pid"], signal.SIGKILL)
    wait_until(lambda: start_ticks(cluster["supervisor"]["pid"]) is None, 10, "supervisor survives SIGKILL")
    with pytest.raises(NotRunning):
        running()
    down()
    assert not STATE_FILE.exists()


def test_a_cluster_that_cannot_start_leaves_nothing_and_says_why(settings):
    before = left_on_machine()
    blocked = settings.model_copy(update={"mounts": {SMALL.hosts[0].name: Path("/proc/speedwell")}})
    with pytest.raises(StartFailed, match=r"^/proc/speedwell: No such file or directory$"):
        up(blocked)
    assert left_on_machine() == before


def test_a_cluster_whose_port_for_prometheus_is_taken_leaves_nothing_and_says_so_in_one_line(settings):
    before = left_on_machine()
    with socket.create_server(("0.0.0.0", SUPERVISOR_METRICS_PORT)), pytest.raises(
            StartFailed, match=r"^--metrics: cannot listen on 127\.0\.0\.1:7019: [^\n]*in use$"):
        up(settings.model_copy(update={"metrics": True}))
    assert left_on_machine() == before
    assert "Traceback" not in (settings.directory / "supervisor.log").read_text()


def test_what_was_killed_while_it_started_is_found_and_started_again_as_insecure_as_it_was(settings):
    settings = settings.model_copy(update={"identity": False})

    def kill(message):
        if "dataservers" in message:
            state = json.loads(STATE_FILE.read_text())
            with pytest.raises(NotRunning, match="still being started"):
                running()
            os.kill(state["supervisor"]["pid"], signal.SIGKILL)

    before = left_on_machine()
    with pytest.raises(StartFailed):
        up(settings, kill)
    assert current.read().directory == str(settings.directory)
    try:
        description, started = up_again()
        assert started and not description["identity"] and not (settings.directory / "identity").exists()
        with MetadataClient(description["nameserver"]) as metadata:
            assert metadata.lookup("/").inode
    finally:
        down()
    assert left_on_machine() == before


def test_an_interrupted_start_leaves_nothing(settings, tmp_path):
    before = left_on_machine()
    document = tmp_path / "settings.json"
    document.write_text(settings.model_dump_json())
    program = ("import sys; from pathlib import Path\n"
               "from speedwell.cluster.fabric import FabricSettings; from speedwell.cluster.supervisor import up\n"
               "settings = FabricSettings.model_validate_json(Path(sys.argv[1]).read_text())\n"
               "up(settings, lambda text: print(text, flush=True))")
    with subprocess.Popen([sys.executable, "-c", program, document], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        for line in starter.stdout:
            if "dataservers" in line:
                starter.send_signal(signal.SIGINT)
                break
        starter.communicate(timeout=120)
    assert starter.returncode != 0
    assert left_on_machine() == before


@pytest.mark.parametrize(("values", "message"), [
    ({"mounts": {"nowhere": Path("/mnt/x")}}, "no host is named 'nowhere'"),
    ({"mounts": {"p0r0h0": Path("relative")}}, "absolute path"),
    ({"replication": 0}, "replication"),
    ({"chunk_size_bytes": 1}, "chunk_size_bytes"),
    ({"colour": "blue"}, "colour"),
    ({"placement_measurements": "heartbeats"}, "coflows"),
    ({"replica_policy": "fastest"}, "replica_policy"),
])
def test_settings_are_checked_before_anything_is_built(values, message):
    with pytest.raises(InvalidSetting, match=message):
        read_settings(fabric=SMALL, **values)


def test_no_host_gets_the_certificate_of_another_process():
    named = Fabric.from_json(SMALL.to_json().replace('"p0r0h0"', '"operator"'))
    with pytest.raises(InvalidSetting, match="operator has a certificate of its own"):
        read_settings(fabric=named)
    assert read_settings(fabric=named, identity=False)


def test_the_settings_survive_their_json_form(settings):
    assert type(settings).model_validate_json(settings.model_dump_json()) == settings
    assert json.loads(settings.model_dump_json())["mounts"]
