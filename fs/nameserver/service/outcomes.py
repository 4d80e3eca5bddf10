"""What clients' last changes were answered, so that a request that is sent again is not carried out again.

A change whose request has an id (`ChangeId` of fs/proto/speedwell.proto) and the record of its reply are one batch
of the store: whatever becomes of the batch (a crash, another nameserver that takes over, a namespace rebuilt from a
copy), either both are there or neither is, and then carrying it out is right. There is one record for each requester,
which has one change under way at a time; the next change takes its place.

The record says by a certificate's name whose it is: nobody else hears that answer or takes its place, after a restart
neither.

A change that was refused leaves no record: asked again it is decided again, which is as if it had come only then.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from speedwell.fs.errors import InvalidArgument, NotAuthorised, SpeedwellError
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.store import Batch, Store, end_of_prefix

log = logging.getLogger(__name__)

FORGET_SECONDS = 600.0
"""How long the outcome for a silent requester is kept: longer than any client goes on asking."""

FORGET_AT_ONCE = 500
"""Requests wait meanwhile: some milliseconds."""


MOST_OF_A_CLIENT = 65536
"""Requesters of one certificate; one more, and the one of them that was silent for the longest time is forgotten."""


class Outcomes:
    """A store (`fs.store.contract.Store`) that adds the outcome to what is written in `once`. One thread at a
    time."""

    def __init__(self, store: Store, clock_seconds: Callable[[], float],
                 owns: Callable[[int], bool] = lambda requester: True) -> None:
        """`clock_seconds` is one that nobody sets; whoever has a record gets the whole time again after a restart.
        Only records of requesters that this nameserver `owns` are removed: of others it hears nothing."""
        self._store = store
        self._clock_seconds = clock_seconds
        self._owns = owns
        now_seconds = clock_seconds()
        self._pending: Batch | None = None
        self._heard: dict[int, tuple[int, float, bytes]] = {}
        # by requester, who was silent for the longest time first: the last sequence, when it was heard, whose it is
        self._of_client: defaultdict[bytes, dict[int, None]] = defaultdict(dict)      # likewise
        for key, value in store.iterate(records.OUTCOME_PREFIX, end_of_prefix(records.OUTCOME_PREFIX)):
            requester = records.outcome_requester(key)
            sequence, _, whose = records.decode_outcome(value)
            self._heard[requester] = sequence, now_seconds, whose
            self._of_client[whose][requester] = None

    def once(self, requester: int, sequence: int, change: Callable[[], bytes], client: str = "",
             is_limited: bool = False) -> bytes:
        """The serialised reply of `change`, which is called unless it has been carried out under that id. `client` is
        whose requester it is; an empty one is not known, or asks over the local socket, and may be any of them. One
        that `is_limited` in what it may see hears no answer but its own.

        Raises InvalidArgument for a change older than the last one: its client has stopped waiting for it.
        NotAuthorised for another client's.
        """
        whose = records.client_digest(client)
        last, _, owner = self._heard.get(requester) or self._recorded(requester, whose)
        if whose and whose != owner and (owner or (is_limited and sequence <= last)):
            raise NotAuthorised("id.requester: it is another client's")
        if sequence < last:
            raise InvalidArgument(f"id: change {sequence} comes after change {last} of the same requester")
        whose = whose or owner
        self._note(requester, sequence, whose)
        key = records.outcome_key(requester)
        if sequence == last:
            value = self._store.get(key)
            recorded, reply, _ = records.decode_outcome(value) if value is not None else (0, b"", b"")
            if recorded == sequence:
                return reply
        batch = self._pending = Batch()
        try:
            reply = change()
        finally:
            self._pending = None
        if batch.changes:
            batch.put(key, records.encode_outcome(sequence, reply, whose))
            self._store.write(batch)
        return reply

    def _recorded(self, requester: int, whose: bytes) -> tuple[int, float, bytes]:
        """Of one that was not heard here: another owner of its block may have answered it."""
        value = self._store.get(records.outcome_key(requester))
        if value is None:
            return 0, 0.0, whose
        sequence, _, owner = records.decode_outcome(value)
        return sequence, 0.0, owner

    def _note(self, requester: int, sequence: int, client: bytes) -> None:
        self._let_go(requester)
        own = self._of_client[client]
        if len(own) >= MOST_OF_A_CLIENT:
            oldest = next(iter(own))
            if self._owns(oldest) and self._store.get(records.outcome_key(oldest)) is not None:
                batch = Batch()
                batch.delete(records.outcome_key(oldest))
                self._store.write(batch)
            self._let_go(oldest)
        own = self._of_client[client]
        own[requester] = None
        self._heard[requester] = (sequence, self._clock_seconds(), client)

    def _let_go(self, requester: int) -> None:
        _, _, client = self._heard.pop(requester, (0, 0.0, b""))
        own = self._of_client.get(client)
        if own is not None:
            own.pop(requester, None)
            if not own:
                del self._of_client[client]

    def forget(self) -> None:
        """Let go of the outcomes for those who have been silent for long, some at once."""
        now_seconds = self._clock_seconds()
        batch = Batch()
        silent: list[int] = []
        for requester, (_, heard_seconds, _) in self._heard.items():
            if now_seconds - heard_seconds <= FORGET_SECONDS or len(silent) == FORGET_AT_ONCE:
                break
            silent.append(requester)
            if self._owns(requester):
                batch.delete(records.outcome_key(requester))
        try:
            if batch.changes:
                self._store.write(batch)
        except SpeedwellError as error:
            log.warning("the outcomes of old changes are kept for now: %s", error)
            return
        for requester in silent:
            self._let_go(requester)

    # -------------------------------------------------------------- the store

    def get(self, key: bytes) -> bytes | None:
        """As it is after what `once` has under way."""
        pending = self._pending
        if pending is not None and key in pending.changes:
            return pending.changes[key]
        return self._store.get(key)

    def get_all(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """The same for each."""
        return self._store.get_all(keys) if self._pending is None else [self.get(key) for key in keys]

    def iterate(self, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Without what `once` has under way."""
        return self._store.iterate(start, stop)

    def write(self, batch: Batch) -> None:
        if self._pending is None:
            self._store.write(batch)
        else:
            self._pending.changes.update(batch.changes)

    def sync(self) -> None:
        self._store.sync()

    def close(self) -> None:
        self._store.close()
