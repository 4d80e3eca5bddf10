"""What every Ryu application of the controller is made from. Import Ryu's application manager from nowhere else, nor
what needs it."""

from __future__ import annotations

import eventlet.wsgi

# Ryu 4.34 imports this name from eventlet, which dropped it; only Ryu's web sockets ever use its value.
if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
    eventlet.wsgi.ALREADY_HANDLED = object()

from ryu.base.app_manager import AppManager, RyuApp
from ryu.controller.controller import Datapath
from ryu.ofproto import ofproto_v1_3

from speedwell.controller.loops import FAILURES, Loops
from speedwell.controller.services import Services

__all__ = ["AppManager", "Application", "Datapath"]


class Application(RyuApp):
    """A Ryu application with what runs beside its handlers: start loops and tasks with `loops`, nothing else.

    It is one of the `services`, by its class.
    """

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self.loops = services.get(Loops)
        services.provide(type(self), self)

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
