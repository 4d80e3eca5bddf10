"""One Open vSwitch of its own for one switch: a database server and a forwarding daemon in the switch's namespace."""

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from speedwell.topo.emulation import processes
from speedwell.topo.emulation.errors import EmulationError
from speedwell.topo.emulation.requirements import switch_schema

BRIDGE = "br0"
DATABASE_PORT = 6640
_START_TIMEOUT_SECONDS = 20.0
_STOP_TIMEOUT_SECONDS = 5.0
_OWN_FILES = (("private-key", "private_key"), ("certificate", "certificate"), ("ca-cert", "ca_cert"))
"""What `ovs-vsctl set-ssl` names: options of the database's server, and columns of the database."""
_KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_TOP_PAD_": str(1 << 20)}
"""For glibc. Every look at a port takes 32 buffers of its MTU and gives them back; with jumbo frames the default is
to return that memory to the kernel and to fetch it again each time, which costs more than forwarding."""


class OpenVSwitch:
    """The two daemons of a switch. All their files live in `directory`, logs included."""

    def __init__(self, name: str, namespace_pid: int, directory: Path, marker: str) -> None:
        self._name = name
        self._namespace_pid = namespace_pid
        self._directory = directory
        self._environment = processes.environment(marker, {
            **{variable: str(directory) for variable in ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")},
            **_KEEP_FREED_MEMORY})
        self._database: subprocess.Popen[bytes] | None = None
        self._forwarder: subprocess.Popen[bytes] | None = None
        self._past_cpu_seconds = 0.0

    @property
    def running(self) -> bool:
        """Whether the forwarding daemon runs."""
        return self._forwarder is not None and self._forwarder.poll() is None

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the forwarding daemon since the switch was first started."""
        running = processes.cpu_seconds(self._forwarder.pid) if self._forwarder and self.running else 0.0
        return self._past_cpu_seconds + running

    def start(self, configuration: Sequence[str]) -> None:
        """Start both daemons on an empty database and apply the `ovs-vsctl` commands of `configuration`.

        Returns when the switch forwards by them; raises `EmulationError`.
        """
        self.stop()
        try:
            if self._directory.exists():
                shutil.rmtree(self._directory)
            self._directory.mkdir(parents=True)
        except OSError as error:
            raise EmulationError(f"{self._name}: cannot use the directory {error.filename}: "
                                 f"{error.strerror}") from None
        database = self._directory / "conf.db"
        processes.run(["ovsdb-tool", "create", str(database), str(switch_schema())], env=self._environment,
                      what=f"{self._name}: ovsdb-tool")
        self._database = self._spawn("ovsdb-server", [
            str(database), f"--remote=punix:{self._socket}",
            "--remote=db:Open_vSwitch,Open_vSwitch,manager_options",
            *(f"--{option}=db:Open_vSwitch,SSL,{column}" for option, column in _OWN_FILES)])
        self._await_socket(self._socket, self._database)
        self._spawn_forwarder()
        self.vsctl(*configuration)
        self._await_socket(self._openflow_socket, self._forwarder)

    def restart_forwarder(self) -> None:
        """Start the forwarding daemon again after `kill_forwarder`. It has its ports, but no flow entries."""
        if self._database is None or self._database.poll() is not None:
            raise EmulationError(f"{self._name}: its database server does not run, the switch cannot start")
        if self.running:
            return
        self._openflow_socket.unlink(missing_ok=True)
        self._spawn_forwarder()
        # ovs-vsctl returns from a change once the daemon has taken the whole configuration over
        self.vsctl("set", "Bridge", BRIDGE, f"other_config:dp-desc={self._name}")
        self._await_socket(self._openflow_socket, self._forwarder)

    def kill_forwarder(self) -> None:
        """Kill the forwarding daemon with SIGKILL: the switch is dead, its configuration stays."""
        self._past_cpu_seconds = self.cpu_seconds
        self._end(self._forwarder)
        self._forwarder = None

    def stop(self) -> None:
        """Kill both daemons: nothing of a switch outlives its namespace."""
        self.kill_forwarder()
        self._end(self._database)
        self._database = None

    def vsctl(self, *arguments: str) -> str:
        """Run `ovs-vsctl` on this switch; raises `EmulationError` with what it said."""
        # The database's socket exists a moment before it takes connections, hence --retry.
        return processes.run(["ovs-vsctl", f"--db=unix:{self._socket}", "--retry",
                              f"--timeout={_START_TIMEOUT_SECONDS:.0f}", *arguments],
                             env=self._environment, what=f"{self._name}: ovs-vsctl")

    def ofctl(self, command: str, *arguments: str, standard_input: str | None = None) -> str:
        """Run an `ovs-ofctl` command on the bridge of this switch; raises `EmulationError` with what it said."""
        argv = ["ovs-ofctl", "--protocols=OpenFlow13", "--timeout=10", command, f"unix:{self._openflow_socket}",
                *arguments]
        return processes.run(argv, env=self._environment, standard_input=standard_input,
                             what=f"{self._name}: ovs-ofctl {command}")

    @property
    def _socket(self) -> Path:
        return self._directory / "db.sock"

    @property
    def _openflow_socket(self) -> Path:
        return self._directory / f"{BRIDGE}.mgmt"

    def _spawn_forwarder(self) -> None:
        self._forwarder = self._spawn("ovs-vswitchd", [f"unix:{self._socket}"])

    def _spawn(self, program: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        argv = [program, *arguments, f"--unixctl={self._directory / program}.ctl", "-vconsole:off",
                f"--log-file={self._directory / program}.log"]
        with (self._directory / f"{program}.out").open("ab") as output:
            return subprocess.Popen(processes.in_namespace(self._namespace_pid, argv), stdin=subprocess.DEVNULL,
                                    stdout=output, stderr=output, env=self._environment, start_new_session=True)

    def _await_socket(self, path: Path, server: subprocess.Popen[bytes] | None) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while not path.is_socket():
            if server is None or server.poll() is not None or time.monotonic() > deadline:
                raise EmulationError(f"{self._name}: Open vSwitch did not start, see the logs in {self._directory}")
            time.sleep(0.005)

    @staticmethod
    def _end(daemon: subprocess.Popen[bytes] | None) -> None:
        if daemon is not None:
            daemon.kill()
            daemon.wait(_STOP_TIMEOUT_SECONDS)
