"""Keeps the certificates of a directory good: of an authority, or of a machine that has joined one."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.identity import files, register

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
NEWS_SECONDS = 10.0
"""So often a machine that has joined asks what was revoked, and where the controllers are."""


def keep_renewed(directory: Path, stopped: threading.Event,
                 note_trouble: Callable[[str], None] = lambda trouble: None) -> None:
    """Renew what is due in `directory`, and hear the authority's news, until `stopped`. `note_trouble` is told each
    time what keeps it from that, or an empty text."""
    told = ""
    heard_at = 0.0
    while not stopped.wait(LOOK_SECONDS):
        try:
            if (directory / register.ISSUED).exists():
                renewed = renew_own(directory)
            else:
                from speedwell.fs.identity import joining  # takes memory: only where it is needed

                renewed = joining.renew_due(directory, time.time())
                if time.monotonic() - heard_at >= NEWS_SECONDS:
                    heard_at = time.monotonic()
                    joining.hear(directory)
            if renewed:
                log.info("renewed the certificates of %s", ", ".join(renewed))
            trouble = ""
        except (SpeedwellError, OSError) as error:
            trouble = str(error)
            if trouble != told:
                log.error("certificates are not renewed: %s", trouble)
        told = trouble
        note_trouble(trouble)


def kept(directory: Path) -> list[register.Certificate]:
    """The certificates that are renewed here. Raises IdentityError; OSError, ValueError, TypeError if damaged."""
    if (directory / register.ISSUED).exists():
        return register.kept(directory)
    from speedwell.fs.identity import joining  # likewise

    return [joining.certificate_of(path.parent) for path in sorted(directory.glob(f"*/{files.CERTIFICATE}"))]


def renew_own(directory: Path) -> list[str]:
    """The names of what was due of an authority's certificates. Raises IdentityError, OSError."""
    if not register.is_due(directory, time.time()):
        return []
    from speedwell.fs.identity.authority import Authority  # likewise

    return Authority(directory).renew_due()
