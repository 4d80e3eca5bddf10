"""Ryu without ryu-manager: loads the applications, binds where it was told to, and nowhere else."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import eventlet
from eventlet.green import socket
from prometheus_client import Counter
from ryu import cfg
from ryu.controller import ofp_handler

from speedwell.controller.application import Application, AppManager
from speedwell.controller.counters.measurements import Measurements
from speedwell.controller.election import Election
from speedwell.controller.errors import InvalidApplication
from speedwell.controller.garbage import collect_for_ever
from speedwell.controller.leadership import Leadership
from speedwell.controller.loops import Loops
from speedwell.controller.rest import RestApplication
from speedwell.controller.rest.app import RestApi
from speedwell.controller.secure import Door
from speedwell.controller.services import Services
from speedwell.controller.settings import Settings
from speedwell.controller.switches.connection import bad_message_counter, door_of, serve_switch
from speedwell.controller.switches.packet_ins import PacketIns
from speedwell.controller.topology.state import NetworkState
from speedwell.fs import logs, tracing
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import CONTROLLER

LOG = logging.getLogger(__name__)
BACKLOG = 512


class AddressTaken(Exception):
    """An address cannot be bound. The message names it and says why."""


class Controller:
    """The running controller.

    Raises AddressTaken if one of its addresses cannot be had, IdentityError for an identity that is of no use,
    InvalidApplication for a module that is none, and what applications raise that cannot start: MissingService,
    ServiceTaken, TableTaken, InvalidSettings.
    """

    def __init__(self, settings: Settings, app_modules: Sequence[str]) -> None:
        logs.configure(settings.log_level)
        tracing.start("speedwell-controller", f"{settings.rest_host}:{settings.rest_port}")
        if settings.log_level != "debug":
            logging.getLogger("ryu").setLevel(logging.WARNING)
        cfg.CONF([], project="speedwell", default_config_files=[])
        cfg.CONF.set_override("echo_request_interval", settings.echo_interval_seconds)
        cfg.CONF.set_override("maximum_unreplied_echo_requests", settings.echo_misses)
        identity = Identity(settings.identity).require_role(CONTROLLER) if settings.identity is not None else None
        listening = _listen(str(settings.openflow_host), settings.openflow_port)
        self.openflow_address = _address(listening.getsockname())
        # Ryu's own listener would bind in the background, where a failure is lost.
        ofp_handler.OpenFlowController = lambda: self._begin_accepting(listening)
        self._manager = AppManager.get_instance()
        for module in app_modules:
            _require_application(module)
        # Ryu's handler comes last: switches may connect once everything else has started.
        self._manager.load_apps([*app_modules, "ryu.controller.ofp_handler"])
        self._loops = Loops()
        self._leadership = Leadership(is_alone=not settings.etcd)
        state = NetworkState(settings, self._loops, identity, self._leadership)
        self._services = Services(settings, self._loops, state, Measurements(), PacketIns(self._loops),
                                  RestApplication(self._leadership), *([identity] if identity else []))
        try:
            self._manager.instantiate_apps(services=self._services)
        except OSError as error:
            where = _address((str(settings.rest_host), settings.rest_port))
            raise AddressTaken(f"cannot serve REST at {where}: {os.strerror(error.errno or 0)}") from error
        self.rest_address = _address(self._services.get(RestApi).address)
        self._election = Election(settings, self._leadership, self._loops) if settings.etcd else None

    def begin_collecting_garbage(self) -> None:
        """Once everything is made that stays."""
        collect_for_ever(self._loops)

    def stop(self, timeout_seconds: float) -> None:
        """Stop the applications, for at most so long. What is in the switches stays there and goes on working."""
        with eventlet.Timeout(timeout_seconds, False):
            self._loops.stop()
            if self._election is not None:
                self._election.stop()
            self._manager.close()

    def _begin_accepting(self, listening: Any) -> Callable[[], None]:
        """What Ryu spawns once its handler of OpenFlow is there."""
        bad_messages = bad_message_counter()
        self._services.get(RestApplication).metrics.register(bad_messages)
        [openflow_handler] = (application for application in self._manager.applications.values()
                              if isinstance(application, ofp_handler.OFPHandler))
        state = self._services.get(NetworkState)
        state.confirmations.listen_to(openflow_handler)
        door = door_of(state.identity, state.refusals.count) if state.identity else None

        def begin() -> None:
            accept_switches(listening, self._loops, self._services.get(PacketIns), bad_messages, door,
                            self._leadership)

        return begin


def _require_application(module: str) -> None:
    try:
        loaded = import_module(module)
    except Exception as error:
        raise InvalidApplication(f"cannot load the application {module}: {type(error).__name__}: {error}") from error
    if not any(isinstance(value, type) and issubclass(value, Application) and value.__module__ == module
               for value in vars(loaded).values()):
        raise InvalidApplication(f"cannot load the application {module}: it has no class derived from "
                                 "speedwell.controller.application.Application")


def accept_switches(listening: Any, loops: Loops, packet_ins: PacketIns, bad_messages: Counter,
                    door: Door | None, leadership: Leadership) -> None:
    """Serve every switch that connects to a listening socket; with a `door`, only over TLS."""

    def accept() -> None:
        connection, address = listening.accept()
        loops.spawn(serve_switch, connection, address, packet_ins, loops, bad_messages, door, leadership)

    loops.run("switch connections", accept, patience_seconds=None)


def _listen(host: str, port: int) -> Any:
    try:
        return eventlet.listen((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                               backlog=BACKLOG, reuse_port=False)
    except OSError as error:
        raise AddressTaken(f"cannot listen for switches at {_address((host, port))}: "
                           f"{os.strerror(error.errno or 0)}") from error


def _address(socket_name: Sequence[Any]) -> str:
    host, port = socket_name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
