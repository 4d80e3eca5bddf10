"""The `speedwell-controller` command."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import click

from speedwell.controller.errors import InvalidSettings
from speedwell.controller.policy_options import PolicyOption, policy_path_option
from speedwell.controller.settings import Settings, load_settings
from speedwell.fs import command_line, systemd, tracing
from speedwell.fs import insecure as insecure_servers
from speedwell.fs.errors import InvalidArgument

APPLICATIONS = ("topology.discovery", "topology.hosts", "tables.forwarding", "counters.poller", "reads.app",
                "placements.app", "metadata.app", "timeslices.app", "queues.app", "network.app", "storage.app",
                "page.app", "rest.app")
GROUP = "speedwell.applications"
"""Entry points of packages that bring a system: each is the module of an application (docs/controller-rooms.md)."""
STOP_SECONDS = 1.0
THREAD_TURN_SECONDS = 0.0005
"""How long a thread that computes schedules of coflows may hold up the one that waits for messages."""


@click.command("speedwell-controller", context_settings={
    "help_option_names": ["-h", "--help"], "auto_envvar_prefix": "SPEEDWELL_CONTROLLER", "show_default": True})
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="TOML file with settings.")
@click.option("--openflow-host", metavar="ADDRESS", help="Address that switches connect to.  [default: 127.0.0.1]")
@click.option("--openflow-port", type=int, help="0 means any free port.  [default: 6653]")
@click.option("--rest-host", metavar="ADDRESS", help="Address of the REST interface.  [default: 127.0.0.1]")
@click.option("--rest-port", type=int, help="0 means any free port.  [default: 8080]")
@click.option("--identity", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Serve REST over TLS and talk with switches over TLS alone, with this key and certificate of the "
              "role controller.")
@click.option("--etcd", metavar="HOST:PORT,...", help="Be one of several controllers, of which one leads by a "
              "lease in this etcd and the others stand by.")
@click.option("--etcd-identity", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Key and certificate for etcd, which is spoken to over TLS then.")
@click.option("--etcd-prefix", metavar="PREFIX", help="Where in etcd, one for each network.  [default: /speedwell]")
@click.option("--url", metavar="URL", help="With --etcd: where clients are told to ask this controller.  [default: "
              "the REST interface]")
@insecure_servers.option
@click.option("--poll-interval-seconds", type=float, help="Between two polls of switch counters.  [default: 1]")
@click.option("--replica-policy", cls=PolicyOption, metavar="POLICY", help="{replica}.")
@click.option("--path-policy", cls=PolicyOption, metavar="POLICY", help="{path}.")
@click.option("--placement-policy", cls=PolicyOption, metavar="POLICY", help="{placement}.")
@click.option("--hosts-file", type=click.Path(path_type=Path, dir_okay=False),
              help="Names of hosts for answers and the log, in the format of /etc/hosts.")
@click.option("--coflow-key-file", type=click.Path(path_type=Path, dir_okay=False),
              help="Schedule coflows; applications sign their reports with this key.")
@click.option("--coflow-host", metavar="ADDRESS", help="Address of coflow reports.  [default: 127.0.0.1]")
@click.option("--coflow-port", type=int, help="UDP port of coflow reports.  [default: 6655]")
@click.option("--placement-measurements", metavar="SOURCE",
              help="What measures links for placements: switches (default) or heartbeats of the hosts.")
@click.option("--coflow-policy", cls=PolicyOption, metavar="POLICY", help="{coflow}.")
@click.option("--coflow-rates", metavar="WHO",
              help="What holds flows to the policy's rates: meters (default) of switches, or agents of hosts.")
@click.option("--queues", metavar="SLICES",
              help="Into which queues ports between switches are sliced: none (default), mincof or priorities.")
@click.option("--trust-dscp", is_flag=True, default=None,
              help="Default traffic goes in the class that is its DSCP: only where an agent on each host sets it.")
@policy_path_option
@click.option("--log-level", metavar="LEVEL", help="debug, info (default), warning or error.")
def command(config: Path | None, **given: Any) -> None:
    """Run the SDN controller until it gets SIGTERM or SIGINT.

    Every option may also be given in the environment (SPEEDWELL_CONTROLLER_REST_PORT) or in the file of --config
    (rest_port = 8080), which takes the settings that have no option too.
    """
    _run(load_settings(config, **given))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry of the executable: ends the process with the exit status."""
    sys.exit(command_line.run(command, "speedwell-controller", arguments,
                              wrong_usage=(InvalidSettings, InvalidArgument)))


def _run(settings: Settings) -> None:
    insecure_servers.check(settings.identity, settings.insecure, openflow_host=str(settings.openflow_host),
                           rest_host=str(settings.rest_host))
    _patch()
    # Ryu and the applications may only be imported once the standard library is patched.
    from speedwell.controller.running import Controller

    stop = _stop_signal()
    controller = Controller(settings, _applications(settings))
    controller.begin_collecting_garbage()
    sys.setswitchinterval(THREAD_TURN_SECONDS)
    systemd.ready(f"ready openflow={controller.openflow_address} rest={controller.rest_address}")
    _tell_watchdog()
    stop.wait()
    controller.stop(STOP_SECONDS)
    tracing.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    # Green threads that are stuck in a system call must not keep the process.
    os._exit(0)


def _applications(settings: Settings) -> list[str]:
    """The modules of all applications: our own, and those of installed packages."""
    own = [*APPLICATIONS, *(["coflows.app"] if settings.coflow_key_file else [])]
    return [*(f"speedwell.controller.{name}" for name in own), *(entry.value for entry in entry_points(group=GROUP))]


def _patch() -> None:
    """Make the standard library's sockets green. Threads stay as they are: there is only one."""
    with warnings.catch_warnings():
        # eventlet announces at each start that it is no longer developed further.
        warnings.simplefilter("ignore")
        import eventlet

    eventlet.monkey_patch(thread=False)
    import speedwell.controller.application  # noqa: F401  (it makes Ryu importable)


def _tell_watchdog() -> None:
    """From the hub: a step that keeps all others waiting keeps this, too."""
    import eventlet

    seconds = systemd.watchdog_seconds()
    if seconds is not None:
        systemd.notify("WATCHDOG=1")
        eventlet.spawn_after(seconds, _tell_watchdog)


def _stop_signal() -> Any:
    """An event that SIGTERM and SIGINT send. A pipe wakes the hub, which a signal handler alone would not."""
    import eventlet
    from eventlet.event import Event
    from eventlet.green import socket

    stop = Event()
    awakened, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def wait() -> None:
        with wake, awakened:
            while True:
                numbers = awakened.recv(16)
                if not stop.ready() and {signal.SIGTERM, signal.SIGINT}.intersection(numbers):
                    stop.send()

    eventlet.spawn(wait)
    return stop


if __name__ == "__main__":
    main()
