"""The web page: static files, and one stream of events that is composed once a second for all who look."""

from __future__ import annotations

import json
import time
import zlib
from collections import deque
from collections.abc import Iterator
from importlib.resources import files
from typing import Annotated

from eventlet.semaphore import Semaphore
from prometheus_client import Gauge
from pydantic import Field

from speedwell.controller.application import Application
from speedwell.controller.counters.measurements import Measurements
from speedwell.controller.errors import ControllerError
from speedwell.controller.loops import in_turns
from speedwell.controller.page.fabric_map import FabricMap
from speedwell.controller.page.viewers import TooManyViewers, Viewer, Viewers
from speedwell.controller.rest import PlainText, RestApplication, route
from speedwell.controller.rest.access import COOKIE
from speedwell.controller.rest.fields import InputModel
from speedwell.controller.rest.http import Headers
from speedwell.controller.rest.problems import NotAuthenticated
from speedwell.controller.rest.roles import EVERYBODY
from speedwell.controller.services import Services
from speedwell.controller.topology.state import NetworkState

FRAME_SECONDS, PATIENCE_SECONDS = 1.0, 10.0
HISTORY_EVERY, HISTORY_SECONDS = 5, 600
"""Every so manieth frame is kept for those who come later, for ten minutes."""
SECTIONS = {"health": "/v1/health", "reads": "/v1/reads?limit=100", "coflows": "/v1/coflows?limit=50",
            "turns": "/v1/timeslices/turns", "placements": "/v1/placements?limit=50",
            "metadata": "/v1/metadata/servers", "storage": "/v1/storage?limit=64"}
"""What a frame has beside the loads: answers of the REST interface, if there are any."""
SLOW_SECTIONS = {"blocks": "/v1/metadata/blocks"}
"""The same for what is long and seldom changes: an event of its own."""
COFLOWS_WITH_FLOWS, FLOWS_OF_COFLOW = 8, 16

NOT_KEPT = ("Cache-Control", "no-cache")
POLICY = ("Content-Security-Policy",
          "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
STATIC = (NOT_KEPT, POLICY, ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"))
HTML = PlainText("text/html; charset=utf-8", (*STATIC, ("Vary", "Accept")))
SCRIPT, STYLE = PlainText("text/javascript; charset=utf-8", STATIC), PlainText("text/css; charset=utf-8", STATIC)
EVENTS = PlainText("text/event-stream", (("Cache-Control", "no-store"),))
COOKIE_RULES = "Path=/; HttpOnly; Secure; SameSite=Strict"
HISTORY = PlainText("application/json", (("Cache-Control", "no-store"), ("Content-Encoding", "gzip")))
GZIP_WINDOW = 31

FileName = Annotated[str, Field(pattern=r"^[a-z-]{1,32}$", description="Without its ending.")]


class Login(InputModel):
    """Who looks at the page."""

    token: str = Field(pattern=r"^[A-Za-z0-9_-]{1,256}$", description="Of `speedwell identity token`.")


class UnknownFile(ControllerError):
    """The page has no such file."""

    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"the page has no file {name}")


class WebPage(Application):
    """What is shown of the systems is what they tell over REST: the page knows their URLs, and works without them."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._rest = services.get(RestApplication)
        self._map = FabricMap(services.get(NetworkState), services.get(Measurements))
        web = files("speedwell.controller.page").joinpath("web")
        self._files = {each.name: each.read_bytes() for each in web.iterdir()}
        self._viewers = Viewers()
        self._fabric = b""
        self._frame = b"{}"
        self._composed_at = 0.0
        self._composing = Semaphore()
        self._slow: dict[str, bytes] = {}
        self._history: deque[bytes] = deque(maxlen=HISTORY_SECONDS // HISTORY_EVERY)
        self._frames = 0
        self._rest.register(self)
        self._rest.browser_page = "/page"
        Gauge("speedwell_page_viewers", "Browsers that follow the events.",
              registry=self._rest.metrics).set_function(lambda: len(self._viewers))

    def start(self) -> None:
        super().start()
        self.loops.run("page", self._go_on, every_seconds=FRAME_SECONDS, patience_seconds=PATIENCE_SECONDS)

    # --- routes ---

    @route("GET", "/page", summary="The web page, as / is for browsers", tag="page", response=HTML, roles=EVERYBODY)
    def page(self) -> bytes:
        return self._files["index.html"]

    @route("GET", "/page/{name}.js", summary="A part of the web page", tag="page", response=SCRIPT,
           problems=[UnknownFile], roles=EVERYBODY)
    def script(self, name: FileName) -> bytes:
        return self._file(f"{name}.js")

    @route("GET", "/page/{name}.css", summary="How the web page looks", tag="page", response=STYLE,
           problems=[UnknownFile], roles=EVERYBODY)
    def style(self, name: FileName) -> bytes:
        return self._file(f"{name}.css")

    @route("POST", "/v1/session", summary="Let a browser in that has a token", tag="page", request=Login, status=204,
           problems=[NotAuthenticated], roles=EVERYBODY)
    def log_in(self, body: Login) -> Headers:
        """The token comes back as a cookie that only this controller gets, and no script."""
        seconds = 0
        if self._rest.access is not None:
            seconds = int(self._rest.access.by_token(body.token).expires_at - time.time())
        return [("Set-Cookie", f"{COOKIE}={body.token}; Max-Age={seconds}; {COOKIE_RULES}")]

    @route("DELETE", "/v1/session", summary="Have a browser forget its token", tag="page", status=204,
           roles=EVERYBODY)
    def log_out(self) -> Headers:
        return [("Set-Cookie", f"{COOKIE}=; Max-Age=0; {COOKIE_RULES}")]

    @route("GET", "/v1/events", summary="What happens, once a second, as server-sent events", tag="page",
           response=EVENTS, problems=[TooManyViewers])
    def follow_events(self) -> Viewer:
        """`fabric` has nodes and links, when it begins and when they change; `frame` has every second the links'
        loads in this order, and what the systems tell over REST. Who does not keep up is disconnected."""
        with self._composing:
            if time.monotonic() - self._composed_at > FRAME_SECONDS:
                self._refresh()
        return self._viewers.add((b"retry: 1000\n\n", _event("fabric", self._fabric), _event("frame", self._frame),
                                  *(_event(name, body) for name, body in self._slow.items())))

    @route("GET", "/v1/events/history", summary="Frames of the last ten minutes, oldest first", tag="page",
           response=HISTORY)
    def history(self) -> bytes:
        """A frame every five seconds, as a JSON list. The answer is always compressed."""
        packer = zlib.compressobj(1, wbits=GZIP_WINDOW)
        pieces = [packer.compress(b"[")]
        for number, frame in enumerate(in_turns(list(self._history))):
            pieces.append(packer.compress(b"," + frame if number else frame))
        return b"".join([*pieces, packer.compress(b"]"), packer.flush()])

    def _file(self, name: str) -> bytes:
        if name not in self._files:
            raise UnknownFile(name)
        return self._files[name]

    # --- composing ---

    def _go_on(self) -> None:
        self._frames += 1
        is_kept = self._frames % HISTORY_EVERY == 0
        if self._viewers or is_kept:
            with self._composing:
                self._refresh()
        if is_kept:
            self._history.append(self._frame)

    def _refresh(self) -> None:
        """Bring everything up to date, and tell all who look."""
        for event in self._compose():
            self._viewers.send(event)

    def _compose(self) -> Iterator[bytes]:
        epoch = self._map.epoch
        if self._map.follow() or not self._fabric:
            self._fabric = json.dumps(self._map.description(), separators=(",", ":")).encode()
            yield _event("fabric", self._fabric)
        if self._map.epoch != epoch:
            self._history.clear()
        for name, url in SLOW_SECTIONS.items():
            body = self._rest.told(url)
            if body is not None and body != self._slow.get(name):
                self._slow[name] = body
                yield _event(name, body)
        loads = json.dumps(self._map.loads(), separators=(",", ":")).encode()
        sections = [b'"%s":%s,' % (name.encode(), body) for name, body in self._sections()]
        self._frame = b'{"at":%.3f,"epoch":%d,%s"loads":%s}' % (
            time.time(), self._map.epoch, b"".join(sections), loads)
        self._composed_at = time.monotonic()
        yield _event("frame", self._frame)

    def _sections(self) -> Iterator[tuple[str, bytes]]:
        for name, url in in_turns(SECTIONS.items()):
            body = self._rest.told(url)
            if body is None:
                continue
            yield name, body
            if name == "coflows":
                details = [self._rest.told(f"/v1/coflows/{each['id']}?limit={FLOWS_OF_COFLOW}")
                           for each in in_turns(json.loads(body)["coflows"][:COFLOWS_WITH_FLOWS])]
                yield "members", b"[%s]" % b",".join(filter(None, details))


def _event(name: str, body: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), body)
