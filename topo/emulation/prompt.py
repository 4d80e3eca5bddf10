"""Mininet's prompt for a fabric."""

import re
from typing import Any

from mininet.cli import CLI
from mininet.log import error, output

from speedwell.topo.emulation.throughput import measure

_IPERF_SECONDS = 5


class FabricCLI(CLI):  # type: ignore[misc]
    """Mininet's command line, which also takes names with hyphens (`edge-p0r0 ip link`) and piped commands.

    A command that fails says so and leaves the prompt.
    """

    identchars = f"{CLI.identchars}-"

    def onecmd(self, line: str) -> Any:
        """Run one line; true ends the prompt."""
        try:
            return super().onecmd(line)
        except Exception as failure:
            error(f"{failure or type(failure).__name__}\n")
            return False

    def do_iperf(self, line: str) -> None:
        """TCP throughput between two hosts, by iperf3.
           Usage: iperf [from to]"""
        self._iperf(line.split(), None)

    def do_iperfudp(self, line: str) -> None:
        """UDP throughput between two hosts at a rate such as 10M, by iperf3.
           Usage: iperfudp rate [from to]"""
        rate, *names = line.split() or ["10M"]
        if not re.fullmatch(r"\d+(\.\d+)?[KMG]?", rate, re.IGNORECASE):
            error(f"{rate!r} is not a rate such as 10M\n")
            return
        self._iperf(names, rate)

    def waitForNode(self, node: Any) -> None:  # noqa: N802
        """Print what a node's command says until it ends."""
        if self.isatty():
            super().waitForNode(node)
            return
        # Mininet would feed the lines that follow in the pipe to the running command
        while node.waiting:
            output(node.monitor())

    def _iperf(self, names: list[str], udp_rate: str | None) -> None:
        hosts = {host.name: host for host in self.mn.hosts}
        ends = names or [self.mn.hosts[0].name, self.mn.hosts[-1].name]
        unknown = [name for name in ends if name not in hosts]
        if len(ends) != 2 or ends[0] == ends[1] or unknown:
            error(f"no host is named {unknown[0]!r}\n" if unknown else "give two hosts: the sender, the receiver\n")
            return
        bits_per_second = measure(hosts[ends[0]], hosts[ends[1]], _IPERF_SECONDS, udp_rate)
        output(f"{ends[0]} to {ends[1]}: {bits_per_second / 1e6:.1f} Mbit/s by {'UDP' if udp_rate else 'TCP'} "
               f"in {_IPERF_SECONDS} s\n")
