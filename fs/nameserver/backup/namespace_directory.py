"""What a nameserver keeps in its directory, and what it makes of it when it starts.

    state        what the last process did, one line of JSON and its CRC
    namespace/   the database
    journal/     its last batches, for copies elsewhere
    rebuilding/  a database that is being made from a copy
    lock         held by the process
"""

import fcntl
import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from crc32c import crc32c

from speedwell.fs import durable
from speedwell.fs.errors import DatabaseDamaged, InvalidArgument, StorageFailed
from speedwell.fs.private_directory import keep_private
from speedwell.fs.release import read_fields
from speedwell.fs.store import JournaledStore, LevelDBStore, Position
from speedwell.fs.store.journal import Journal

MAKING, SERVING, STOPPED, REBUILDING = "making", "serving", "stopped", "rebuilding"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class State:
    """`boot` is the machine's boot id, `sync` whether every change was forced to the disk, `sequence` the last batch
    when it was STOPPED."""

    condition: str
    namespace: str = ""
    boot: str = ""
    sync: bool = False
    sequence: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """The namespace has to come from elsewhere; `namespace` is its id, if known."""

    why: str
    namespace: bytes = b""


@dataclass(frozen=True, slots=True)
class Found:
    """The database, and why it may not be the newest state there is (empty: it is)."""

    store: JournaledStore
    doubt: str = ""


class NameserverDirectory:
    """Of one process at a time."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        """Makes the directory. Raises StorageFailed if it cannot be used."""
        self._path = path
        self._sync = sync
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFailed(f"cannot make the directory {path}: {error.strerror}") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise StorageFailed(f"the directory {path} is not writable")
        self._lock = self._take_lock()
        keep_private(path)

    def close(self) -> None:
        """Let another process use the directory. Safe to call again."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def open(self, *, new: bool) -> Found | Lost:
        """The namespace in the directory, or with `new` an empty one in an empty directory. Raises StorageFailed."""
        try:
            state = self._read_state()
        except ValueError as error:
            return self._opened(State(SERVING), f"the file {self._path / 'state'} is damaged: {error}")
        if state is None and (self._path / "namespace").exists():
            return self._opened(State(SERVING), f"the file {self._path / 'state'} is missing")
        if state is None or state.condition == MAKING:
            return self._make() if new else Lost(f"the directory {self._path} is empty")
        if state.condition == REBUILDING:
            return Lost(state.why, bytes.fromhex(state.namespace))
        return self._opened(state, self._doubt(state))

    def serving(self, store: JournaledStore) -> None:
        """From now on the namespace changes. Raises StorageFailed."""
        self._write_state(State(SERVING, store.position.namespace.hex(), _boot_id(), self._sync))

    def stopped(self, position: Position) -> None:
        """The store was closed in that state. Raises StorageFailed."""
        self._write_state(State(STOPPED, position.namespace.hex(), _boot_id(), self._sync, position.sequence))

    def begin_rebuilding(self, namespace: bytes, why: str) -> LevelDBStore:
        """An empty database to be filled; the old one is of no use any more. Raises StorageFailed."""
        self._write_state(State(REBUILDING, namespace.hex(), why=why))
        shutil.rmtree(self._path / "rebuilding", ignore_errors=True)
        return LevelDBStore(self._path / "rebuilding")

    def journal(self) -> Journal:
        """Of the old database; its last batches may be newer than a copy. Raises StorageFailed."""
        return Journal(self._path / "journal", last=0)

    def end_rebuilding(self) -> None:
        """Put the rebuilt database, which is closed, in the place of the old one. Raises StorageFailed."""
        try:
            shutil.rmtree(self._path / "namespace", ignore_errors=True)
            (self._path / "rebuilding").rename(self._path / "namespace")
        except OSError as error:
            raise StorageFailed(f"{self._path}: {error.strerror}") from error

    def reopen(self) -> JournaledStore:
        """The database that was put in place. Raises StorageFailed."""
        return JournaledStore(self._database(create=False), self.journal())

    # ------------------------------------------------------------------ private

    def _take_lock(self) -> int:
        try:
            lock = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageFailed(f"cannot write to {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise StorageFailed(f"the database in {self._path} is in use by another process") from None
        return lock

    def _database(self, *, create: bool) -> LevelDBStore:
        return LevelDBStore(self._path / "namespace", sync=self._sync, create=create)

    def _make(self) -> Found:
        position = Position(uuid.uuid4().bytes, timeline=1 << 16)
        self._write_state(State(MAKING, position.namespace.hex()))
        for name in ("namespace", "journal"):
            shutil.rmtree(self._path / name, ignore_errors=True)
        return Found(JournaledStore.begin(self._database(create=True), self.journal(), position))

    def _opened(self, state: State, doubt: str) -> Found | Lost:
        namespace = bytes.fromhex(state.namespace)
        try:
            database = self._database(create=False)
            try:
                store = JournaledStore(database, self.journal())
            except BaseException:
                database.close()
                raise
        except DatabaseDamaged as error:
            self._write_state(replace(state, condition=REBUILDING, why=str(error)))
            return Lost(str(error), namespace)
        position = store.position
        if state.condition == STOPPED and position.sequence != state.sequence:
            doubt = f"the database ends with batch {position.sequence}, and had {state.sequence} when it was closed"
        if state.namespace and position.namespace != namespace:
            doubt = f"the database in {self._path} is of another namespace than before"
        return Found(store, doubt)

    @staticmethod
    def _doubt(state: State) -> str:
        """A process that was killed has lost nothing, a machine that lost power has without `sync`."""
        if state.condition == SERVING and not state.sync and state.boot != _boot_id():
            return "the machine was started again without a clean stop: the last changes may be lost"
        return ""

    def _read_state(self) -> State | None:
        """Raises ValueError for a damaged one."""
        try:
            line = (self._path / "state").read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"{self._path / 'state'}: {error.strerror}") from error
        text, _, total = line.strip().rpartition(b" ")
        if total != b"%08x" % crc32c(text):
            raise ValueError("it does not match its checksum")
        try:
            return read_fields(State, json.loads(text))
        except TypeError as error:
            raise InvalidArgument(f"{self._path / 'state'}: {error}") from None

    def _write_state(self, state: State) -> None:
        text = json.dumps(asdict(state)).encode()
        try:
            durable.replace(self._path / "state", text + b" %08x\n" % crc32c(text), 0o644)
        except OSError as error:
            raise StorageFailed(f"cannot write to {self._path}: {error.strerror}") from error


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
