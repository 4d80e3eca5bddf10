"""The identities of an installation: made by `up`, renewed by its supervisor.

    DIRECTORY/identity/    as fs.identity.authority has it; NAME is the process's, `operator` is for commands,
                           tokens/reader for browsers and Prometheus
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from speedwell.cluster.processes import Command, Processes
from speedwell.fs import insecure
from speedwell.fs.identity import bearer, places
from speedwell.fs.identity.roles import CONTROLLER, OPERATOR, READER

FOLDER = "identity"
ENCRYPTING = ("speedwell-nameserver", "speedwell-dataserver")
SERVERS = (*ENCRYPTING, "speedwell-controller", "speedwell-metadata-store", "speedwell-timeslices",
           "speedwell-host-agent")
OPERATORS = ("operator", OPERATOR)


def prepare(directory: Path, names: Sequence[tuple[str, str]], host: str) -> None:
    """Issue what (name, role) lacks in the installation in `directory`, renew what is due. `host` is the IP address
    of members of etcd and of the controller. Raises IdentityError."""
    from speedwell.fs.identity.authority import Authority  # takes 30 ms

    Authority.make(directory / FOLDER).ensure(names, host)
    if any(role == CONTROLLER for _, role in names):
        bearer.ensure(directory / FOLDER, READER)


def of_operator(directory: Path | str) -> Path:
    """With which commands talk to the installation in `directory`."""
    return Path(directory) / FOLDER / OPERATORS[0]


def with_identity(processes: Processes, command: Command, name: str | None = None) -> Command:
    """Of an installation that has identities, the command with that of `name`, by default its own; else as insecure
    as the installation: on loopback, or on its fabric."""
    if not processes.settings.get("identity"):
        where = processes.settings.get("insecure", insecure.LOOPBACK)
        return replace(command, argv=[*command.argv, *(
            [f"--insecure={where}"] if Path(command.argv[0]).name in SERVERS else [])])
    encrypts = processes.settings.get("encrypt_data") and Path(command.argv[0]).name in ENCRYPTING
    return replace(command, argv=[*command.argv, *(["--encrypt-data"] if encrypts else []), "--identity",
                                  str(processes.directory / FOLDER / (name or command.name))])


def remember(nameserver: str, directory: Path) -> None:
    """Programs on this machine that name the nameserver alone find the operator's identity, where this user can write
    that down."""
    with suppress(OSError):
        places.remember(nameserver, of_operator(directory))


def forget(nameserver: str) -> None:
    """Undo `remember`."""
    with suppress(OSError):
        places.forget(nameserver)
