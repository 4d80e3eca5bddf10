"""Ryu without ryu-manager: loads the applications, binds where it was told to, and nowhere else."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import eventlet
from eventlet.green import socket
from ryu import cfg
from ryu.base.app_manager import AppManager, lookup_service_brick
from ryu.controller import controller as ryu_controller
from ryu.controller import ofp_handler
from ryu.lib import hub

from controller.confirm import Confirmations
from controller.network_state import NetworkState
from controller.settings import Settings

LOG = logging.getLogger(__name__)
BACKLOG = 512
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class AddressTaken(Exception):
    """An address cannot be bound. The message names it and says why."""


class Controller:
    """The running controller. Raises AddressTaken if one of its addresses cannot be had."""

    def __init__(self, settings: Settings, app_modules: Sequence[str]) -> None:
        logging.basicConfig(stream=sys.stderr, format=LOG_FORMAT, level=settings.log_level.upper())
        if settings.log_level != "debug":
            logging.getLogger("ryu").setLevel(logging.WARNING)
        cfg.CONF([], project="speedwell", default_config_files=[])
        cfg.CONF.set_override("echo_request_interval", settings.echo_interval_seconds)
        cfg.CONF.set_override("maximum_unreplied_echo_requests", settings.echo_misses)
        listening = _listen(str(settings.openflow_host), settings.openflow_port)
        self.openflow_address = _address(listening.getsockname())
        # Ryu's own listener would bind in the background, where a failure is lost.
        ofp_handler.OpenFlowController = lambda: _accept_switches(listening)
        self._manager = AppManager.get_instance()
        self._manager.load_apps(["ryu.controller.ofp_handler", *app_modules])
        self._manager.contexts.update(self._contexts(settings))
        try:
            self._manager.instantiate_apps(**self._manager.contexts)
        except OSError as error:
            where = _address((str(settings.rest_host), settings.rest_port))
            raise AddressTaken(f"cannot serve REST at {where}: {os.strerror(error.errno or 0)}") from error
        self.rest_address = _address(lookup_service_brick("RestApi").address)

    def _contexts(self, settings: Settings) -> dict[str, Any]:
        """The objects that applications share, by the names under which they ask for them."""
        state = NetworkState(settings)
        state.confirmations = Confirmations()
        made = {key: context() for key, context in self._manager.contexts_cls.items() if context is not NetworkState}
        return made | {"state": state}

    def stop(self, timeout_seconds: float) -> None:
        """Stop the applications, for at most so long. What is in the switches stays there and goes on working."""
        with eventlet.Timeout(timeout_seconds, False):
            self._manager.close()


def _accept_switches(listening: Any) -> Callable[[], None]:
    def serve() -> None:
        lookup_service_brick("Discovery").state.confirmations.listen_to(lookup_service_brick("ofp_event"))
        while True:
            connection, address = listening.accept()
            hub.spawn(ryu_controller.datapath_connection_factory, connection, address)

    return serve


def _listen(host: str, port: int) -> Any:
    try:
        return eventlet.listen((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                               backlog=BACKLOG)
    except OSError as error:
        raise AddressTaken(f"cannot listen for switches at {_address((host, port))}: "
                           f"{os.strerror(error.errno or 0)}") from error


def _address(socket_name: Sequence[Any]) -> str:
    host, port = socket_name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
