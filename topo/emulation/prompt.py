"""Mininet's prompt for a fabric."""

from typing import Any

from mininet.cli import CLI
from mininet.log import output


class FabricCLI(CLI):  # type: ignore[misc]
    """Mininet's command line, which also takes names with hyphens (`edge-p0r0 ip link`) and piped commands."""

    identchars = f"{CLI.identchars}-"

    def waitForNode(self, node: Any) -> None:  # noqa: N802
        """Print what a node's command says until it ends."""
        if self.isatty():
            super().waitForNode(node)
            return
        # Mininet would feed the lines that follow in the pipe to the running command
        while node.waiting:
            output(node.monitor())
