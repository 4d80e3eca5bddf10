"""speedwell enter"""

from __future__ import annotations

import os
from pathlib import Path

import click

from speedwell.cluster.errors import ClusterError, InvalidSetting
from speedwell.cluster.machine_mounts import HOST_VARIABLE
from speedwell.fs.identity.places import VARIABLE

_BASH_PROMPT = '[ -f ~/.bashrc ] && . ~/.bashrc\nPS1="($SPEEDWELL_HOST) $PS1"\n'


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def enter(host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND, or a shell, on a HOST or switch of the emulated fabric.

    It sees that node's network and this machine's files, the names of all nodes resolve (`ping p0r1h0`), and it is
    told where coflows are reported, if anywhere. The prompt of a shell names the node; `machine` is this machine as a
    host of the fabric. The fabric is the one that `speedwell up --fabric` or the demonstration has left
    running.
    """
    from speedwell.cluster.supervisor import running
    from speedwell.topo.emulation.processes import in_namespace, with_host_names

    fabric = running()
    nodes = {**fabric["hosts"], **fabric["switches"]}
    if "machine" in fabric:
        nodes["machine"] = fabric["machine"]
    if host not in nodes:
        raise InvalidSetting(f"no host or switch is named {host!r}; there are {', '.join(sorted(nodes))}")
    if os.geteuid() != 0:
        raise ClusterError("entering a host of the fabric needs root: run the command with sudo")
    argv = command or shell(os.environ.get("SHELL", "/bin/sh"))
    command_line = in_namespace(nodes[host]["pid"], with_host_names(fabric["hosts_file"], argv))
    variables = {HOST_VARIABLE: host, "PS1": f"({host}) $ ", **fabric.get("environment", {})}
    if host in fabric["switches"]:
        variables["OVS_RUNDIR"] = f"{fabric['directory']}/switches/{host}"     # for ovs-vsctl, ovs-ofctl
    identity = {VARIABLE: fabric["identity"]} if fabric.get("identity") else {}
    os.execvpe(command_line[0], command_line, {**identity, **os.environ, **variables})


def shell(program: str) -> tuple[str, ...]:
    """The command line of a shell whose prompt begins with SPEEDWELL_HOST; one other than bash takes PS1 for that."""
    if Path(program).name != "bash":
        return (program,)
    reader, writer = os.pipe()      # bash sets PS1 itself when it starts
    os.write(writer, _BASH_PROMPT.encode())
    os.close(writer)
    os.set_inheritable(reader, True)
    return program, "--rcfile", f"/dev/fd/{reader}"
