"""speedwell enter"""

from __future__ import annotations

import os

import click

from cluster.errors import InvalidSetting


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def enter(host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND, or a shell, on a HOST of the emulated fabric.

    It sees that host's network and this machine's files, and is told where coflows are reported, if anywhere. The
    fabric is the one that `speedwell up --fabric` or the demonstration has left running.
    """
    from cluster.supervisor import running
    from topo.emulation.processes import in_namespace

    fabric = running()
    hosts = fabric["hosts"]
    if host not in hosts:
        raise InvalidSetting(f"no host is named {host!r}; there are {', '.join(sorted(hosts))}")
    argv = command or (os.environ.get("SHELL", "/bin/sh"),)
    command_line = in_namespace(hosts[host]["pid"], argv)
    os.execvpe(command_line[0], command_line, {**os.environ, **fabric.get("environment", {})})
