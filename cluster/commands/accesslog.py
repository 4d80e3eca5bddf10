"""speedwell accesslog"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from speedwell.cluster import mounts
from speedwell.cluster.commands.output import echo
from speedwell.cluster.errors import InvalidSetting, NotRunning
from speedwell.cluster.tables import visible
from speedwell.fs import units
from speedwell.fs.mount_table import FILESYSTEM_TYPE
from speedwell.fs.option_types import MountPoint

LEADING = ("time_ns", "uid", "gid", "pid", "operation", "result", "seconds")


@click.command()
@click.argument("mountpoint", type=MountPoint())
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line; times in nanoseconds since 1970 and in "
              "seconds.")
def accesslog(mountpoint: Path, as_json: bool) -> int:
    """Show each request to a mount as it happens.

    When, by whom, what, its result, how long it took: until Ctrl-C, or until the mount ends. Nobody but the mount's
    owner and root can read it. Several may; who reads too slowly is told how many requests are missing. What the
    kernel answers from its cache is no request.
    """
    from speedwell.cluster.mount_monitor import follow

    place = mounts.locate(mountpoint)
    mount = mounts.mounted_here(place)
    if mount is None or mount.filesystem_type != FILESYSTEM_TYPE:
        raise InvalidSetting(f"{place} is not a mount point of Speedwell")
    try:
        for record in follow(mount):
            echo(json.dumps(record) if as_json else line_of(record))
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 0
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NotRunning(f"what the process at {place} says is no log of a mount") from None
    raise NotRunning(f"the mount at {place} ended")


def line_of(record: dict[str, Any]) -> str:
    """`2026-11-22 14:30:01.123456 uid=0 gid=0 pid=7 read inode=5 size=4096 offset=0 bytes=4096 OK 0.12 ms`"""
    if "lost" in record:
        return f"# {units.counted(record['lost'], 'request')} missing here: they came faster than they were read"
    seconds, ns = divmod(record["time_ns"], 10**9)
    words = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{ns // 1000:06}",
             *(f"{name}={record[name]}" for name in ("uid", "gid", "pid")), record["operation"]]
    for name, value in record.items():
        if name not in LEADING:
            words.append(f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}")
    return visible(" ".join((*words, record["result"], f"{1e3 * record['seconds']:.3f} ms")))
