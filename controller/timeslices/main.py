"""`speedwell-timeslices`: the command line of XCo's scheduler."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import NoReturn

import click

from speedwell.coflow.errors import CoflowError
from speedwell.coflow.settings import read_key
from speedwell.controller.policy.errors import PolicyError
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.controller.policy_options import PolicyOption, policy_path_option
from speedwell.controller.timeslices.service import TurnService
from speedwell.controller.timeslices.standby import FirstScheduler
from speedwell.controller.timeslices.turns import TurnKeeper
from speedwell.fs import command_line, logs, systemd
from speedwell.fs import insecure as insecure_servers
from speedwell.fs import metrics as prometheus
from speedwell.fs.addresses import parse_address
from speedwell.fs.config import config_option
from speedwell.fs.controller import Controller
from speedwell.fs.ending import run_to_the_end
from speedwell.fs.errors import InvalidArgument
from speedwell.host_agent import realtime as realtime_process


@click.command("speedwell-timeslices", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@config_option
@click.option("--controller", "controller_url", default="http://127.0.0.1:8080", metavar="URL[,URL]",
              help="The SDN controller, whose /v1/network lists the links.")
@command_line.identity_option("The scheduler's")
@insecure_servers.option
@click.option("--listen", default="127.0.0.1:6657", metavar="HOST:PORT", help="UDP address of agents' reports.")
@click.option("--standby-for", metavar="HOST:PORT", help="Where another scheduler listens: give turns only "
              "while that one is silent. Agents must know both.")
@click.option("--key-file", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="The master key, from which the keys of agents are made.")
@click.option("--policy", cls=PolicyOption, default=POLICIES.default(Kind.TIMESLICES), show_default=False,
              metavar="POLICY", help="{timeslices}.")
@click.option("--slice-ms", type=command_line.Number(1, 1000), default=10.0,
              help="A slice: at least as long as ten frames take on a host's link. All slices of those who share a "
              "link together should stay below 200 ms, TCP's least timeout.")
@click.option("--no-turns", is_flag=True, help="Give no turns: only tell agents the classes of coflows' flows.")
@policy_path_option
@realtime_process.option
@prometheus.OPTION
@logs.OPTION
def command(controller_url: str, identity: Path | None, insecure: str | None, listen: str, standby_for: str | None,
            key_file: Path, policy: str, slice_ms: float, no_turns: bool, realtime: bool, metrics: str | None,
            log_level: str) -> int:
    """Give hosts' agents their turns on links that are contended, until SIGTERM or SIGINT."""
    logs.configure(log_level)
    address = parse_address(listen, "--listen", lowest_port=0)
    insecure_servers.check(identity, insecure, listen=address[0])
    controller = Controller(controller_url, identity)
    prometheus.check(metrics)
    POLICIES.get(Kind.TIMESLICES, policy)
    keeper, key = TurnKeeper(policy, slice_ms / 1e3, Network(), not no_turns), read_key(key_file)
    try:
        first = FirstScheduler(parse_address(standby_for, "--standby-for"), key, _own_address(address[0])) \
            if standby_for else None
        service = TurnService(keeper, key, slice_ms / 1e3, address, controller, first)
    except OSError as error:
        raise InvalidArgument(f"--listen: cannot listen at {listen}: {error.strerror or error}") from None
    told = "ready {}:{}".format(*service.address)
    if metrics:
        from speedwell.controller.timeslices.metrics import SchedulerMetrics

        told += f" {prometheus.serve(metrics, [SchedulerMetrics(service)], identity)}"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, service.stop)
    systemd.ready(told)
    if realtime:
        realtime_process.run_before_all_others()
    service.run()
    return 0


def _own_address(host: str) -> str:
    """By which we register with another scheduler. Raises OSError, InvalidArgument."""
    address = socket.gethostbyname(host)
    if address == "0.0.0.0":
        raise InvalidArgument("--standby-for needs an address of this host in --listen, not 0.0.0.0")
    return address


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry of the executable: ends the process with the exit status."""
    run_to_the_end(lambda: command_line.run(command, "speedwell-timeslices", arguments,
                                            wrong_usage=(InvalidArgument, PolicyError, CoflowError)))


if __name__ == "__main__":
    main()
