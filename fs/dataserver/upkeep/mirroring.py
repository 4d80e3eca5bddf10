"""Keeping a copy of the namespace up to date, and giving it back to a nameserver that lost its own."""

import logging
import threading

from speedwell.fs.dataserver.nameserver_link import NameserverLink
from speedwell.fs.dataserver.upkeep.mirror import Mirror
from speedwell.fs.errors import DatabaseDamaged, FileClosed, SpeedwellError, StorageFailed
from speedwell.fs.nameserver.backup.copy_holders import Holders
from speedwell.fs.proto.speedwell_pb2 import HeartbeatReply, HeartbeatRequest, UploadMirrorRequest
from speedwell.fs.store.change_encoding import MalformedRecord
from speedwell.fs.wire.calls import CallFailed, Calls

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1
"""Between two questions of a copy that is up to date: so much the copies may be behind."""

COPY_PAUSE_SECONDS = 0.02
PAUSE_AFTER_FAILURE_SECONDS = 0.5
CHECKED_KEYS = 200
CALL_SECONDS = 5.0


class Mirroring:
    """Does what heartbeats' answers say, in a thread of its own between `start` and `stop`."""

    def __init__(self, mirror: Mirror, link: NameserverLink, dataserver_id: str) -> None:
        self._mirror = mirror
        self._link = link
        self._dataserver_id = dataserver_id
        self._calls = Calls(link.address.split(",")[0], CALL_SECONDS, link.identity)
        self._keep: bool | None = None
        self._upload = 0
        self._uploaded = 0
        self._rebuilding = False
        self._holders: Holders | None = None
        self._stopped = threading.Event()
        self._ordered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the copy."""
        self._stopped.set()
        self._ordered.set()
        self._calls.close()
        if self._thread.is_alive():
            self._thread.join(timeout=CALL_SECONDS)
        self._mirror.close()

    # ------------------------------------------------------------------ heartbeats

    def report(self, request: HeartbeatRequest) -> None:
        """Add what the nameserver has to know to a heartbeat."""
        request.holders.CopyFrom(self._mirror.holders.message())
        position = self._mirror.position
        if position is not None:
            request.mirror.CopyFrom(position)
        request.mirror_damage = self._mirror.damage

    def ordered(self, reply: HeartbeatReply) -> None:
        """What the nameserver answered."""
        if reply.rebuilding:
            self._rebuilding, self._upload = True, reply.upload
        else:
            self._rebuilding, self._upload = False, 0
            self._keep = reply.keep_mirror
            if reply.holders.namespace:
                self._holders = Holders.of(reply.holders)
        self._ordered.set()

    # ------------------------------------------------------------------ private

    def _run(self) -> None:
        pause: float | None = None
        while not self._stopped.is_set():
            self._ordered.wait(pause)
            self._ordered.clear()
            if self._stopped.is_set():
                return
            pause = PAUSE_AFTER_FAILURE_SECONDS
            try:
                pause = self._step()
            except DatabaseDamaged as error:
                self._mirror.damaged(str(error))
            except MalformedRecord as error:
                log.warning("the nameserver sent something that is no batch of changes: %s", error)
            except (CallFailed, FileClosed) as error:
                log.debug("the nameserver does not answer: %s", error)
            except SpeedwellError as error:
                log.warning("copy of the namespace: %s", error)
            except Exception:
                log.exception("copy of the namespace")

    def _step(self) -> float | None:
        """Do what is to be done now; returns for how long to wait then, None: until the next heartbeat."""
        if self._rebuilding:
            if self._upload and self._upload != self._uploaded:
                self._send(self._upload)
            return None
        if self._holders is not None:
            self._mirror.learn(self._holders)
        if self._keep:
            reply = self._calls.call("Mirror", self._mirror.request(self._dataserver_id), CALL_SECONDS)
            self._mirror.take(reply)
            if reply.more:
                return 0.0
            if reply.cursor and not reply.copied:
                return COPY_PAUSE_SECONDS
            self._mirror.check(CHECKED_KEYS)
            return PAUSE_SECONDS
        if self._keep is False and not self._mirror.is_empty:
            log.info("this dataserver keeps no copy of the namespace any more")
            self._mirror.drop()
        return None

    def _send(self, upload: int) -> None:
        self._uploaded = upload
        log.warning("sending the copy of the namespace to the nameserver, which lost its own")
        for part, (changes, last) in enumerate(self._mirror.parts()):
            reply = self._link.upload_mirror(UploadMirrorRequest(dataserver_id=self._dataserver_id, upload=upload,
                                                                 part=part, changes=changes, last=last))
            if reply.stop or self._stopped.is_set():
                raise StorageFailed("the nameserver does not want it any more")
