"""How commands print: names as the terminal can show them, attributes, JSON."""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from speedwell.fs.proto.speedwell_pb2 import Attributes, Replica

# FileType of the wire format, which costs an import of protobuf to name
REGULAR_TYPE, DIRECTORY_TYPE, LINK_TYPE = 1, 2, 3
_TYPES = {REGULAR_TYPE: ("file", stat.S_IFREG), DIRECTORY_TYPE: ("directory", stat.S_IFDIR),
          LINK_TYPE: ("symbolic link", stat.S_IFLNK), 4: ("fifo", stat.S_IFIFO), 5: ("socket", stat.S_IFSOCK),
          6: ("character device", stat.S_IFCHR), 7: ("block device", stat.S_IFBLK)}


def text(name: bytes) -> str:
    """A file name as text; bytes that are not UTF-8 survive a round trip through standard output."""
    return os.fsdecode(name)


def printable(name: bytes) -> str:
    """A file name for a person: on a terminal, control characters become `?` and cannot steer it."""
    shown = text(name)
    if not sys.stdout.isatty():
        return shown
    return "".join(character if character.isprintable() else "?" for character in shown)


def echo(line: str) -> None:
    """Print a line; undecodable bytes in it go out as they were."""
    click.echo(os.fsencode(line))


def echo_json(document: Any) -> None:
    """Print one JSON document (pure ASCII: names that are not UTF-8 hold lone surrogates)."""
    click.echo(json.dumps(document, indent=2))


def type_name(attributes: Attributes) -> str:
    """`directory`, `file`, `symbolic link`, ..."""
    return _TYPES[attributes.type][0]


def mode_string(attributes: Attributes) -> str:
    """`-rw-r--r--`."""
    return stat.filemode(_TYPES[attributes.type][1] | attributes.mode)


def user_name(uid: int) -> str:
    """The user's name here, else the number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """The group's name here, else the number."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def attributes_document(attributes: Attributes) -> dict[str, Any]:
    """Attributes as a JSON object; times in nanoseconds since the epoch, sizes in bytes."""
    document: dict[str, Any] = {
        "inode": attributes.inode, "type": type_name(attributes), "mode": f"{attributes.mode:04o}",
        "uid": attributes.uid, "gid": attributes.gid, "size": attributes.size,
        "link_count": attributes.link_count, "atime_ns": attributes.atime_ns,
        "mtime_ns": attributes.mtime_ns, "ctime_ns": attributes.ctime_ns,
    }
    if attributes.type == LINK_TYPE:
        document["target"] = text(attributes.target)
    if attributes.type == REGULAR_TYPE:
        document |= {"file_id": attributes.file_id, "chunk_size": attributes.chunk_size,
                     "replicas": [replica_document(replica) for replica in attributes.replicas]}
    return document


def replica_document(replica: Replica) -> dict[str, Any]:
    """A replica as a JSON object."""
    return {"dataserver_id": replica.dataserver_id, "host": replica.host, "port": replica.port,
            "rack": replica.rack, "pod": replica.pod, "alive": replica.alive}
