"""The `speedwell-controller` command as a process, on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedwell.cluster.nameservers import free_ports
from speedwell.fs import insecure

PROGRAM = str(Path(sys.executable).with_name("speedwell-controller"))
ANY_PORTS = ("--openflow-port", "0", "--rest-port", "0")


@contextmanager
def controller(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={"PATH": "/usr/bin:/bin", insecure.VARIABLE: insecure.LOOPBACK, **environment})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def refusal(*arguments: str, **environment: str) -> str:
    """What the controller says when it does not start."""
    with controller(*arguments, **environment) as process:
        out, message = process.communicate(timeout=60)
        assert process.returncode not in (0, None) and out == ""
        assert "Traceback" not in message
        return message.strip()


def addresses(ready: str) -> dict[str, tuple[str, int]]:
    word, *pairs = ready.split()
    assert word == "ready"
    return {name: (host, int(port)) for name, _, address in (pair.partition("=") for pair in pairs)
            for host, _, port in [address.rpartition(":")]}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_serves_there_alone_and_ends_when_told(number: signal.Signals) -> None:
    with controller(*ANY_PORTS) as process:
        assert process.stdout is not None
        where = addresses(process.stdout.readline())
        for host, port in (where["openflow"], where["rest"]):
            assert host == "127.0.0.1"
            socket.create_connection((host, port), timeout=2).close()
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.2", port), timeout=2)
        process.send_signal(number)
        assert process.wait(60) == 0


def test_it_takes_at_most_280_mebibytes() -> None:
    with controller(*ANY_PORTS) as first:
        # the first one after a change compiles what later ones load, and the compiler takes its own
        assert first.stdout is not None and first.stdout.readline()
    with controller(*ANY_PORTS) as process:
        assert process.stdout is not None and process.stdout.readline()
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        # About 100 of them are numba, without which a read costs two to three times the processor time.
        assert resident_kib < 280 * 1024


def test_it_begins_anew_without_the_keeper_of_its_lease_and_leaves_no_zombie() -> None:
    openflow, rest, etcd = free_ports("127.0.0.1", 3)
    with controller("--openflow-port", str(openflow), "--rest-port", str(rest),
                    "--etcd", f"127.0.0.1:{etcd}") as process:
        assert process.stdout is not None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert process.stdout.readline().startswith("ready")
        [keeper] = children.read_text().split()
        os.kill(int(keeper), signal.SIGKILL)
        assert process.stdout.readline().startswith("ready")
        assert len(children.read_text().split()) == 1
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.parametrize(("taken", "other", "what"), [
    ("--openflow-port", "--rest-port", "cannot listen for switches at 127.0.0.1:"),
    ("--rest-port", "--openflow-port", "cannot serve REST at 127.0.0.1:"),
])
def test_a_taken_port_is_one_clear_message(taken: str, other: str, what: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        message = refusal(taken, str(holder.getsockname()[1]), other, "0")
    assert message.splitlines()[-1].startswith(f"speedwell-controller: {what}")
    assert "Address already in use" in message


@pytest.mark.parametrize(("shared", "other", "name"), [
    ("--openflow-port", "--rest-port", "openflow"), ("--rest-port", "--openflow-port", "rest"),
])
def test_a_second_controller_never_shares_the_port_of_the_first(shared: str, other: str, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with controller(shared, port, other, "0") as first:
        assert first.stdout is not None and f"{name}=127.0.0.1:{port}" in first.stdout.readline()
        assert "Address already in use" in refusal(shared, port, other, "0")


@pytest.mark.parametrize(("toml", "what"), [
    ("replica_polcy = 'random'", "unknown setting 'replica_polcy'"),
    ("replica_policy = 'best'", "setting 'replica_policy'"),
    ("probe_interval_seconds = -1", "setting 'probe_interval_seconds'"),
    ("rest_port = 70000", "setting 'rest_port'"),
    ("openflow_host = 'example'", "setting 'openflow_host'"),
    ("this is no TOML", "cannot read the settings in"),
])
def test_a_bad_settings_file_is_one_clear_message(tmp_path: Path, toml: str, what: str) -> None:
    file = tmp_path / "controller.toml"
    file.write_text(toml)
    message = refusal("--config", str(file))
    assert len(message.splitlines()) == 1 and what in message


def test_a_settings_file_that_is_not_there_is_one_clear_message(tmp_path: Path) -> None:
    message = refusal("--config", str(tmp_path / "nowhere.toml"))
    assert len(message.splitlines()) == 1 and "cannot read the settings in" in message


def test_options_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text("rest_host = '127.0.0.2'\nopenflow_host = '127.0.0.2'\nopenflow_port = 0\nrest_port = 0\n")
    with controller("--config", str(file), "--rest-host", "127.0.0.4",
                    SPEEDWELL_CONTROLLER_REST_HOST="127.0.0.3") as process:
        assert process.stdout is not None
        where = addresses(process.stdout.readline())
    assert (where["openflow"][0], where["rest"][0]) == ("127.0.0.2", "127.0.0.4")
