"""Having dataservers read their replicas of files, so that these are in memory when somebody asks for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from speedwell.cluster.fsck import verified
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import SpeedwellError
from speedwell.fs.proto.speedwell_pb2 import REGULAR, Attributes, Replica, VerifyOperation
from speedwell.fs.wire.channel import ConnectionLost, MalformedFrame

REQUEST_BYTES = 64 << 20
REQUEST_FILES = 200


@dataclass
class Warmed:
    """What was read, over all replicas. `problems` has a sentence for each replica or dataserver that was not."""

    files: int = 0
    size_bytes: int = 0
    dataservers: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """Contents that one dataserver reads at one request, with the files' paths by content."""

    server: Replica
    paths: dict[str, bytes]
    size_bytes: int


def jobs(files: Iterable[tuple[bytes, Attributes]]) -> list[Job]:
    """What to ask of each dataserver that lives; a content that several names lead to is asked for once."""
    found: dict[str, list[tuple[Replica, str, bytes, int]]] = defaultdict(list)
    seen: set[str] = set()
    for path, attributes in files:
        if attributes.type == REGULAR and attributes.size and attributes.file_id not in seen:
            seen.add(attributes.file_id)
            for replica in attributes.replicas:
                if replica.alive:
                    found[replica.dataserver_id].append((replica, attributes.file_id, path, attributes.size))
    return [job for each in found.values() for job in _requests(each)]


def _requests(wanted: list[tuple[Replica, str, bytes, int]]) -> Iterator[Job]:
    paths: dict[str, bytes] = {}
    total = 0
    for replica, file_id, path, size_bytes in wanted:
        paths[file_id] = path
        total += size_bytes
        if total >= REQUEST_BYTES or len(paths) >= REQUEST_FILES:
            yield Job(replica, paths, total)
            paths, total = {}, 0
    if paths:
        yield Job(wanted[-1][0], paths, total)


def warm(work: list[Job], metadata: MetadataClient, progress: Callable[[int], None]) -> Warmed:
    """Carry out `jobs`: the dataservers at the same time, each one request after the other. `progress` hears of the
    bytes that were read."""
    warmed = Warmed(files=len({file_id for job in work for file_id in job.paths}))
    of_server: dict[str, list[Job]] = defaultdict(list)
    for job in work:
        of_server[job.server.dataserver_id].append(job)

    def read(name: str) -> None:
        for job in of_server[name]:
            try:
                damaged = verified(job.server, VerifyOperation(file_ids=list(job.paths)), metadata)
            except (ConnectionLost, MalformedFrame, OSError, SpeedwellError) as error:
                warmed.problems.append(f"dataserver {name}: {error}")
                return
            warmed.dataservers.add(name)
            warmed.size_bytes += job.size_bytes
            warmed.problems += [f"{job.paths[file_id].decode(errors='replace')} on {name}: {why}"
                                for file_id, why in damaged.items()]
            progress(job.size_bytes)

    if of_server:
        with ThreadPoolExecutor(len(of_server)) as threads:
            list(threads.map(read, of_server))
    return warmed
