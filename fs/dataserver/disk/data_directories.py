"""All directories of a dataserver: which of them can be used, and where a new file goes."""

import contextlib
import logging
import os
import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from speedwell.fs.dataserver.disk.data_directory import Directory, ForeignDirectory
from speedwell.fs.dataserver.disk.stored_file import load
from speedwell.fs.errors import InvalidArgument, NoSpace, SpeedwellError, StorageFailed
from speedwell.fs.proto.speedwell_pb2 import DirectoryUse

log = logging.getLogger(__name__)


class Directories:
    """Thread-safe. A directory that has failed is not used again before the next start."""

    def __init__(self, paths: Sequence[Path], reserved_bytes: int | None = None, rate_bytes: float = 0.0) -> None:
        """`reserved_bytes` and `rate_bytes` of each are as `Directory` has them. Raises InvalidArgument for one that
        lies in another."""
        self.all = [Directory(path.absolute(), reserved_bytes, rate_bytes) for path in paths]
        resolved: dict[Path, Path] = {}
        for directory in self.all if len(paths) > 1 else ():
            with _failing(directory):
                place = directory.answer(directory.path.resolve)
                for other, there in resolved.items():
                    if place.is_relative_to(there) or there.is_relative_to(place):
                        raise InvalidArgument(f"--directory: {directory.path} is, or lies in, or holds {other}: each "
                                              "needs a disk of its own")
                resolved[directory.path] = place

    def __iter__(self) -> Iterator[Path]:
        """Those that are used."""
        return (directory.path for directory in self.sound)

    @property
    def sound(self) -> list[Directory]:
        return [directory for directory in self.all if not directory.failure]

    def claim(self, dataserver_id: str, *, accept_empty: bool = False) -> None:
        """Make them this server's. With `accept_empty` one that was its own and is empty is a new disk, else it has
        failed. Raises StorageFailed if none can be used or one is another server's."""
        roots = [directory.root for directory in self.all]
        known: set[str] = set()
        for directory in self.sound if len(roots) > 1 else ():
            with _failing(directory):
                known |= directory.answer(directory.others)

        def claim(directory: Directory) -> None:
            if directory.root in known and not directory.is_owned and not accept_empty:
                raise StorageFailed(f"{directory.path} was this dataserver's and is empty: mount its disk, or "
                                    "start once with --accept-empty if it has a new one")
            directory.claim(dataserver_id)
            if len(roots) > 1:
                with contextlib.suppress(NoSpace):      # full is not failed, and the others know it
                    directory.remember(roots)

        for directory in self.sound:
            with _failing(directory):
                directory.answer(partial(claim, directory))
        for directory in self.all if len(roots) > 1 else ():
            if directory.failure:
                log.error("the directory %s is not used: %s", directory.path, directory.failure)
        self.require_one()
        self._keep_one_of_each()

    def require_one(self) -> None:
        """Raises StorageFailed if none can be used."""
        if not self.sound:
            raise StorageFailed("; ".join(directory.failure if directory.root in directory.failure else
                                          f"{directory.path}: {directory.failure}" for directory in self.all))

    def close(self) -> None:
        """Let another process use them. Safe to call again."""
        for directory in self.all:
            directory.close()

    def look(self) -> bool:
        """Whether one that was used until now has failed. The only one is always used."""
        before = self.sound
        for directory in before if len(self.all) > 1 else ():
            directory.look()
            if directory.failure:
                log.error("the directory %s has failed, its replicas are lost: %s", directory.path, directory.failure)
        return self.sound != before

    def require_answers(self) -> None:
        """Raises DiskHangs if one of several that are used does not answer."""
        for directory in self.sound if len(self.all) > 1 else ():
            with contextlib.suppress(OSError, RuntimeError):    # out of threads: the next look tells
                directory.answer(directory.probe)

    def holding(self, place: str) -> Directory | None:
        """The one that a path lies in, if it is used."""
        return next((each for each in self.sound if place.startswith(f"{each.root}/")), None)

    def of(self, place: str) -> Directory:
        """The same. Raises StorageFailed if it has failed."""
        found = self.holding(place)
        if found is None:
            raise StorageFailed(f"{place} lies in a directory that has failed")
        return found

    def for_new(self, size_bytes: int) -> Directory:
        """One that has room, drawn by what is free there and by what its disk could write besides."""
        sound = self.sound
        if len(sound) == 1:
            return sound[0]
        available = {}
        for directory in sound:
            with contextlib.suppress(StorageFailed):
                available[directory] = directory.capacity()[1]
        roomy = [directory for directory, left in available.items() if left > size_bytes] or list(available) or sound
        weights = [max(1, available.get(directory, 0)) * max(1, directory.left_bytes) for directory in roomy]
        return random.choices(roomy, weights)[0]

    def roomier(self, than: Directory, size_bytes: int) -> Directory | None:
        """The one with most room of those that have so much. Raises StorageFailed."""
        free = {each: each.free_bytes() for each in self.sound if each is not than}
        return max((each for each, left in free.items() if left >= size_bytes), key=free.__getitem__, default=None)

    # ------------------------------------------------------------------ disks

    def uses(self) -> list[DirectoryUse]:
        """How full and how busy each directory's disk is, or why it is not used. Raises StorageFailed."""
        found = []
        for directory in self.all:
            use = DirectoryUse(path=_shown(directory.root), failure=_shown(directory.failure)[:1000])
            if not directory.failure:
                use.capacity_bytes, use.available_bytes = directory.capacity()
                use.disk, use.disk_left = directory.disk, directory.left_bytes
            found.append(use)
        return found

    def measure(self) -> None:
        """Learn what each disk could have written besides since the last call."""
        for directory in self.all:
            directory.measure()

    # ------------------------------------------------------------------ private

    def _keep_one_of_each(self) -> None:
        """Of a content in two directories the newer one: the other's disk had failed when it was made anew."""
        for prefix in (f"{number:02x}" for number in range(256)) if len(self.sound) > 1 else ():
            seen: dict[str, Directory] = {}
            for directory in self.sound:
                with contextlib.suppress(OSError):
                    for file_id in directory.ids_below(prefix):
                        other = seen.setdefault(file_id, directory)
                        if other is not directory:
                            older, seen[file_id] = sorted((other, directory), key=lambda one: _age(one, file_id))
                            log.warning("%s is also in %s: the older one, in %s, is dropped", file_id,
                                        seen[file_id].path, older.path)
                            older.erase(file_id)


@contextlib.contextmanager
def _failing(directory: Directory) -> Iterator[None]:
    """Where its disk fails it is not used. Raises ForeignDirectory."""
    try:
        yield
    except ForeignDirectory:
        raise
    except (StorageFailed, NoSpace) as error:
        directory.failure = error.message


def _shown(text: str) -> str:
    """Without what names may have and messages may not."""
    return os.fsencode(text).decode(errors="replace")


def _age(directory: Directory, file_id: str) -> tuple[int, int]:
    """More is newer. A damaged one is the oldest."""
    try:
        file = load(file_id, directory.place(file_id))
        return file.ordering.log(file.length).epoch, file.length
    except SpeedwellError:
        return -1, -1
