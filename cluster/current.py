"""The installations that were started here, and which of them the commands talk to when the caller does not say.

Each has a small file in the state directory: SPEEDWELL_STATE_DIRECTORY if set; /run/speedwell for root;
$XDG_STATE_HOME/speedwell (by default ~/.local/state/speedwell) for everybody else. The default is the one that was
started last; once it is no longer in its directory, another that runs. Who has none of their own, and has not set
SPEEDWELL_STATE_DIRECTORY, is led to root's. One of several machines is still known after a restart of the machine: of
root's it is also in DURABLE.
"""

import hashlib
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from speedwell.cluster.errors import InvalidState, NotRunning
from speedwell.cluster.processes import STATE_FILE, Processes
from speedwell.cluster.state_files import STATE_MODE
from speedwell.fs import durable
from speedwell.fs.identity.places import MACHINE_DIRECTORY, STATE_VARIABLE, controllers_for, state_directory

MACHINE = "machine"
"""The kind of what runs on one of several machines (speedwell.cluster.parts)."""

DURABLE = Path("/var/lib/speedwell")


@dataclass(frozen=True)
class Current:
    """A started installation. `kind` is "local", "fabric" or "machine"; `directory` holds its processes' state file;
    `nameserver` is HOST:PORT, `controller` a URL or None; `mounts` are mount points; `identity` is the directory of
    that with which commands talk to it, empty if it has none; `systems` are on beside reads and placements."""

    kind: str
    directory: str
    nameserver: str
    controller: str | None = None
    mounts: list[str] = field(default_factory=list)
    identity: str = ""
    systems: list[str] = field(default_factory=list)

    @property
    def up_again(self) -> str:
        """The command that starts it again."""
        option = "--local" if self.kind == "local" else "--installation"
        return f"`speedwell up {option} {shlex.quote(self.directory)}`"


def read() -> Current | None:
    """The default installation; None if nothing was started. Raises InvalidState for a damaged file."""
    for directory in _places():
        found = _read(directory / "current.json")
        if found is not None and not _is_there(found):
            found = _another_that_runs(found.directory)
        if found is not None:
            return found
    return None


def started() -> list[Current]:
    """Every installation that was started here and that is still in its directory, the last one first.

    Raises InvalidState for a damaged file.
    """
    files = sorted((path for place in _places() for path in _records(place)), key=_written_at, reverse=True)
    found = {installation.directory: installation for path in files if (installation := _read(path)) is not None}
    return [installation for installation in found.values() if _is_there(installation)]


def in_directory(directory: Path) -> Current:
    """The installation in a directory, as it was started. Raises NotRunning if none was."""
    where = os.path.realpath(directory)
    for installation in started():
        if os.path.realpath(installation.directory) == where:
            return installation
    raise NotRunning(f"no installation was started in {directory} on this machine; `speedwell list` shows all")


def write(current: Current) -> None:
    """Remember an installation, as the default one. Raises OSError if the state directory cannot be written."""
    directory = state_directory()
    text = (json.dumps(asdict(current), indent=2) + "\n").encode()
    for place in (directory, *([DURABLE] if current.kind == MACHINE and directory == MACHINE_DIRECTORY else ())):
        (place / "installations").mkdir(parents=True, exist_ok=True)
        durable.replace_all([(_record(place, current.directory), text), (place / "current.json", text)], STATE_MODE)


def clear(directory: Path | str) -> None:
    """An installation was stopped. If it was the default one, another that still runs takes its place."""
    current = read()
    if current is None or Path(current.directory) != Path(directory):
        return
    (state_directory() / "current.json").unlink(missing_ok=True)
    running = _another_that_runs(current.directory)
    if running is not None:
        durable.replace(state_directory() / "current.json", (json.dumps(asdict(running), indent=2) + "\n").encode(),
                        STATE_MODE)


def forget(directory: Path | str) -> None:
    """Nothing of an installation is left to start again: `started` no longer has it."""
    clear(directory)
    _record(state_directory(), str(directory)).unlink(missing_ok=True)


def is_stopped(installation: Current) -> bool:
    """Whether nothing of it is meant to run, as far as this user can see."""
    try:
        processes = Processes(Path(installation.directory))
    except InvalidState:
        return False
    return not processes.records and not processes.settings.get("systemd")


def is_of_systemd(installation: Current) -> bool:
    """Then `systemctl status` knows its processes. Raises InvalidState."""
    return bool(Processes(Path(installation.directory)).settings.get("systemd"))


def _is_there(installation: Current) -> bool:
    try:
        return (Path(installation.directory) / STATE_FILE).exists()
    except PermissionError:
        return True


def _another_that_runs(than: str) -> Current | None:
    return next((other for other in started()
                 if other.directory != than and Processes(Path(other.directory)).running()), None)


def _places() -> list[Path]:
    if os.environ.get(STATE_VARIABLE):
        return [state_directory()]
    return list(dict.fromkeys((state_directory(), MACHINE_DIRECTORY, DURABLE)))


def _records(place: Path) -> Iterator[Path]:
    try:
        yield from (path for path in (place / "installations").iterdir() if path.suffix == ".json")
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return


def _record(place: Path, directory: str) -> Path:
    return place / "installations" / f"{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}.json"


def _written_at(path: Path) -> float:
    return path.stat().st_mtime


def _read(path: Path) -> Current | None:
    try:
        found = Current(**json.loads(path.read_text()))
        if found.kind != MACHINE or not found.identity:
            return found
        return replace(found, controller=controllers_for(found.identity, found.controller or "") or None)
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return None
    except (ValueError, TypeError) as error:
        raise InvalidState(f"{path} is not a pointer to an installation: remove it") from error
