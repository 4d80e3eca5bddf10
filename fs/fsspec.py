"""`speedwell://HOST:PORT/path` for pandas, PyArrow, Dask, DuckDB and whatever else opens files through fsspec.

Errors are OSError with the errno of `speedwell.fs.errors`, so FileNotFoundError, FileExistsError and their kin.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from errno import ELOOP, ENOENT, ENOTDIR
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import stringify_path

from speedwell.fs import paths
from speedwell.fs.client import Client
from speedwell.fs.client.names.trees import remove_tree
from speedwell.fs.errors import (
    AlreadyExists,
    InvalidArgument,
    IsADirectory,
    NoSuchFile,
    NotADirectory,
    SpeedwellError,
    TooManySymbolicLinks,
)
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY, REGULAR, SYMBOLIC_LINK, Attributes

SCHEME = "speedwell://"
NAMESERVER_VARIABLE = "SPEEDWELL_NAMESERVER"
CONTROLLER_VARIABLE = "SPEEDWELL_CONTROLLER"

MISSING = (ENOENT, ENOTDIR, ELOOP)

Info = dict[str, Any]
Result = TypeVar("Result")


@contextmanager
def os_errors(path: str | None = None) -> Iterator[None]:
    """What goes wrong in the filesystem as the OSError that programs written for files expect."""
    try:
        yield
    except SpeedwellError as error:
        raise OSError(error.errno, error.message, path) from error


def unless_missing(error: OSError) -> None:
    """Raise what is not only that a name leads nowhere."""
    if error.errno not in MISSING:
        raise error


class SpeedwellFileSystem(AbstractFileSystem):
    """One installation.

    `nameserver` is HOST:PORT, by default the one in the URL, else SPEEDWELL_NAMESERVER; `controller` its SDN
    controller's URL, by default SPEEDWELL_CONTROLLER, else none; `local_host` and `identity` are as
    `speedwell.fs.client.Client` has them. With `auto_mkdir` what is written gets the directories it lacks.
    """

    protocol = "speedwell"
    root_marker = "/"

    def __init__(self, nameserver: str | None = None, controller: str | None = None, local_host: str | None = None,
                 auto_mkdir: bool = False, identity: str | None = None, **options: Any) -> None:
        """Connects to nothing yet. Raises OSError (EINVAL) without a nameserver, or for a malformed address."""
        super().__init__(**options)
        self.auto_mkdir = auto_mkdir
        with os_errors():
            self.nameserver = nameserver or os.environ.get(NAMESERVER_VARIABLE, "")
            if not self.nameserver:
                raise InvalidArgument(f"no nameserver: write {SCHEME}HOST:PORT/path, or set {NAMESERVER_VARIABLE}")
            self.client = Client(self.nameserver, local_host=local_host, identity=identity,
                                 controller=controller or os.environ.get(CONTROLLER_VARIABLE) or None)

    @property
    def fsid(self) -> str:
        return f"{self.protocol}_{self.nameserver}"

    # ------------------------------------------------------------------ paths

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = stringify_path(path)
        if text.startswith(SCHEME):
            text = text[len(SCHEME):].partition("/")[2]
        return cls.root_marker + text.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        address = path[len(SCHEME):].partition("/")[0] if path.startswith(SCHEME) else ""
        return {"nameserver": address} if address else {}

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path, with the nameserver."""
        return f"{SCHEME}{self.nameserver}{self._strip_protocol(name)}"

    # ------------------------------------------------------------------ names

    def info(self, path: str, **kwargs: Any) -> Info:
        """What `ls` tells of one path: name, size, type, mode, uid, gid, ino and mtime (seconds); for a symbolic
        link size and type of what it leads to, `islink` and its `destination`."""
        path = self._strip_protocol(path)
        with os_errors(path):
            return self._info(path, self._on(path, lambda at: self.client.lookup(at, fresh=True)))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        with os_errors(path):
            try:
                entries = self.client.list(self.client.follow(path))
                infos = [self._info(f"{path.rstrip('/')}/{os.fsdecode(entry.name)}", entry.attributes)
                         for entry in entries]
            except NotADirectory:
                infos = [self.info(path)]
        return infos if detail else [info["name"] for info in infos]

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Unlike fsspec's own, these raise OSError if the nameserver does not answer."""
        return bool(self._info_if_any(path))

    def isdir(self, path: str) -> bool:
        return self._info_if_any(path).get("type") == "directory"

    def isfile(self, path: str) -> bool:
        return self._info_if_any(path).get("type") == "file"

    def islink(self, path: str) -> bool:
        return "islink" in self._info_if_any(path)

    def walk(self, path: str, maxdepth: int | None = None, topdown: bool = True, on_error: Any = "omit",
             **kwargs: Any) -> Any:
        """As fsspec's; "omit" leaves out only what is gone by the time it is listed."""
        return super().walk(path, maxdepth, topdown, unless_missing if on_error == "omit" else on_error, **kwargs)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=UTC)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.makedirs(self._parent(path), exist_ok=True)
        with os_errors(path):
            self._on(path, self.client.mkdir)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        try:
            self.mkdir(path, create_parents=False)
        except FileExistsError:
            if not (exist_ok and self.isdir(path)):
                raise
        except FileNotFoundError:
            self.makedirs(self._parent(path), exist_ok=True)
            self.makedirs(path, exist_ok)

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        with os_errors(path):
            self._on(path, self.client.rmdir)

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        with os_errors(path):
            self._on(path, self.client.remove)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, and with `recursive` directories with all below them; a symbolic link itself."""
        if maxdepth is not None:
            raise NotImplementedError("maxdepth: directories are removed whole or not at all")
        for each in self.expand_path(path):
            try:
                self.rm_file(each)
            except IsADirectoryError:
                if not recursive:
                    raise
                with os_errors(each):
                    self._on(each, lambda at: remove_tree(self.client, paths.normalise(at)))

    def mv(self, path1: Any, path2: Any, recursive: bool = True, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Rename in one step; into `path2` if that is a directory. Patterns and lists are copied and removed."""
        if not isinstance(path1, str) or maxdepth is not None or any(letter in path1 for letter in "*?["):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        source, destination = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(destination):
            destination = f"{destination.rstrip('/')}/{source.rpartition('/')[2]}"
        self._make_room(destination)
        with os_errors(source):
            self._on(source, lambda at: self.client.rename(at, self.client.follow(destination, last=False)))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with self.open(path1, "rb") as source, self.open(path2, "wb") as destination:
            shutil.copyfileobj(source, destination, self.blocksize)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Make an empty file, or empty an existing one; without `truncate` give that the time of now."""
        try:
            super().touch(path, truncate, **kwargs)
        except NotImplementedError:
            with os_errors(path):
                self.client.metadata.set_attributes(self.client.follow(self._strip_protocol(path)), mtime_now=True)

    # ------------------------------------------------------------------ content

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, autocommit: bool = True,
              cache_options: dict[str, Any] | None = None, **kwargs: Any) -> "SpeedwellFile":
        if mode != "rb":
            self._make_room(path)
        return SpeedwellFile(self, path, mode, block_size or "default", autocommit, cache_options=cache_options,
                             **kwargs)

    # ------------------------------------------------------------------ private

    def _on(self, path: str, request: Callable[[str | bytes], Result]) -> Result:
        """Most paths lead through no symbolic link: only one that does is followed, up to its last name."""
        try:
            return request(path)
        except NotADirectory:
            return request(self.client.follow(path, last=False))

    def _info_if_any(self, path: str) -> Info:
        """Empty if there is nothing."""
        try:
            return self.info(path)
        except OSError as error:
            unless_missing(error)
            return {}

    def _make_room(self, path: str) -> None:
        if self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)

    def _info(self, path: str, attributes: Attributes) -> Info:
        link: Info = {}
        if attributes.type == SYMBOLIC_LINK:
            link = {"islink": True, "destination": os.fsdecode(attributes.target)}
            with suppress(NoSuchFile, NotADirectory, TooManySymbolicLinks):  # one that leads nowhere is told as it is
                attributes = self.client.lookup(self.client.follow(path), fresh=True)
        kinds = {DIRECTORY: "directory", REGULAR: "file", SYMBOLIC_LINK: "link"}
        return {"name": path, "size": attributes.size, "type": kinds.get(attributes.type, "other"),
                "mode": attributes.mode, "uid": attributes.uid, "gid": attributes.gid, "ino": attributes.inode,
                "mtime": attributes.mtime_ns / 1e9, **link}


class SpeedwellFile(AbstractBufferedFile):
    """One open file. Reads see the file as it was when it was opened, and what is appended to it after.

    What is written with "wb" or "xb" gets its name, whole, when the file is closed or its transaction ends; "ab"
    appends in place.
    """

    def __init__(self, fs: SpeedwellFileSystem, path: str, mode: str = "rb", *arguments: Any, size: int | None = None,
                 **options: Any) -> None:
        """Raises FileNotFoundError, FileExistsError ("xb"), IsADirectoryError and the like."""
        self._client = fs.client
        with os_errors(path):
            self._target = self._client.follow(path)
            if mode == "rb":
                self._reader = self._client.open_read(self._target)
                size = self._reader.size
        super().__init__(fs, path, mode, *arguments, size=size, **options)
        if mode != "rb":
            self.closed = True
            with os_errors(path):
                self._begin()
            self.closed = False

    def _begin(self) -> None:
        if self.mode == "ab":
            self._appender = self._client.open_append(self._target, self._client.create(self._target))
            self.loc = self._appender.size
            return
        present = self._present()
        hidden = b".%b.%b" % (paths.name(self._target)[:200], secrets.token_hex(8).encode())
        self._partial = paths.join(paths.parent(self._target), hidden)
        made = self._client.create(self._partial, present.mode if present else 0o644, exclusive=True)
        self._appender = self._client.open_append(self._partial, made)

    def _present(self) -> Attributes | None:
        try:
            attributes = self._client.lookup(self._target, fresh=True)
        except NoSuchFile:
            return None
        if attributes.type == DIRECTORY:
            raise IsADirectory(f"{paths.display(self._target)} is a directory")
        if self.mode == "xb":
            raise AlreadyExists(f"{paths.display(self._target)} exists")
        return attributes

    def _fetch_range(self, start: int, end: int) -> bytes:
        with os_errors(self.path):
            return self._reader.read(start, end - start)

    def _upload_chunk(self, final: bool = False) -> bool:
        try:
            with os_errors(self.path):
                self._appender.write(self.buffer.getvalue())
                if final:
                    self._appender.close()
                    if self.autocommit:
                        self.commit()
        except BaseException:
            self.discard()
            raise
        return True

    def commit(self) -> None:
        """Give what was written its name. Raises FileExistsError if "xb" and somebody else was quicker."""
        if self.mode != "ab":
            with os_errors(self.path):
                self._client.rename(self._partial, self._target, no_replace=self.mode == "xb")

    def discard(self) -> None:
        """Forget what was written; what "ab" has appended stays."""
        self.forced = True
        with suppress(SpeedwellError):
            self._appender.close()
        if self.mode != "ab":
            with suppress(SpeedwellError):
                self._client.remove(self._partial)

    def close(self) -> None:
        if not self.closed and self.mode == "rb":
            self._reader.close()
        super().close()
