"""`speedwell-host-agent`: the command line of the agent."""

from __future__ import annotations

import gc
import os
import signal
import socket
from ipaddress import IPv4Network
from pathlib import Path
from typing import NoReturn

import click

from speedwell.coflow.errors import CoflowError
from speedwell.coflow.host_heartbeat import interface_of
from speedwell.coflow.settings import SchedulerAddress, read_key
from speedwell.fs import command_line, logs, systemd
from speedwell.fs import insecure as insecure_servers
from speedwell.fs import metrics as prometheus
from speedwell.fs.addresses import parse_address
from speedwell.fs.config import config_option
from speedwell.fs.ending import run_to_the_end
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.option_types import Network, Size
from speedwell.host_agent import realtime as realtime_process
from speedwell.host_agent.agent import Agent
from speedwell.host_agent.class_shares import shares_of
from speedwell.host_agent.errors import InvalidSetting, MissingRequirement
from speedwell.host_agent.metrics import AgentMetrics
from speedwell.host_agent.uplink import Uplink


@click.command("speedwell-host-agent", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@config_option
@click.option("--address", required=True, metavar="ADDRESS",
              help="This host's IPv4 address on the network whose turns are given; its interface is the uplink.")
@click.option("--scheduler", required=True, metavar="HOST:PORT[,HOST:PORT]", help="The scheduler "
              "that gives the turns, then those that stand by.")
@click.option("--key-file", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="This agent's own key, which the scheduler makes.")
@click.option("--rate", type=click.IntRange(10_000, 1 << 40), metavar="BITS",
              help="What the uplink carries a second, in bits.  [default: what limits it today]", show_default=False)
@click.option("--queue-packets", type=click.IntRange(2, 100_000), metavar="N",
              help="Frames that each class of the uplink holds.  [default: as today, or 50]", show_default=False)
@click.option("--large", type=Size(1), default=100_000,
              help="A flow that has moved this many bytes waits for its turn; smaller ones never wait.")
@click.option("--first", type=Network(), multiple=True, metavar="NETWORK",
              help="Flows to and from these addresses go first and never wait, however large. May be repeated.")
@click.option("--shares", default="", metavar="PERCENT,...", show_default=False,
              help="Of the uplink, that the classes of traffic from 0 on have for certain; they share what is left. "
              "30,50,20 where the coflow policy is mincof.  [default: all classes in order]")
@realtime_process.option
@prometheus.OPTION
@click.option("--identity", type=click.Path(path_type=Path), metavar="DIR",
              help="What --metrics shows beyond loopback: key and certificates of a server or mount of this machine.")
@insecure_servers.option
@logs.OPTION
def command(address: str, scheduler: str, key_file: Path, rate: int | None, queue_packets: int | None, large: int,
            first: tuple[IPv4Network, ...], shares: str, realtime: bool, metrics: str | None,
            identity: Path | None, insecure: str | None, log_level: str) -> int:
    """Hold large flows until it is their turn, and queue this host's traffic by class, until SIGTERM or SIGINT."""
    logs.configure(log_level)
    (host, port), *others = map(_resolved, scheduler.split(","))
    scheduler_at = SchedulerAddress(host, port, read_key(key_file), tuple(others))
    prometheus.check(metrics)
    if metrics and not prometheus.is_loopback(metrics):
        insecure_servers.check(identity, insecure or insecure_servers.LOOPBACK,
                               metrics=parse_address(metrics, "--metrics", lowest_port=0)[0])
    class_shares = shares_of(shares)
    interface = interface_of(address)
    if os.geteuid() != 0:
        raise MissingRequirement("holding packets and queueing them by class needs root: run it with sudo")
    uplink = Uplink(interface, rate, queue_packets, large, first, class_shares)
    if realtime:
        realtime_process.run_before_all_others()
    agent = Agent(address, scheduler_at, uplink, large)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, agent.stop)
    told = f"ready {address} {interface} {uplink.rate_bps}"
    if metrics:                 # where it is refused, the guardian takes away what was made
        told += f" {prometheus.serve(metrics, [AgentMetrics(agent)], identity)}"
    gc.collect()
    gc.freeze()         # what start-up made stays: a look through it would hold a slice up
    systemd.ready(told)
    agent.run()
    return 0


def _resolved(address: str) -> tuple[str, int]:
    """A name is looked up once: the loop waits for nobody."""
    host, port = parse_address(address, "--scheduler")
    try:
        found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)
    except OSError as error:
        raise InvalidSetting(f"--scheduler: {host} has no IPv4 address: {error.strerror}") from None
    return str(found[0][4][0]), port


def status_of(arguments: list[str] | None = None) -> int:
    """Run an agent; returns the exit status: 0 stopped, 1 could not start, 2 bad options."""
    return command_line.run(command, "speedwell-host-agent", arguments,
                            wrong_usage=(InvalidArgument, InvalidSetting, CoflowError))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry of the executable: ends the process with the exit status."""
    run_to_the_end(lambda: status_of(arguments))


if __name__ == "__main__":
    main()
