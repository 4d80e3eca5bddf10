"""Mininet's prompt for a fabric."""

from mininet.cli import CLI


class FabricCLI(CLI):  # type: ignore[misc]
    """Mininet's command line, which also takes names with hyphens: `edge-p0r0 ip link`."""

    identchars = f"{CLI.identchars}-"
