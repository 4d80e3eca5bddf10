"""What every Ryu application of the controller is made from. Import Ryu's application manager from nowhere else, nor
what needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import eventlet.wsgi

# Ryu 4.34 imports this name from eventlet, which dropped it; only Ryu's web sockets ever use its value.
if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
    eventlet.wsgi.ALREADY_HANDLED = object()

from ryu.base.app_manager import AppManager, RyuApp, lookup_service_brick
from ryu.controller.controller import Datapath

from controller.loops import FAILURES, Loops

__all__ = ["AppManager", "Application", "Datapath", "lookup_service_brick"]


class Application(RyuApp):
    """A Ryu application with what runs beside its handlers: start loops and tasks with `loops`, nothing else."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loops: Loops = kwargs.get("loops") or Loops()

    @classmethod
    def context_iteritems(cls) -> Iterator[tuple[str, type]]:
        """What Ryu hands to the constructor: what the class names, and the loops of the whole controller."""
        return iter({**cls._CONTEXTS, "loops": Loops}.items())

    def _event_loop(self) -> None:
        """Ryu's, but a handler that fails is counted and told."""
        while self.is_active or not self.events.empty():
            event, state = self.events.get()
            self._events_sem.release()
            if event == self._event_stop:
                continue
            for handler in self.get_handlers(event, state):
                try:
                    handler(event)
                except FAILURES as error:
                    self.loops.failed(f"{self.name}.{handler.__name__}", error)
