"""systemd units for what runs on a machine: a service a role, made from the template beside this module."""

import os
from importlib import resources
from pathlib import Path
from string import Template

from speedwell.cluster import parts
from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.processes import Processes, program
from speedwell.cluster.state_files import write_atomically
from speedwell.fs.identity.roles import MOUNT

UNSANDBOXED = (MOUNT,)
"""A namespace of its own for the sandbox would hide the mount from everybody else; and it waits for the nameserver as
long as that is away, which no watchdog is to end."""


def check(directory: Path, place: Path) -> None:
    """Raises InvalidSetting if there can be no units in `place` for what runs in `directory`."""
    if any(sign.isspace() or sign in "%$\\\"'" for sign in str(directory)):
        raise InvalidSetting(f"--systemd: {str(directory)!r} has signs that mean something to systemd: name another "
                             "directory")
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise InvalidSetting(f"--systemd: {place} is no directory that you may write to")


def write(processes: Processes, place: Path) -> list[str]:
    """Write the units of what runs here; returns their names, in the order in which they start. Raises
    InvalidSetting."""
    check(processes.directory, place)
    texts = {each: resources.files("cluster").joinpath("systemd", each).read_text()
             for each in ("speedwell.service", "hardening.conf")}
    directory = str(processes.directory)
    names = []
    for role in parts.present(processes):
        rest = "" if role in UNSANDBOXED else Template(texts["hardening.conf"]).substitute(directory=directory)
        text = Template(texts["speedwell.service"]).substitute(
            role=role, directory=directory, program=program(f"speedwell-{role}"), rest=rest)
        names.append(parts.unit_of(role))
        write_atomically(place / names[-1], text)
    processes.settings["systemd"] = True
    processes.save()
    return names
