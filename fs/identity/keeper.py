"""Keeps the certificates of a directory good: of an authority, or of a machine that has joined one."""

import logging
import threading
import time
from pathlib import Path

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.identity import register

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
NEWS_SECONDS = 10.0
"""So often a machine that has joined asks what was revoked."""


def keep_renewed(directory: Path, stopped: threading.Event) -> None:
    """Renew what is due in `directory`, and learn what was revoked, until `stopped`."""
    told = ""
    heard_at = 0.0
    while not stopped.wait(LOOK_SECONDS):
        try:
            if (directory / register.ISSUED).exists():
                renewed = _of_authority(directory)
            else:
                from speedwell.fs.identity import joining  # takes memory: only where it is needed

                renewed = joining.renew_due(directory, time.time())
                if time.monotonic() - heard_at >= NEWS_SECONDS:
                    heard_at = time.monotonic()
                    joining.hear(directory)
            if renewed:
                log.info("renewed the certificates of %s", ", ".join(renewed))
            told = ""
        except (SpeedwellError, OSError) as error:
            if str(error) != told:
                log.error("certificates are not renewed: %s", error)
            told = str(error)


def _of_authority(directory: Path) -> list[str]:
    if not register.is_due(directory, time.time()):
        return []
    from speedwell.fs.identity.authority import Authority  # likewise

    return Authority(directory).renew_due()
