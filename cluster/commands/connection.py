"""Options that say which installation a command talks to, and the client for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from speedwell.cluster import current, fabric_network
from speedwell.cluster.errors import NotOnFabric, NotRunning
from speedwell.fs.addresses import is_ip, parse_address
from speedwell.fs.ending import interrupted_after
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.identity.places import VARIABLE

if TYPE_CHECKING:
    from speedwell.fs.client import Client

F = TypeVar("F", bound=Callable[..., Any])
NO_CONTROLLER = "none"


@dataclass(frozen=True)
class Target:
    """The installation to talk to: `nameserver` HOST:PORT, `controller` URL or None."""

    nameserver: str
    controller: str | None = None
    local_host: str | None = None
    replica_policy: str | None = None
    path_policy: str | None = None
    parts: int | None = None
    """The most replicas that a read comes from at once; None: the client library's default."""
    identity: Path | None = None
    """A directory with this user's certificate; None: that of SPEEDWELL_IDENTITY, or what `up` made here."""
    off_fabric: str = ""
    """Why this process can reach no dataserver, if that is known."""

    def connect(self, *, for_bytes: bool = False) -> Client:
        """A client of the installation, `for_bytes` of files too. Raises the errors of fs.errors for malformed
        addresses, NotOnFabric."""
        if for_bytes and self.off_fabric:
            raise NotOnFabric(self.off_fabric)
        with interrupted_after():
            from speedwell.fs.client import Client
            from speedwell.fs.client.context import DEFAULT_PARTS

        return Client(self.nameserver, controller=self.controller, local_host=self.local_host,
                      replica_policy=self.replica_policy, path_policy=self.path_policy,
                      most_parts=DEFAULT_PARTS if self.parts is None else self.parts, identity=self.identity)


def resolve(nameserver: str | None, controller: str | None, local_host: str | None = None,
            replica_policy: str | None = None, path_policy: str | None = None, parts: int | None = None,
            installation: Path | None = None, identity: Path | None = None) -> Target:
    """The installation that the options name, else the last one started. Raises NotRunning if none was, or that one
    was stopped.

    A nameserver that was named does not get the controller of the last installation.
    """
    if installation is not None or nameserver is None:
        named = current.in_directory(installation) if installation is not None else last_started()
        if current.is_stopped(named):
            raise NotRunning(f"the installation in {named.directory} is stopped; {named.up_again} starts it again")
        nameserver = named.nameserver
        controller = controller or named.controller
        identity = identity or (Path(named.identity) if named.identity else None)
    if controller == NO_CONTROLLER:
        controller = None
    return Target(nameserver, controller, local_host, replica_policy, path_policy, parts, identity)


def last_started() -> current.Current:
    """The default installation. Raises NotRunning, saying how to get or name one."""
    last = current.read()
    if last is None and (stopped := current.started()):
        raise NotRunning(f"no installation runs here; {stopped[0].up_again} starts the last one again, "
                         "`speedwell list` shows all")
    if last is None:
        raise NotRunning("no installation was started here: run `speedwell up`, or name one with "
                         "--nameserver HOST:PORT or SPEEDWELL_NAMESERVER")
    return last


def installation_option(function: F) -> F:
    """Adds --installation, the directory of an installation that was started here."""
    return click.option("--installation", type=click.Path(path_type=Path), metavar="DIR",
                        help="The installation that was started in DIR; `speedwell list` shows all.")(function)


def one_installation(installation: Path | None, directory: Path | None) -> None:
    """Raises UsageError if --installation and --local are both given."""
    if installation is not None and directory is not None:
        raise click.UsageError("--installation does not go with --local", click.get_current_context())


def connection_options(function: F) -> F:
    """Adds --installation, --nameserver, --identity, --controller and --local-host; the function gets `target`
    instead."""

    @installation_option
    @click.option("--nameserver", metavar="HOST:PORT", envvar="SPEEDWELL_NAMESERVER",
                  callback=checked_nameserver,
                  help="The installation's nameserver; default: that of the last `speedwell up`.")
    @click.option("--identity", type=click.Path(path_type=Path), metavar="DIR", envvar=VARIABLE,
                  help="Your key and certificate; default: those that `speedwell up` made on this machine.")
    @click.option("--controller", metavar="URL[,URL]", envvar="SPEEDWELL_CONTROLLER",
                  help="The SDN controller that steers reads, or `none`.")
    @click.option("--local-host", metavar="ADDRESS", envvar="SPEEDWELL_LOCAL_HOST", callback=_checked_address,
                  help="This host's address on the fabric; default: found from the route.")
    @functools.wraps(function)
    def with_target(*args: Any, nameserver: str | None, controller: str | None, local_host: str | None,
                    installation: Path | None = None, identity: Path | None = None,
                    replica_policy: str | None = None, path_policy: str | None = None, parts: int | None = None,
                    **kwargs: Any) -> Any:
        context = click.get_current_context()
        if installation is not None and context.get_parameter_source("nameserver") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--nameserver does not go with --installation", context)
        target = resolve(nameserver, controller, local_host, replica_policy, path_policy, parts, installation,
                         identity)
        off_fabric = fabric_network.join(target.nameserver)
        return function(*args, target=replace(target, off_fabric=off_fabric), **kwargs)

    return with_target  # type: ignore[return-value]


def checked_nameserver(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """A callback of options that name nameservers."""
    for address in [] if value is None else value.split(","):
        try:
            parse_address(address, "nameserver")
        except InvalidArgument as error:
            raise click.BadParameter(str(error).removeprefix("nameserver: ")) from None
    return value


def _checked_address(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value and not is_ip(value):
        raise click.BadParameter(f"{value!r} is not an IP address")
    return value


def parts_option(function: F) -> F:
    """Adds --parts; goes above `connection_options`."""
    return click.option("--parts", type=click.IntRange(1, 16), metavar="N",
                        help="The most replicas that a read may come from at once.  [default: 2]")(function)


def policy_options(function: F) -> F:
    """Adds --parts, --replica-policy and --path-policy; goes above `connection_options`."""
    for option in (
        parts_option,
        click.option("--path-policy", metavar="NAME", help="How the controller picks the path."),
        click.option("--replica-policy", metavar="NAME", help="How the controller picks the replica."),
    ):
        function = option(function)
    return function
