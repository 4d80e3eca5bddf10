"""Who may ask for a route, as its declaration says it."""

from speedwell.fs.identity.roles import DATASERVER, MOUNT, NAMESERVER, READER, SCHEDULER

__all__ = ["DATASERVER", "EVERYBODY", "MOUNT", "NAMESERVER", "NOBODY_ELSE", "READER", "SCHEDULER", "Roles"]

Roles = tuple[str, ...]
NOBODY_ELSE: Roles = ()
EVERYBODY: Roles | None = None
"""Also who has proved nothing: what the page consists of, and how it is let in."""
