"""What services tell systemd, on a real socket, and the units that start them."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from speedwell.cluster import parts, units
from speedwell.cluster.cli import speedwell
from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.processes import Processes
from speedwell.fs import insecure, systemd
from speedwell.fs.identity import joining, roles
from speedwell.fs.identity import main as certificates
from speedwell.fs.identity.authority import Authority
from speedwell.fs.nameserver import main as nameserver

WATCHDOG = {"WATCHDOG_USEC": "600000"}
DEADLINE_SECONDS = 200


@pytest.fixture
def told(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.settimeout(DEADLINE_SECONDS)
        yield found


@contextmanager
def service(told: socket.socket, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-m", f"speedwell.{arguments[0]}", *map(str, arguments[1:])],
                          env={**WATCHDOG, "NOTIFY_SOCKET": told.getsockname(), "PATH": "/usr/bin:/bin",
                               insecure.VARIABLE: insecure.LOOPBACK},
                          stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
    assert process.returncode == 0


def commands(tmp_path: Path) -> dict[str, list[object]]:
    return {
        "nameserver": ["fs.nameserver.main", "--listen", "127.0.0.1:0", "--new", "--directory", tmp_path / "names"],
        "dataserver": ["fs.dataserver.main", "--id", "a", "--listen", "127.0.0.1:0", "--nameserver", "127.0.0.1:9",
                       "--directory", tmp_path / "data"],
        "certificates": ["fs.identity.main", "--directory", tmp_path / "identity", "--listen", "127.0.0.1:0"],
        "controller": ["controller.main", "--openflow-port", 0, "--rest-port", 0]}


@pytest.mark.parametrize("role", ["nameserver", "dataserver", "certificates", "controller"])
def test_a_service_says_that_it_is_ready_and_then_that_it_works(role: str, told: socket.socket,
                                                                tmp_path: Path) -> None:
    Authority.make(tmp_path / "identity").ensure([(roles.AUTHORITY, roles.AUTHORITY)])
    with service(told, *commands(tmp_path)[role]):
        assert told.recv(100) == b"READY=1"
        assert [told.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3


def test_a_service_whose_door_is_shut_does_not_say_that_it_works(told: socket.socket, tmp_path: Path) -> None:
    with service(told, *commands(tmp_path)["nameserver"]) as process:
        assert [told.recv(100), told.recv(100)] == [b"READY=1", b"WATCHDOG=1"]
        process.send_signal(signal.SIGSTOP)
        told.settimeout(2.0)
        with pytest.raises(TimeoutError):
            for _ in range(100):
                told.recv(100)


@pytest.mark.parametrize("answers", [nameserver._answers, certificates._answers])
def test_a_door_that_is_full_works_and_one_that_is_silent_does_not(
        answers: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "SECONDS", 3.0)
    arguments = (None,) if answers is nameserver._answers else ()
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"127.0.0.1:{door.getsockname()[1]}"
        assert not answers(address, *arguments)

        def close_all() -> None:
            with suppress(OSError):
                while True:
                    door.accept()[0].close()

        closing = threading.Thread(target=close_all, daemon=True)
        closing.start()
        monkeypatch.setattr(nameserver, "CLOSED_SECONDS", 60.0)
        monkeypatch.setattr(joining, "SECONDS", 60.0)
        assert answers(address, *arguments)
        door.shutdown(socket.SHUT_RDWR)
        closing.join()


@pytest.mark.parametrize("name", ["{}/notify", "@speedwell-test-{}"])
def test_the_socket_may_have_a_name_without_a_file(name: str, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    place = name.format(tmp_path)
    monkeypatch.setenv("NOTIFY_SOCKET", place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(place.replace("@", "\0"))
        found.settimeout(DEADLINE_SECONDS)
        systemd.notify("READY=1")
        assert found.recv(100) == b"READY=1"


@pytest.mark.parametrize("place", [None, "", "relative", "/nowhere/at/all", "@nobody-listens"])
def test_without_systemd_nothing_happens(place: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if place is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", place)
    systemd.notify("READY=1")


def test_how_often_the_watchdog_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, seconds in (("60000000", 20.0), ("0", None), ("", None), ("x", None)):
        monkeypatch.setenv("WATCHDOG_USEC", text)
        assert systemd.watchdog_seconds() == seconds


def machine(directory: Path, *disks: Path) -> Processes:
    (directory / "identity").mkdir(parents=True)
    return parts._write(parts.Part(directory, "a", "127.0.0.1", str(directory.parent / "mnt"), disks, 10**9),
                        [roles.NAMESERVER, roles.DATASERVER, roles.ETCD, roles.CONTROLLER, roles.MOUNT,
                         roles.SCHEDULER, roles.METADATA_STORE, roles.HOST_AGENT],
                        {"nameserver": "127.0.0.1:7400", "controller": "127.0.0.1:8080", "host": "127.0.0.1",
                         "etcd": "a=127.0.0.1,b=127.0.0.2", "scheduler": "127.0.0.1:6657", "turns_key": "k" * 64,
                         "agent_key": "a" * 64})


def test_each_role_has_a_unit_and_the_mount_s_is_seen_by_everybody(tmp_path: Path) -> None:
    names = units.write(machine(tmp_path / "a"), tmp_path)
    assert names == [f"speedwell-{role}.service" for role in parts.ORDER]
    with pytest.raises(InvalidSetting, match="systemctl start speedwell-certificates"):
        parts.up(Processes(tmp_path / "a"))     # they would have the same ports
    texts = {name: (tmp_path / name).read_text() for name in names}
    for name, text in texts.items():
        assert "$" not in text
        assert ("Type=notify" in text) == ("etcd" not in name)      # that one would wait for other machines
        assert ("ProtectSystem=strict" in text) == ("mount" not in name)
        assert ("WatchdogSec=" in text) == (name not in ("speedwell-mount.service", "speedwell-etcd.service"))
        writable = [line for line in text.splitlines() if line.startswith("ReadWritePaths")]
        assert writable == [] if "mount" in name else [f"ReadWritePaths={tmp_path}/a"]


def test_a_server_may_write_to_the_disks_in_its_settings_also_to_one_that_was_added(tmp_path: Path) -> None:
    processes = machine(tmp_path / "a", tmp_path / "disk1")
    units.write(processes, tmp_path)
    unit = tmp_path / "speedwell-dataserver.service"
    assert f"ReadWritePaths={tmp_path}/a {tmp_path}/disk1\n" in unit.read_text()
    settings = tmp_path / "a/dataserver.toml"
    settings.write_text(settings.read_text().replace('disk1"', f'disk1", "{tmp_path}/disk2"'))
    done = CliRunner().invoke(speedwell, ["up", "--local", str(processes.directory)])
    assert "systemctl restart" in done.output
    assert f"ReadWritePaths={tmp_path}/a {tmp_path}/disk1 {tmp_path}/disk2\n" in unit.read_text()
    settings.write_text(settings.read_text().replace("disk2", "disk 2"))
    done = CliRunner().invoke(speedwell, ["up", "--local", str(processes.directory)])
    assert "name another directory" in str(done.exception) and "disk2" in unit.read_text()


def test_where_an_earlier_version_has_written_the_units_up_names_the_command_that_starts_them(tmp_path: Path) -> None:
    processes = machine(tmp_path / "a")
    processes.settings["systemd"] = True
    processes.save()
    done = CliRunner().invoke(speedwell, ["up", "--local", str(processes.directory)])
    assert "`systemctl start speedwell-" in str(done.exception)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    names = units.write(machine(tmp_path / "a"), tmp_path)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in names)],
                          capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stderr, done.stderr
    broken = tmp_path / names[0]
    broken.write_text(broken.read_text().replace("Type=notify", "Tipe=notify"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(broken)],
                          capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert "Tipe" in done.stderr


def test_a_directory_that_systemd_would_read_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="name another"):
        units.write(machine(tmp_path / "a b" / "c"), tmp_path)
    assert not list(tmp_path.glob("*.service"))


def test_nothing_begins_where_no_units_can_be_written(tmp_path: Path) -> None:
    for directory, place in ((tmp_path / "a b", tmp_path), (tmp_path / "a", tmp_path / "missing")):
        done = CliRunner().invoke(speedwell, ["init", str(directory), "--address", "127.0.0.1", "--systemd",
                                              str(place)])
        assert str(done.exception).startswith("--systemd: ")
        assert not directory.exists()
