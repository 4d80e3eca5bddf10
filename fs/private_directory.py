"""Directories in which keys lie: for the user of the process that keeps them there alone."""

import logging
import stat
from pathlib import Path

log = logging.getLogger(__name__)


def keep_private(directory: Path) -> None:
    """Take it from everybody else, or say in the log that it stays open. It is made if need be. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & 0o077:
        return
    try:
        directory.chmod(mode & ~0o077)
    except OSError as error:
        log.warning("%s is open to others, who may read the keys in it: chmod 700 it (%s)", directory, error.strerror)
