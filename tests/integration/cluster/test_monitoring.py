"""A real Prometheus that watches a real installation, with the configuration and the rules of the repository."""

import contextlib
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from speedwell.cluster.nameservers import free_ports
from speedwell.fs.identity import joining
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.invitations import invite
from speedwell.fs.identity.roles import AUTHORITY, DATASERVER, MOUNT
from tests.integration.cluster.executable import SCRIPTS, Speedwell, kill
from tests.integration.cluster.prometheus import MONITORING, firing, prometheus, require_as_prometheus_wants, values
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two dataservers and a mount that answer Prometheus."""
    speedwell, directory = Speedwell(tmp_path_factory.mktemp("state")), tmp_path_factory.mktemp("installation")
    mountpoint = tmp_path_factory.mktemp("mount")
    speedwell.ok("up", "--local", directory, "--dataservers", 2, "--metrics", "--mount", mountpoint)
    (mountpoint / "file").write_bytes(b"here")
    yield directory
    speedwell.run("down", "--local", directory)


@pytest.fixture(name="prometheus")
def _prometheus(installation: Path, tmp_path: Path) -> Iterator[str]:
    with prometheus(tmp_path, installation) as url:
        yield url


def test_rules_and_dashboard_ask_for_what_processes_tell(installation: Path) -> None:
    targets = json.loads((installation / "metrics-targets.json").read_text())
    assert {target["labels"]["process"] for target in targets} == {
        "nameserver", "d0", "d1", "mount", "supervisor"}
    told = {name for target in targets for name in told_by(target["targets"][0])}
    of_others = {name for room in ("controller", "fs/identity", "fs/metadata_store", "host_agent")
                 for path in (ROOT / room).rglob("*.py")
                 for name in re.findall(r'"(speedwell_\w+)"', path.read_text())}
    asked = {name for file in ("alerts.yml", "grafana-dashboard.json", "grafana-network.json")
             for name in re.findall(r"speedwell_\w+", (MONITORING / file).read_text())}
    assert len(asked) > 20
    assert {name for name in map(family, asked) if name not in told | of_others} == set()


def test_names_are_as_prometheus_wants_them(installation: Path) -> None:
    for target in json.loads((installation / "metrics-targets.json").read_text()):
        require_as_prometheus_wants(requests.get(f"http://{target['targets'][0]}/metrics", timeout=30).content)


def test_etcd_is_asked_too(tmp_path: Path) -> None:
    speedwell = Speedwell(tmp_path / "state")
    speedwell.ok("up", "--local", tmp_path / "i", "--nameservers", 2, "--dataservers", 1, "--metrics")
    try:
        addresses = {target["labels"]["process"]: target["targets"][0]
                     for target in json.loads((tmp_path / "i" / "metrics-targets.json").read_text())}
        assert "etcd_server_has_leader" in told_by(addresses["etcd-0"])
        assert "speedwell_nameserver_leading" in told_by(addresses["nameserver-1"])
    finally:
        speedwell.ok("down", "--local", tmp_path / "i")


@pytest.mark.parametrize(("program", "options", "expected"), [
    ("speedwell-timeslices", ("--listen", "127.0.0.1:0", "--key-file", "key"),
     {"speedwell_timeslices_agents", "speedwell_timeslices_controller_up"}),
    ("speedwell-metadata-store", ("--listen", "127.0.0.1:0", "--store", "leveldb:store"),
     {"speedwell_metadata_request_seconds", "speedwell_metadata_owned_addresses"})])
def test_what_no_installation_starts_here_answers_too(program: str, options: tuple[str, ...], expected: set[str],
                                                      tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a master key of 16 bytes or more")
    [port] = free_ports("127.0.0.1", 1)
    with subprocess.Popen([SCRIPTS / program, *options, "--metrics", f"127.0.0.1:{port}"], cwd=tmp_path,
                          stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().decode()
            assert ready.startswith("ready 127.0.0.1:")
            if program == "speedwell-metadata-store":
                with socket.create_connection(("127.0.0.1", int(ready.rpartition(":")[2]))) as client:
                    client.sendall(b"*1\r\n$4\r\nPING\r\n*1\r\n$5\r\nWRONG\r\n")
                    wait_until(lambda: 'seconds_count{command="unknown"} 1.0' in page(port), DEADLINE_SECONDS,
                               lambda: page(port))
                assert 'speedwell_metadata_request_seconds_count{command="PING"} 1.0' in page(port)
                assert 'speedwell_metadata_refused_total{command="unknown"} 1.0' in page(port)
            assert expected <= told_by(f"127.0.0.1:{port}")
            require_as_prometheus_wants(page(port).encode())
        finally:
            process.terminate()


def test_who_keeps_certificates_tells_until_when_they_are_good_and_whether_they_are_renewed(tmp_path: Path) -> None:
    Authority.make(tmp_path / "a").ensure([(AUTHORITY, AUTHORITY), ("d0", DATASERVER)])
    listens, *ports = free_ports("127.0.0.1", 3)
    with certificates(tmp_path / "a", ports[0], "--listen", f"127.0.0.1:{listens}"):
        joining.join(tmp_path / "b", invite(tmp_path / "a", f"127.0.0.1:{listens}", "b", [DATASERVER, MOUNT]))
        with certificates(tmp_path / "b", ports[1]):
            for port, names in zip(ports, ({AUTHORITY, "d0"}, {"b", "mount-b"}), strict=True):
                ends = dict(re.findall(r'certificate_end_timestamp_seconds{name="(.+)"} (.+)', page(port)))
                assert ends.keys() == names and min(map(float, ends.values())) > time.time()
                assert "speedwell_certificates_renewal_failing 0.0" in page(port)
                require_as_prometheus_wants(page(port).encode())
        assert 'requests_total{request="POST /v1/join",status="200"} 1.0' in page(ports[0])
        issued = tmp_path / "a" / "issued.json"
        issued.rename(tmp_path / "kept")
        issued.write_text("damaged")
        wait_until(lambda: "speedwell_certificates_renewal_failing 1.0" in page(ports[0]), DEADLINE_SECONDS,
                   lambda: page(ports[0]))
        (tmp_path / "kept").rename(issued)
        wait_until(lambda: "speedwell_certificates_renewal_failing 0.0" in page(ports[0]), DEADLINE_SECONDS,
                   lambda: page(ports[0]))


@contextlib.contextmanager
def certificates(directory: Path, port: int, *options: str) -> Iterator[None]:
    with subprocess.Popen([SCRIPTS / "speedwell-certificates", "--directory", directory, "--metrics",
                           f"127.0.0.1:{port}", *options], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().startswith(b"ready")
            yield
        finally:
            process.terminate()


def test_metrics_begin_with_a_fresh_start_and_stay_where_they_are(tmp_path: Path) -> None:
    speedwell, targets = Speedwell(tmp_path / "state"), tmp_path / "i" / "metrics-targets.json"
    speedwell.ok("up", "--local", tmp_path / "i", "--dataservers", 1)
    try:
        assert b"runs without --metrics" in speedwell.run("up", "--local", tmp_path / "i", "--metrics").stderr
        assert not targets.exists()
        speedwell.ok("down")
        speedwell.ok("up", "--local", tmp_path / "i", "--metrics")
        before = targets.read_text()
        speedwell.ok("down")
        speedwell.ok("up", "--local", tmp_path / "i")
        assert targets.read_text() == before
        assert "speedwell_nameserver_leading" in told_by(json.loads(before)[0]["targets"][0])
    finally:
        speedwell.ok("down", "--local", tmp_path / "i")


def test_prometheus_sees_that_servers_were_killed(installation: Path, prometheus: str) -> None:
    wait_until(lambda: values(prometheus, "speedwell_dataserver_alive") == {"d0": 1, "d1": 1}
               and len(values(prometheus, "up == 1", "process")) == 5, DEADLINE_SECONDS, "all are scraped")
    assert values(prometheus, "speedwell_process_up", "name") == {"nameserver": 1, "d0": 1, "d1": 1, "mount": 1}
    wait_until(lambda: not firing(prometheus), DEADLINE_SECONDS, lambda: f"the alerts are {firing(prometheus)}")
    assert values(prometheus, "speedwell_mount_nameserver_up", "process") == {"mount": 1}
    kill(installation, "supervisor", "d1")
    wait_until(lambda: firing(prometheus) == {
        ("SpeedwellDataserverDead", "d1"), ("SpeedwellProcessDown", "d1"), ("SpeedwellProcessDown", "supervisor"),
        ("SpeedwellFilesUnwritable", "nameserver")}, DEADLINE_SECONDS, lambda: f"the alerts are {firing(prometheus)}")
    kill(installation, "nameserver")
    wait_until(lambda: ("SpeedwellMountCutOff", "mount") in firing(prometheus), DEADLINE_SECONDS,
               lambda: f"the alerts are {firing(prometheus)}")


def page(port: int) -> str:
    return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text


def told_by(address: str) -> set[str]:
    text = requests.get(f"http://{address}/metrics", timeout=30).text
    return {family(name) for name in re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)}


def family(name: str) -> str:
    """The metric that a series belongs to."""
    return re.sub(r"_(total|count|sum|bucket)$", "", name)
