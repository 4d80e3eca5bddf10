"""libfuse 3's low-level interface (fuse_lowlevel.h), by ctypes."""

import ctypes
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from speedwell.fs.tracing import asking, run_within
from speedwell.fuse_mount.access_log import AccessLog
from speedwell.fuse_mount.binding import CAP_POSIX_ACL
from speedwell.fuse_mount.door import (
    ANSWERS,
    FINDS,
    MAKE_A_HANDLE,
    REQUESTS,
    ROOT_INODE,
    USE_A_HANDLE,
    Caller,
    errno_of,
)
from speedwell.fuse_mount.errors import MountError
from speedwell.fuse_mount.measures import TIME, Measures, Served

DROP_SECONDS = 0.05
DROPPED_AT_ONCE = 16
NOT_SAVED = -errno.EIO   # what `serve` returns if something that was written could not be saved
MAX_GROUPS = 1024
TELL_ATTRIBUTES = {"readdirplus", *(name for name, answer in ANSWERS.items() if answer in ("found", "attributes"))}


class Arguments(Structure):
    """`struct fuse_args`"""

    _fields_ = [("argc", c_int), ("argv", POINTER(c_char_p)), ("allocated", c_int)]


Context = c_uint * 4
"""`struct fuse_ctx`: uid, gid, pid, umask"""
Forgotten = c_uint64 * 2
"""`struct fuse_forget_data`: inode, look-ups"""
LoopConfig = c_uint * 2
"""`struct fuse_loop_config` before libfuse 3.12: clone_fd, max_idle_threads"""


@dataclass(slots=True)
class _OfThread(Served):
    """The request that a thread serves, the inode that it found last, and memory for its answers."""

    found: int = 0
    view: memoryview = field(default_factory=lambda: memoryview(b""))
    address: int = 0

    def memory(self, size: int) -> memoryview:
        """So many bytes at `address`, of which nobody knows what they are."""
        if len(self.view) < size:
            buffer = bytearray(size)
            self.view, self.address = memoryview(buffer), ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        return self.view[:size]


class _Here(threading.local):
    def __init__(self, measures: Measures) -> None:
        self.thread = _OfThread()
        measures.add(self.thread)


class Session:
    """One mount: `serve` ends with it. What the mount asks and tells the kernel in a request is behind it. A
    subclass has a method for each request that is answered, `_` and the name of libfuse's field."""

    def __init__(self, library: ModuleType, tune: Callable[[Any], None], root: int = ROOT_INODE) -> None:
        """`tune` is called with the connection to the kernel when that is made; a MountError that it raises ends
        `serve`. `root` is the inode of the directory that the kernel, which counts from 1, gets as its root.

        Raises MountError if libfuse lacks functions.
        """
        self.measures = Measures()
        self.access_log = AccessLog()
        self._libfuse: Any = library._libfuse
        # For what only computes; whoever answers lets go of the interpreter, as a program that is woken may take the
        # processor away.
        self._briefly: Any = ctypes.PyDLL(self._libfuse._name, handle=self._libfuse._handle)
        self._has_lseek = hasattr(self._libfuse, "fuse_reply_lseek")    # libfuse 3.8 and later
        self._tune = tune
        self.acls = False   # whether the kernel checks access control lists
        self._statvfs_type: Any = library.c_statvfs
        self._operations: Any = None
        self._root = root
        self._refused: MountError | None = None
        self._session: int | None = None
        self._dropping = threading.BoundedSemaphore(DROPPED_AT_ONCE)
        self._here = _Here(self.measures)
        self._declare(library)
        self._table = self._functions(library)

    # ------------------------------------------------------------------ in a request

    def caller(self) -> Caller:
        """The program whose request is being served."""
        uid, gid, process, umask = self._briefly.fuse_req_ctx(self._here.thread.request).contents
        return Caller(uid, gid, process, umask if self.acls else 0)

    def is_in_group(self, gid: int) -> bool:
        """Whether that program's user is root or in the group."""
        groups = (c_uint * MAX_GROUPS)()
        count = min(self._libfuse.fuse_req_getgroups(self._here.thread.request, MAX_GROUPS, groups), MAX_GROUPS)
        caller = self.caller()
        return caller.uid == 0 or caller.gid == gid or gid in groups[:max(count, 0)]

    def stopped_by(self) -> int | None:
        """With which errno a request that waits has to end: that program got a signal, or the mount ends. Without a
        signal, EINTR would become ERESTARTSYS there, of which no program knows."""
        if self._briefly.fuse_session_exited(self._session):
            return errno.ENOTCONN
        return errno.EINTR if self._briefly.fuse_req_interrupted(self._here.thread.request) else None

    def is_being_told(self) -> bool:
        """Whether another request is served whose answer has attributes."""
        return self.measures.is_served(TELL_ATTRIBUTES, self._here.thread)

    def drop_attributes(self, inode: int) -> None:
        """Have the kernel ask again."""
        inode = ROOT_INODE if inode == self._root else inode    # which the kernel need not know
        self._libfuse.fuse_lowlevel_notify_inval_inode(self._session, inode, -1, 0)

    def drop_pages(self, inode: int, within_seconds: float = DROP_SECONDS) -> bool:
        """Have the kernel ask again and read the content again; whether it has dropped all that it had by then.

        It first writes back changed pages and waits for reads of them, which may be stuck, and both may
        wait for this very request. So another thread asks the kernel, and the request goes on after `within_seconds`
        at the latest."""
        deadline = time.monotonic() + within_seconds
        if not self._dropping.acquire(timeout=within_seconds):
            return False
        asking = threading.Thread(target=self._drop_pages, args=(inode,), name="kernel-cache", daemon=True)
        try:
            asking.start()
        except RuntimeError:    # out of threads
            self._dropping.release()
            return False
        asking.join(max(deadline - time.monotonic(), 0.0))
        return not asking.is_alive()

    def _drop_pages(self, inode: int) -> None:
        try:
            if self._session is not None:
                self._libfuse.fuse_lowlevel_notify_inval_inode(self._session, inode, 0, 0)
        finally:
            self._dropping.release()

    # ------------------------------------------------------------------ serving

    def serve(self, operations: Any, mountpoint: str, options: str, threads: int) -> int:
        """Mount and serve until unmounted (0) or told to stop (the number of the signal).

        Raises MountError if libfuse cannot mount, of which it says why on standard error, or the kernel is too old.
        """
        libfuse = self._libfuse
        self._operations = operations
        words = [b"speedwell-mount", b"-o", os.fsencode(options)]
        arguments = Arguments(len(words), (c_char_p * len(words))(*words), 0)
        session = libfuse.fuse_session_new(byref(arguments), byref(self._table), ctypes.sizeof(self._table), None)
        if not session:
            raise _failed(mountpoint, "libfuse makes no session")
        signal.signal(signal.SIGINT, signal.SIG_DFL)    # libfuse leaves alone what somebody else handles
        try:
            if libfuse.fuse_set_signal_handlers(session):
                raise _failed(mountpoint, "libfuse sets no signal handlers")
            if libfuse.fuse_session_mount(session, os.fsencode(mountpoint)):
                raise _failed(mountpoint, "libfuse does not mount")
            self._session = session
            try:
                status = int(self._loop(session, threads))
                if self._refused is not None:
                    raise self._refused
            finally:
                libfuse.fuse_session_unmount(session)
                is_saved = operations.destroy()
                libfuse.fuse_remove_signal_handlers(session)
            return status if is_saved else NOT_SAVED
        finally:
            self._session = None
            libfuse.fuse_session_destroy(session)

    def _loop(self, session: int, threads: int) -> int:
        libfuse = self._libfuse     # idle threads stay: what Python keeps of each that ends is never given back
        if not hasattr(libfuse, "fuse_loop_cfg_create"):
            return int(libfuse.fuse_session_loop_mt_32(c_void_p(session), byref(LoopConfig(0, threads))))
        libfuse.fuse_loop_cfg_create.restype = c_void_p
        configuration = c_void_p(libfuse.fuse_loop_cfg_create())
        try:
            libfuse.fuse_loop_cfg_set_idle_threads(configuration, c_uint(threads))
            libfuse.fuse_loop_cfg_set_max_threads(configuration, c_uint(threads))
            return int(libfuse.fuse_session_loop_mt_312(c_void_p(session), configuration))
        finally:
            libfuse.fuse_loop_cfg_destroy(configuration)

    def _declare(self, library: ModuleType) -> None:
        """What libfuse's functions take."""
        functions_of_libfuse: dict[str, tuple[Any, ...]] = {
            "fuse_reply_err": (c_int,), "fuse_reply_none": (), "fuse_reply_readlink": (c_char_p,),
            "fuse_reply_open": (POINTER(library.fuse_file_info),), "fuse_reply_write": (c_size_t,),
            "fuse_reply_buf": (c_void_p, c_size_t), "fuse_reply_statfs": (POINTER(self._statvfs_type),),
            "fuse_reply_xattr": (c_size_t,), "fuse_reply_lock": (POINTER(library.c_flock_t),),
            "fuse_req_getgroups": (c_int, POINTER(c_uint)), "fuse_req_ctx": (), "fuse_req_interrupted": (),
            "fuse_session_exited": (),
            "fuse_lowlevel_notify_inval_inode": (c_uint64, c_int64, c_int64),
            "fuse_session_exit": (), "fuse_session_mount": (c_char_p,), "fuse_session_unmount": (),
            "fuse_session_destroy": (), "fuse_set_signal_handlers": (), "fuse_remove_signal_handlers": (),
            "fuse_session_new": (c_void_p, c_size_t, c_void_p),
            **({"fuse_reply_lseek": (c_int64,)} if self._has_lseek else {})}
        missing = [name for name in functions_of_libfuse if not hasattr(self._libfuse, name)]
        loops = ("fuse_loop_cfg_create", "fuse_session_loop_mt_32")
        if not any(hasattr(self._libfuse, name) for name in loops):
            missing.append(" or ".join(loops))
        if missing:
            raise MountError(f"this libfuse ({self._libfuse._name}) has no {', '.join(missing)}: install libfuse 3.2 "
                             "or newer (Debian package libfuse3-3)")
        for name, types in functions_of_libfuse.items():
            for functions in (self._libfuse, self._briefly):
                getattr(functions, name).argtypes = [c_void_p, *types]
        self._briefly.fuse_req_ctx.restype = POINTER(Context)
        self._libfuse.fuse_session_new.restype = c_void_p

    def _functions(self, library: ModuleType) -> Any:
        """A `struct fuse_lowlevel_ops`."""
        argument_types: dict[str, Any] = {
            **dict.fromkeys(("inode", "to", "lookups", "device"), c_uint64),
            **dict.fromkeys(("name", "to_name", "target"), c_char_p), **dict.fromkeys(("offset", "length"), c_int64),
            **dict.fromkeys(("size", "inodes"), c_size_t), "mode": c_uint, "data": c_void_p,
            **dict.fromkeys(("info", "handle"), POINTER(library.fuse_file_info)), "lock": POINTER(library.c_flock_t),
            "forgotten": POINTER(Forgotten),
            "status": POINTER(library.c_stat),
            **dict.fromkeys(("fields", "flags", "kind", "waits", "whence"), c_int)}
        types = {"init": CFUNCTYPE(None, c_void_p, POINTER(library.fuse_conn_info)),
                 "destroy": CFUNCTYPE(None, c_void_p),
                 **{request: CFUNCTYPE(None, c_void_p, *(argument_types[name] for name in names))
                    for request, names in REQUESTS.items() if self._has_lseek or request != "lseek"}}
        table: Any = type("fuse_lowlevel_ops", (Structure,), {"_fields_": list(types.items())})()
        table.init = types["init"](self._init)
        for request, names in REQUESTS.items():
            method = getattr(self, f"_{request}", None)
            if method is not None and request in types:
                traced = self._traced(request, self._rooted(method, names))
                setattr(table, request, types[request](self._guarded(request, traced)))
        return table

    def _init(self, _: Any, connection: Any) -> None:
        try:
            self._tune(connection.contents)
        except MountError as error:
            self._refused = error
            self._libfuse.fuse_session_exit(self._session)
        else:
            self.acls = bool(connection.contents.want & CAP_POSIX_ACL)
            self._operations.init()

    def _rooted(self, method: Callable[..., None], names: Sequence[str]) -> Callable[..., None]:
        if self._root == ROOT_INODE:
            return method

        def rooted(request: int, *arguments: Any) -> None:
            method(request, *(self._root if given == ROOT_INODE and name in ("inode", "to") else given
                              for name, given in zip(names, arguments, strict=True)))

        return rooted

    def _traced(self, name: str, method: Callable[..., None]) -> Callable[..., None]:
        """The same method as part of a trace: that of the open(2) whose handle it uses, or one that it begins."""
        def making(request: int, *arguments: Any) -> None:
            asking(name, method, request, *arguments)

        def using(request: int, *arguments: Any) -> None:
            run_within(self._operations.traceparent(arguments[-1].contents.fh), method, request, *arguments)

        return making if name in MAKE_A_HANDLE else using if name in USE_A_HANDLE else method

    def _guarded(self, name: str, method: Callable[..., None]) -> Callable[..., None]:
        """Answers with what `method` raises, which it does only before it answers. Every request comes through here,
        is measured, and told to the readers of the access log."""
        here, access_log, clock = self._here, self.access_log, time.perf_counter_ns

        def guarded(request: int, *arguments: Any) -> None:
            served, number = here.thread, 0
            if not served.is_kept:
                # Python makes a thread state for every call from one of libfuse's threads and drops it afterwards,
                # with its memory; held once more, it lives as long as the thread.
                served.is_kept = True
                ctypes.pythonapi.PyGILState_Ensure()
            served.request, served.operation = request, name
            began_ns = served.began_ns = clock()
            noted = (time.time_ns(), self.caller(), served.moved_bytes) if access_log.readers else None
            try:
                method(request, *arguments)
            except BaseException as error:
                number = errno_of(name, error)
                self._libfuse.fuse_reply_err(request, number)
                served.errors[name, number] += 1
            took_ns = clock() - began_ns
            cell = served.cells[name]
            cell[took_ns.bit_length()] += 1
            cell[TIME] += took_ns
            served.began_ns = 0
            if noted is not None:
                time_ns, caller, moved_bytes = noted
                access_log.note(time_ns, took_ns, caller, name, arguments, number,
                                served.found if name in FINDS else served.moved_bytes - moved_bytes)

        return guarded


def _failed(mountpoint: str, what: str) -> MountError:
    return MountError(f"{mountpoint} cannot be mounted ({what}; its own message is above)")
