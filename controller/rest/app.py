"""Serves the REST interface: whatever the applications registered."""

from __future__ import annotations

from prometheus_client import Counter

from speedwell.controller.application import Application
from speedwell.controller.rest import RestApplication
from speedwell.controller.rest.access import Access
from speedwell.controller.rest.server import door_of, listen, serve
from speedwell.controller.services import Services
from speedwell.controller.settings import Settings
from speedwell.fs.identity.bundle import Identity


class RestApi(Application):
    """`address` is where it is served, once it is started."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._application = services.get(RestApplication)
        self._application.metrics.register(self.loops.failures)

    def start(self) -> None:
        """Raises OSError if the address cannot be had: a controller that cannot be asked is of no use."""
        settings = self.services.get(Settings)
        listening = listen(str(settings.rest_host), settings.rest_port)
        self.address: tuple[str, int] = listening.getsockname()[:2]
        door = None
        if settings.identity is not None:
            refusals = Counter("speedwell_rest_refused_connections",
                               "Connections that ended before their other end had proved who it is.", registry=None)
            door = door_of(self.services.get(Identity), refusals.inc)
            self._application.access = Access(door.identity, settings.rest_requests_per_second)
            self._application.metrics.register(refusals)
        super().start()
        self.loops.run("REST connections", lambda: serve(listening, self._application, self.loops, door),
                       patience_seconds=None)
