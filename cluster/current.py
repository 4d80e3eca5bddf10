"""Which installation the commands talk to when the caller does not say: the last one that was started.

It is a small file in the state directory: SPEEDWELL_STATE_DIRECTORY if set; /run/speedwell for root;
$XDG_STATE_HOME/speedwell (by default ~/.local/state/speedwell) for everybody else. Who has none of their
own is led to root's.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cluster.errors import InvalidState
from cluster.state_files import write_atomically

MACHINE_DIRECTORY = Path("/run/speedwell")


@dataclass(frozen=True)
class Current:
    """A started installation. `kind` is "local" or "fabric"; `directory` holds its processes' state file;
    `nameserver` is HOST:PORT, `controller` a URL or None; `mounts` are mount points."""

    kind: str
    directory: str
    nameserver: str
    controller: str | None = None
    mounts: list[str] = field(default_factory=list)


def state_directory() -> Path:
    """Where this user's state files go; not made here."""
    chosen = os.environ.get("SPEEDWELL_STATE_DIRECTORY")
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return MACHINE_DIRECTORY
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "speedwell"


def read() -> Current | None:
    """The default installation; None if nothing was started. Raises InvalidState for a damaged file."""
    for directory in (state_directory(), MACHINE_DIRECTORY):
        path = directory / "current.json"
        try:
            return Current(**json.loads(path.read_text()))
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            continue
        except (ValueError, TypeError) as error:
            raise InvalidState(f"{path} is not a pointer to an installation ({error}); remove it") from error
    return None


def write(current: Current) -> None:
    """Make `current` the default installation. Raises OSError if the state directory cannot be written."""
    directory = state_directory()
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "current.json", json.dumps(asdict(current), indent=2) + "\n")


def clear(directory: Path | str) -> None:
    """Forget the default installation if it is the one in `directory`."""
    current = read()
    if current is not None and Path(current.directory) == Path(directory):
        (state_directory() / "current.json").unlink(missing_ok=True)
