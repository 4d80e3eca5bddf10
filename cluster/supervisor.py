"""Keeps a cluster on an emulated fabric running in the background.

The process that builds a Mininet network has to stay: the hosts' shells are its children. So `up` starts
this module as a process of its own and follows its output, a JSON object a line:
`{"progress": TEXT}` while it starts, then `{"ready": DESCRIPTION}` or `{"error": TEXT}`. From then on it starts
again what ends of the services. `down` ends it with SIGTERM; if it was killed, `down` clears away what it left.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from speedwell.cluster import current, identities, local_metrics, mounts
from speedwell.cluster.errors import AlreadyRunning, ClusterError, NotRunning, StartFailed, StopFailed
from speedwell.cluster.fabric import NAMESERVER, REST, FabricCluster
from speedwell.cluster.fabric_settings import FabricSettings
from speedwell.cluster.processes import Processes, log_tail, start_ticks
from speedwell.cluster.state_files import STATE_MODE, exclusive
from speedwell.cluster.supervision import Supervision
from speedwell.fs import durable, logs
from speedwell.fs.errors import SpeedwellError
from speedwell.fs.identity.keeper import keep_renewed
from speedwell.topo.emulation import EmulationError, capacity, remove_leftovers

STOP_TIMEOUT_SECONDS = 90.0
STATE_DIRECTORY = Path("/run/speedwell")
STATE_FILE = STATE_DIRECTORY / "fabric.json"
LOCK_FILE = STATE_DIRECTORY / "fabric.lock"
LOG = "supervisor.log"


# ------------------------------------------------------------ called by the command line


def up(settings: FabricSettings, progress: Callable[[str], None] = lambda message: None) -> dict[str, Any]:
    """Start a cluster in the background; returns its description once everything serves.

    Raises AlreadyRunning if there is one, StartFailed with the reason otherwise; nothing stays behind then,
    nor when the caller is interrupted.
    """
    if os.geteuid() != 0:
        raise ClusterError("an emulated fabric needs root: network namespaces, Open vSwitch; "
                           "or try `speedwell up --local`")
    capacity.check_number(settings.fabric, machine=settings.machine)
    _refuse_second()
    _clear_leftovers(progress)
    settings.directory.mkdir(parents=True, exist_ok=True)
    log = settings.directory / LOG
    log.unlink(missing_ok=True)
    with log.open("ab") as errors:      # to append: it is rotated by being emptied
        child = subprocess.Popen([sys.executable, "-m", "speedwell.cluster.supervisor"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                 start_new_session=True, cwd="/")
    try:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin as settings_of_child:     # its end is reported below
            settings_of_child.write(settings.model_dump_json().encode())    # too long for an argument
        return _follow(child, log, progress)
    except BaseException:
        child.terminate()
        child.wait(STOP_TIMEOUT_SECONDS)
        raise


def up_again(progress: Callable[[str], None] = lambda message: None) -> tuple[dict[str, Any], bool]:
    """What runs, or, if its supervisor or a node of the fabric was killed, the same cluster started again with its
    files; and whether it was started. Raises NotRunning if there was none, and as `up`."""
    with contextlib.suppress(NotRunning):
        found = running()
        nodes = {**found["hosts"], **found["switches"], "machine": found.get("machine")}
        gone = [name for name, node in nodes.items() if node is not None and start_ticks(node["pid"]) is None]
        if not gone or os.geteuid() != 0:
            return found, False
        progress(f"{', '.join(gone)} of the fabric {'is' if len(gone) == 1 else 'are'} gone: starting it again")
        _signal_supervisor(found, signal.SIGKILL)       # at its end it would remove the files
    state = _state()
    if state is None:
        raise NotRunning("no cluster on an emulated fabric was left here; start one with `speedwell up --fabric`")
    # An earlier version knew no identities: its etcd has none for good.
    return up(FabricSettings.model_validate({"identity": False, **state["settings"]}), progress), True


def running() -> dict[str, Any]:
    """Description of the cluster that runs on this machine. Raises NotRunning."""
    state = _supervised()
    if state is None:
        raise NotRunning("no cluster on an emulated fabric runs here; start one with `speedwell up --fabric`")
    if "hosts" not in state:
        raise NotRunning(f"the cluster on {state['fabric']} is still being started")
    return state


def down() -> None:
    """Stop the cluster on the emulated fabric, or clear what a killed one left. Raises NotRunning, StopFailed."""
    state = _state()
    if state is None:
        raise NotRunning("no cluster on an emulated fabric runs here")
    if _supervised():
        _signal_supervisor(state, signal.SIGTERM)
    _clear_leftovers()


def _signal_supervisor(state: dict[str, Any], number: signal.Signals) -> None:
    """Send it a signal that ends it, and wait for that. Raises StopFailed."""
    pid = state["supervisor"]["pid"]
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, number)
            if not select.select([handle], [], [], STOP_TIMEOUT_SECONDS)[0]:
                raise StopFailed(f"the supervisor (pid {pid}) did not stop in {STOP_TIMEOUT_SECONDS:g} s; "
                                 f"see {state['directory']}/{LOG}")
        finally:
            os.close(handle)


def _state() -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads(STATE_FILE.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return state


def _supervised() -> dict[str, Any] | None:
    """The state, if its supervisor runs."""
    state = _state()
    is_running = state and start_ticks(state["supervisor"]["pid"]) == state["supervisor"]["start_ticks"]
    return state if is_running else None


def _refuse_second() -> None:
    state = _supervised()
    if state is not None:
        raise AlreadyRunning(f"a cluster on {state['fabric']} runs already, or is being started "
                             f"(supervisor pid {state['supervisor']['pid']}); stop it with `speedwell down`")


def _clear_leftovers(progress: Callable[[str], None] = lambda message: None) -> None:
    """Remove what a supervisor that was killed left: services, mounts, switches, its state file."""
    state = _state()
    if state is None:
        return
    Processes(Path(state["directory"])).stop()
    for mountpoint in mounts.of_installation(state["directory"], state.get("nameserver", NAMESERVER)):
        if str(mountpoint) not in state["mounts"].values():
            progress(f"unmounting {mountpoint}, whose network is gone: mount it again then")
        mounts.unmount(mountpoint, lazy=True)
    for place in state["mounts"].values():
        with contextlib.suppress(OSError):
            Path(place).rmdir()
    remove_leftovers()
    identities.forget(f"{state.get('nameserver', NAMESERVER)},{REST}")
    current.forget(state["directory"])
    STATE_FILE.unlink(missing_ok=True)


def _follow(child: subprocess.Popen[bytes], log: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            message = json.loads(line)
            if "progress" in message:
                progress(message["progress"])
            elif "error" in message:
                child.wait(STOP_TIMEOUT_SECONDS)
                raise StartFailed(message["error"])
            else:
                description: dict[str, Any] = message["ready"]
                return description
    raise StartFailed(f"the supervisor stopped before the cluster was ready{log_tail(log)}")


# ------------------------------------------------------------ the background process


def main() -> None:
    """Entry of the background process; its standard input is a FabricSettings document."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = FabricSettings.model_validate_json(sys.stdin.read())
    with exclusive(LOCK_FILE, "a cluster on an emulated fabric"):
        _supervise(FabricCluster(settings))


def _supervise(cluster: FabricCluster) -> None:
    try:
        with _announced(cluster):
            cluster.start(lambda text: _say({"progress": text}))
            supervision = Supervision(cluster.processes, cluster.wanted, cluster.command_again)
            local_metrics.serve(cluster.processes, supervision)
            _say({"ready": _write_state(cluster, cluster.description())})
            _detach()
            logs.configure(file=cluster.settings.directory / LOG)
            if cluster.settings.identity:
                threading.Thread(target=keep_renewed, daemon=True,
                                 args=(cluster.settings.directory / identities.FOLDER, threading.Event())).start()
            supervision.run()
    except KeyboardInterrupt:
        pass
    except (ClusterError, EmulationError, SpeedwellError) as error:
        _say({"error": str(error)})
    except OSError as error:
        problem = f"{error.filename or 'the machine'}: {error.strerror or error}"
        logging.error("%s", problem)   # once it is up, nobody else is told
        _say({"error": problem})
    except Exception as error:
        traceback.print_exc()
        log = cluster.settings.directory / LOG
        _say({"error": f"unexpected {type(error).__name__}: {error}; see {log}"})


@contextlib.contextmanager
def _announced(cluster: FabricCluster) -> Iterator[None]:
    """From the first moment the state file says what to clear, or to start again, if this process is killed."""
    mountpoints = {host: str(path) for host, path in cluster.settings.mounts.items()}
    _write_state(cluster, {"kind": "fabric", "fabric": cluster.settings.fabric.name, "mounts": mountpoints})
    try:
        cluster.processes.save()
        current.write(current.Current("fabric", str(cluster.settings.directory), cluster.nameserver,
                                      cluster.controller, list(mountpoints.values()), cluster.operator,
                                      cluster.settings.systems))
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)   # a second Ctrl-C must not stop the clean-up half-way
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        cluster.stop()
        current.forget(cluster.settings.directory)
        STATE_FILE.unlink(missing_ok=True)


def _write_state(cluster: FabricCluster, description: dict[str, Any]) -> dict[str, Any]:
    pid = os.getpid()
    state = {**description, "directory": str(cluster.settings.directory),
             "settings": cluster.settings.model_dump(mode="json"),
             "supervisor": {"pid": pid, "start_ticks": start_ticks(pid)}}
    STATE_DIRECTORY.mkdir(parents=True, exist_ok=True)
    durable.replace(STATE_FILE, (json.dumps(state, indent=2) + "\n").encode(), STATE_MODE)
    return state


def _say(message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):   # the caller was killed; `down` finds us by the state
        print(json.dumps(message), flush=True)


def _detach() -> None:
    """Let go of the caller's pipe, so that nothing waits for it to close."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    main()
