"""What a certificate's holder is in the installation."""

import re

from speedwell.fs.errors import IdentityError

NAMESERVER, DATASERVER, ETCD, CONTROLLER, SWITCH = "nameserver", "dataserver", "etcd", "controller", "switch"
MOUNT, OPERATOR, READER, SCHEDULER, AUTHORITY = "mount", "operator", "reader", "scheduler", "authority"

ROLES = (NAMESERVER, DATASERVER, ETCD, CONTROLLER, SWITCH, MOUNT, OPERATOR, READER, SCHEDULER, AUTHORITY)
SERVERS = (NAMESERVER, DATASERVER, ETCD, CONTROLLER, SWITCH, AUTHORITY)
"""Only their certificates are good for the listening end of a connection."""

ADDRESSED = (ETCD, CONTROLLER)
"""Programs that are not ours know these by their IP address."""

WRITERS = (MOUNT, OPERATOR, DATASERVER)
"""They change what files hold."""

SCOPED = (MOUNT, READER)
"""They may be for some users, and for a directory."""

METADATA_STORE = "metadata-store"
"""Of a machine alone: its certificate is a dataserver's, with the machine's address as its name."""

HOST_AGENT = "host-agent"
"""Of a machine alone, too: a key of its own is all that it shows."""

JOINING = (NAMESERVER, DATASERVER, ETCD, CONTROLLER, MOUNT, OPERATOR, READER, SCHEDULER, METADATA_STORE)
"""What a machine may get by a join token."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)


def checked_name(name: str) -> str:
    """A name that fits a certificate and a file. Raises IdentityError."""
    if not _NAME.fullmatch(name):
        raise IdentityError(f"name: {name!r} is not 1 to 64 letters, digits, dots, dashes and underscores")
    return name


def checked_role(role: str) -> str:
    """Raises IdentityError."""
    if role not in ROLES:
        raise IdentityError(f"role: {role!r} is none of {', '.join(ROLES)}")
    return role


def host_of(role: str) -> str:
    """The host name in a certificate, by which a client knows the role of whom it connects to."""
    return f"{role}.speedwell"
