"""A nameserver and dataservers as real processes on loopback, for integration tests.

    with LocalCluster(tmp_path, dataservers=3, chunk_size=65536) as cluster:
        client = cluster.client()
"""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from speedwell.fs import insecure, tokens
from speedwell.fs.client import Client
from speedwell.fs.dataserver.disk.version_file import SMALL_DATA_AT, SMALL_SUFFIX
from speedwell.fs.errors import DeviceBusy
from speedwell.fs.identity import places
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.roles import DATASERVER, MOUNT, NAMESERVER, OPERATOR, READER
from speedwell.fs.proto.speedwell_pb2 import Admission, Attributes
from speedwell.fs.tokens import READ, SERVE, WRITE
from tests.waiting import wait_until

SCRIPTS = Path(sys.executable).parent
PROGRAMS = ("speedwell-nameserver", "speedwell-dataserver")
START_SECONDS = 60.0
SECURE_VARIABLE = "SPEEDWELL_TEST_IDENTITY"
"""If set, all clusters have identities."""
OWNERS_VARIABLE = "SPEEDWELL_TEST_OWNERS"
"""If set, so many nameservers own the namespace of each cluster that does not say who keeps it."""


class Daemon:
    """One real process of the installation, which can be killed and started again on its old port."""

    def __init__(self, name: str, arguments: list[str], log: Path, listen_host: str = "127.0.0.1") -> None:
        self.name = name
        self.log = log
        self.host = listen_host
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._arguments = arguments

    @property
    def address(self) -> str:
        """host:port, once it is ready."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    def launch(self, *more: str) -> None:
        """Start the process without waiting until it serves."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._arguments, "--listen", f"{self.host}:{self.port}", *more],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, insecure.VARIABLE: insecure.FABRIC})     # where it has no identity

    def run_from(self, scripts: Path) -> None:
        """The next start is that of the program in `scripts`."""
        self._arguments = [str(scripts / Path(word).name) if Path(word).name in PROGRAMS else word
                           for word in self._arguments]

    def wait_ready(self) -> None:
        """Wait for the `ready` line and learn the port from it."""
        assert self.process is not None and self.process.stdout is not None
        line = _first_line(self.process.stdout, START_SECONDS)
        words = line.decode().split()
        assert words[:1] == ["ready"], f"{self.name} said {line!r}, its log:\n{self.log.read_text()}"
        self.port = int(words[1].rpartition(":")[2])

    def start(self) -> None:
        """Start the process and wait until it serves."""
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the process without ending it: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(self._is_paused, 15, f"{self.name} does not stop")

    def _is_paused(self) -> bool:
        """Whether every thread has stopped: one that still runs could take a request."""
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        try:
            return all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)
        except (FileNotFoundError, ProcessLookupError):     # a thread that ended just now
            return False

    def resume(self) -> None:
        """Let a paused process run on."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM, timeout_seconds: float = 20.0) -> int | None:
        """Signal the process if it runs, wait for its end and return its exit status."""
        if self.process is None:
            return None
        process, self.process = self.process, None
        process.send_signal(number)
        try:
            return process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self.name} did not end within {timeout_seconds:g} s of a signal") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def end(self) -> None:
        """Let go of what it needs beside its process."""


class LocalCluster:
    """A nameserver and `dataservers` dataservers on loopback, in `directory`.

    The dataservers are d0, d1, ... with the rack and pod that `places` names for each, by default two to a
    rack and two racks to a pod. Every one has an address of its own, 127.0.1.1, 127.0.1.2, ..., so that a
    test can be "on" the host of one of them. `prefixes` are words in front of the commands of some, which become
    them (`env NAME=VALUE`). A `secure` one has identities: of its servers, and `operator`, `reader` and `mount`;
    clients without one are the operator. Each dataserver has so many `directories`. The programs are those
    in `scripts`.
    """

    def __init__(self, directory: Path, *, dataservers: int = 3, replication: int | None = None,
                 chunk_size: int | None = None, deletion_grace_seconds: float | None = None,
                 places: list[tuple[str, str]] | None = None,
                 nameserver_arguments: tuple[str, ...] = (),
                 dataserver_arguments: tuple[str, ...] = (),
                 prefixes: Mapping[str, Sequence[str]] | None = None, secure: bool | None = None,
                 directories: int = 1, scripts: Path = SCRIPTS) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._scripts = scripts
        options = list(nameserver_arguments)
        # a file that has fewer replicas than it needs takes no change
        replication = replication or max(min(3, dataservers), 1)
        for flag, value in (("--replication", replication), ("--chunk-size", chunk_size),
                            ("--deletion-grace", deletion_grace_seconds)):
            if value is not None:
                options += [flag, str(value)]
        self._secure = bool(os.environ.get(SECURE_VARIABLE)) if secure is None else secure
        if self._secure:
            self.authority = Authority.make(directory / "identity")
            self.authority.ensure([("nameserver", NAMESERVER), ("operator", OPERATOR), ("reader", READER),
                                   ("mount", MOUNT), *((f"d{i}", DATASERVER) for i in range(dataservers))])
        options += self._identity_options("nameserver")
        self._prefixes = prefixes or {}
        program = [*self._prefixes.get("nameserver", ()), str(scripts / "speedwell-nameserver"), *options]
        self.nameserver = Daemon("nameserver", [*program, "--directory", str(directory / "nameserver")],
                                 directory / "nameserver.log")
        if (owners := int(os.environ.get(OWNERS_VARIABLE, "0"))) and not {"--etcd", "--mirrors"} & set(options):
            from tests.owner_daemons import OwnerDaemons

            self.nameserver = OwnerDaemons(owners, program, directory,
                                           self.identity("operator") if self._secure else None)
        self._new = not (directory / "nameserver").exists()
        self.dataservers: list[Daemon] = []
        self._places = places or [(f"r{i // 2}", f"p{i // 4}") for i in range(dataservers)]
        self._dataserver_arguments = dataserver_arguments
        self._count = dataservers
        self._directories = directories
        self._clients: list[Client] = []

    def __enter__(self) -> "LocalCluster":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.stop()

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start everything and wait until the nameserver knows every dataserver."""
        self.nameserver.launch(*(["--new"] if self._new else []))
        self.nameserver.wait_ready()
        if self._secure:
            places.remember(self.nameserver.address, self.identity("operator"))
        for index in range(self._count):
            rack, pod = self._places[index]
            name = f"d{index}"
            self.dataservers.append(Daemon(
                name, [*self._prefixes.get(name, ()),
                       str(self._scripts / "speedwell-dataserver"), "--id", name, "--rack", rack, "--pod", pod,
                       "--nameserver", self.nameserver.address, *self._directory_options(name),
                       *self._dataserver_arguments, *self._identity_options(name)],
                self.directory / f"{name}.log", listen_host=f"127.0.1.{index + 1}"))
        for daemon in self.dataservers:
            daemon.launch()
        for daemon in self.dataservers:
            daemon.wait_ready()
        self.wait_alive({daemon.name for daemon in self.dataservers})

    def stop(self) -> None:
        """Close the clients handed out and end every process."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._secure:
            places.forget(self.nameserver.address)
        daemons = [*self.dataservers, self.nameserver]
        for daemon in daemons:
            if daemon.process is not None:
                daemon.resume()
                daemon.process.terminate()
        for daemon in daemons:
            daemon.stop()
        self.nameserver.end()

    def restart(self) -> None:
        """kill -9 everything at once, and start it again on the same ports."""
        for daemon in [self.nameserver, *self.dataservers]:
            daemon.kill()
        self.revive()

    def revive(self) -> None:
        """Start again, on their old ports, the processes that were killed; let those run on that are paused."""
        daemons = [self.nameserver, *self.dataservers]
        for daemon in daemons:
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.resume()
        dead = [daemon for daemon in daemons if daemon.process is None]
        for daemon in dead:
            daemon.launch()
        for daemon in dead:
            daemon.wait_ready()
        if dead:
            self.wait_alive({daemon.name for daemon in self.dataservers})

    def save_data(self, directory: Path) -> None:
        """Copy what each dataserver has to `directory`; none of them replaces a file of its own meanwhile."""
        for daemon in self.dataservers:
            daemon.pause()
            shutil.copytree(self.data_directory(daemon.name), directory / daemon.name)
            daemon.resume()

    # ------------------------------------------------------------------ looking in

    def identity(self, name: str) -> Path:
        """What goes after --identity."""
        return self.authority.directory / name

    def _identity_options(self, name: str) -> list[str]:
        return ["--identity", str(self.identity(name))] if self._secure else []

    def client(self, **options: Any) -> Client:
        """A client of this cluster, closed with it."""
        client = Client(self.nameserver.address, **options)
        self._clients.append(client)
        return client

    def set_quota(self, path: str, *, max_bytes: int, max_files: int | None) -> None:
        """Once no other directory's quota is being counted any more."""
        client = self.client()

        def is_set() -> bool:
            with suppress(DeviceBusy):
                client.metadata.operator.set_quota(path, max_bytes=max_bytes, max_files=max_files)
                return True
            return False

        wait_until(is_set, 30, "another directory's quota is being counted")

    def dataserver(self, name: str) -> Daemon:
        """The dataserver with this id."""
        return next(daemon for daemon in self.dataservers if daemon.name == name)

    def data_directory(self, name: str, number: int = 0) -> Path:
        """Where a dataserver keeps its chunks: the first of its `directories`, or another one."""
        return self.directory / (f"{name}-{number}" if number else name)

    def _directory_options(self, name: str) -> list[str]:
        return [word for number in range(self._directories)
                for word in ("--directory", str(self.data_directory(name, number)))]

    def as_server(self, attributes: Attributes) -> Attributes:
        """The same with the token that dataservers show to each other."""
        admission = Admission.FromString((self.data_directory(self.dataservers[0].name) / "admission").read_bytes())
        key = admission.keys[0]
        changed = Attributes()
        changed.CopyFrom(attributes)
        changed.token = tokens.sign(key.number, key.secret, attributes.file_id, READ | WRITE | SERVE,
                                    int(time.time() * 1000), 60_000)
        return changed

    def stored(self, name: str, file_id: str) -> Path:
        """The directory that a file has on a dataserver; if it is a small one, the file in place of that."""
        directory = self.data_directory(name) / file_id[:2] / file_id
        small = directory.with_name(directory.name + SMALL_SUFFIX)
        return small if small.exists() else directory

    def record(self, name: str, file_id: str) -> Path:
        """The file that begins with a stored file's length."""
        stored = self.stored(name, file_id)
        return stored if stored.is_file() else stored / "meta"

    def chunk_bytes(self, name: str, file_id: str) -> bytes:
        """What lies in a file's chunks on one dataserver, committed or not."""
        stored = self.stored(name, file_id)
        if stored.is_file():
            return stored.read_bytes()[SMALL_DATA_AT:]
        chunks = sorted((path for path in stored.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        return b"".join(_bytes_now(path) for path in chunks)

    def stored_bytes(self, name: str, file_id: str) -> bytes:
        """The committed content of a file on one dataserver, straight from its disk."""
        record = self.record(name, file_id)
        if not record.exists():
            return b""
        return self.chunk_bytes(name, file_id)[:int(record.read_bytes()[:20])]

    def wait_alive(self, names: set[str], timeout_seconds: float = START_SECONDS) -> None:
        """Wait until the nameserver counts exactly `names` as alive."""
        with Client(self.nameserver.address, metadata_cache_seconds=0) as client:
            wait_until(lambda: {status.server.dataserver_id for status in client.statistics().dataservers
                                if status.server.alive} == names,
                       timeout_seconds, f"the nameserver does not see exactly {sorted(names)} alive")


def _first_line(stream: Any, timeout_seconds: float) -> bytes:
    deadline = time.monotonic() + timeout_seconds
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(0.0, deadline - time.monotonic())):
            byte = os.read(stream.fileno(), 1)
            if not byte:
                break
            line += byte
    return line


def _bytes_now(path: Path) -> bytes:
    """What a chunk holds; nothing if its dataserver took it out since it was listed."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
