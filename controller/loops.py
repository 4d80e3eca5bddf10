"""What runs for ever in the controller, and what runs beside: nothing of it ends unseen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import eventlet
from eventlet.greenthread import GreenThread
from prometheus_client import Counter
from ryu.lib.hub import TaskExit

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.05, 2.0
"""How long a loop that failed waits before it goes on: twice as long after each failure in a row, up to the last."""
MEMORY_SECONDS = 60.0
"""How long a failure is told."""
FAILURES = (Exception, eventlet.Timeout)

TURN_SECONDS = 0.002
"""How long things are done before others have their turn."""

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is not as it should be: what is wrong, and for how many seconds or since how many."""

    name: str
    problem: str
    age_seconds: float


class Loop:
    """Made by `Loops.run`."""

    def __init__(self, name: str, patience_seconds: float | None, now: float) -> None:
        self.name = name
        self.patience_seconds = patience_seconds
        self.came_round_at = now
        self._is_stopped = False
        self._thread: GreenThread | None = None

    def begin(self, function: Callable[[], None], ended: Callable[[BaseException], None]) -> None:
        """Call `function` in a green thread; `ended` is told what ended it, unless that was `stop`, and it is called
        again after `LAST_PAUSE_SECONDS`."""
        def begin_again(thread: GreenThread) -> None:
            if not self._is_stopped:
                try:
                    thread.wait()
                except BaseException as error:
                    ended(error)
                self._begin_after(LAST_PAUSE_SECONDS, function, begin_again)

        self._begin_after(0.0, function, begin_again)

    def _begin_after(self, seconds: float, function: Callable[[], None],
                     then: Callable[[GreenThread], None]) -> None:
        self._thread = eventlet.spawn_after(seconds, function)
        self._thread.link(then)

    def stop(self) -> None:
        self._is_stopped = True
        if self._thread is not None:
            self._thread.kill()

    def trouble(self, now: float) -> Trouble | None:
        age_seconds = now - self.came_round_at
        if self.patience_seconds is not None and age_seconds > self.patience_seconds:
            return Trouble(self.name, f"It has not come round within {self.patience_seconds:g} s.", age_seconds)
        return None


class Loops:
    """Runs loops and tasks in green threads. What they raise is logged, counted in `failures` and told by `troubles`.

    Names are few and known beforehand: they label a metric.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loops: dict[str, Loop] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        """When each loop and task failed last, and of what."""
        self._watched: list[Callable[[], Iterable[Trouble]]] = []
        self.failures = Counter("speedwell_loop_failures", "Failures of the controller's own loops and tasks.",
                                ["name"], registry=None)

    def run(self, name: str, step: Callable[[], object], *, every_seconds: float = 0.0,
            patience_seconds: float | None) -> Loop:
        """Do a step again and again: wait `every_seconds`, then `step()`. What it raises does not end the loop, nor
        does anybody but `stop`.

        `patience_seconds` is how long one round may take before that is told; None for a step that waits for as long
        as nobody asks anything of it. Raises ValueError if a loop of this name runs.
        """
        if name in self._loops:
            raise ValueError(f"a loop {name!r} runs already")
        loop = self._loops[name] = Loop(name, patience_seconds, self._clock())

        def go_round() -> None:
            while True:
                eventlet.sleep(every_seconds)
                self.insist(name, step)
                loop.came_round_at = self._clock()

        loop.begin(go_round, lambda error: self.failed(name, error))
        return loop

    def insist(self, name: str, attempt: Callable[[], T]) -> T:
        """The result of `attempt()`, tried again for as long as it raises, ever rarer."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            try:
                return attempt()
            except FAILURES as error:
                self.failed(name, error)
            if name in self._loops:
                self._loops[name].came_round_at = self._clock()
            eventlet.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, LAST_PAUSE_SECONDS)

    def spawn(self, function: Callable[..., object], *arguments: Any) -> GreenThread:
        """Call a function once, in a green thread of its own, which gives None if the function raises."""
        return eventlet.spawn(self._try, function, arguments)

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function that never waits, once the hub comes round: without a green thread, which would take longer
        than most such functions."""
        eventlet.hubs.get_hub().schedule_call_global(0, self._try, function, arguments)

    def spawn_after(self, seconds: float, function: Callable[..., object], *arguments: Any) -> GreenThread:
        """As `spawn`, after so many seconds."""
        return eventlet.spawn_after(seconds, self._try, function, arguments)

    def _try(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> object:
        try:
            return function(*arguments)
        except TaskExit:
            return None
        except FAILURES as error:
            self.failed(_name_of(function), error)
            return None

    def failed(self, name: str, error: BaseException) -> None:
        """Log, count and remember a failure. For those who handle their own."""
        problem = f"{type(error).__name__}: {error}"
        is_news = self._failed.get(name, (0.0, ""))[1] != problem
        log.error("%s failed: %s", name, problem, exc_info=error if is_news else None)
        self._failed[name] = self._clock(), problem
        self.failures.labels(name).inc()

    def watch(self, report: Callable[[], Iterable[Trouble]]) -> None:
        """What `report` gives is among the troubles from now on."""
        self._watched.append(report)

    def troubles(self) -> list[Trouble]:
        """What failed within the last minute or does not come round, and what else is watched, by name."""
        return sorted(self._troubles(self._clock()), key=lambda trouble: trouble.name)

    def _troubles(self, now: float) -> Iterator[Trouble]:
        for name, (at, problem) in self._failed.items():
            if now - at <= MEMORY_SECONDS:
                yield Trouble(name, problem, now - at)
        for loop in self._loops.values():
            if trouble := loop.trouble(now):
                yield trouble
        for report in self._watched:
            yield from report()

    def stop(self) -> None:
        """Stop every loop; tasks go on to their end."""
        while self._loops:
            self._loops.popitem()[1].stop()


def _name_of(function: Callable[..., object]) -> str:
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name.replace(".<locals>", "")


def in_turns(items: Iterable[T]) -> Iterator[T]:
    """All items. Others have their turn before one is given, if it is time."""
    turns = Turns()
    for item in items:
        turns.others()
        yield item


def pieces(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """All items, so many at a time."""
    return (items[begin:begin + most] for begin in range(0, len(items), most))


class Turns:
    """For a long loop, or green threads that begin all at once: `others` lets other green threads run if these have
    run for `TURN_SECONDS` since they last did."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def others(self) -> None:
        while time.monotonic() - self._since >= TURN_SECONDS:
            ended = self._since
            eventlet.sleep(0)
            if self._since == ended:        # of those who share a turn, one begins the next
                self._since = time.monotonic()
