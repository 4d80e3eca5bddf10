"""What can go wrong in the controller, each with the HTTP status and the slug its problem document carries."""

from __future__ import annotations

import re


class ControllerError(Exception):
    """Base of all. `str(error)` is one message a user can act on; `extensions` go into the problem document, with
    `slug` and `title`, which are the class's name unless it has others."""

    status = 500
    slug = "controller-error"
    title = "Controller error"

    def __init_subclass__(cls) -> None:
        words = re.findall("[A-Z][a-z]*", cls.__name__)
        cls.slug = vars(cls).get("slug", "-".join(words).lower())
        cls.title = vars(cls).get("title", " ".join(words).capitalize())

    def __init__(self, message: str, **extensions: object) -> None:
        super().__init__(message)
        self.extensions = extensions


class UnknownHost(ControllerError):
    """No host with this address answered on any edge port."""

    status = 404

    def __init__(self, ip: str) -> None:
        super().__init__(f"no host with the address {ip} is known, and none answered to ARP", host=ip)


class UnknownSwitch(ControllerError):
    """No switch with this datapath id ever connected."""

    status = 404

    def __init__(self, dpid: str) -> None:
        super().__init__(f"no switch with the datapath id {dpid} is known", dpid=dpid)


class UnknownCoflow(ControllerError):
    """No coflow with this id is live."""

    status = 404

    def __init__(self, coflow_id: str) -> None:
        super().__init__(f"no coflow {coflow_id} is live", id=coflow_id)


class NoSuchPath(ControllerError):
    """There is no live path between two hosts, or a given path has a link that is not live."""

    status = 503
    slug = "no-path"
    title = "No path"


class SwitchRefused(ControllerError):
    """A switch answered a message with an OpenFlow error.

    `by_message` has what it refused of the messages that were sent together, by transaction id.
    """

    status = 502
    title = "A switch refused the change"

    def __init__(self, dpid: str, error_type: str, error_code: str) -> None:
        super().__init__(
            f"switch {dpid} refused: {error_type} ({error_code})",
            dpid=dpid, openflow_type=error_type, openflow_code=error_code,
        )
        self.by_message: dict[int, SwitchRefused] = {}


class SwitchTimedOut(ControllerError):
    """A switch did not answer the barrier in time. What was sent may or may not have taken effect."""

    status = 504
    title = "A switch did not answer"

    def __init__(self, dpid: str, timeout_seconds: float) -> None:
        super().__init__(f"switch {dpid} did not confirm within {timeout_seconds:g} s", dpid=dpid)


class SwitchGone(ControllerError):
    """A switch is not connected, or its connection ended before it confirmed."""

    status = 503
    title = "A switch is not connected"

    def __init__(self, dpid: str) -> None:
        super().__init__(f"switch {dpid} is not connected", dpid=dpid)


class InvalidPort(ControllerError):
    """A port cannot be as somebody says it is, or is not there."""

    status = 502


class InvalidSettings(ControllerError):
    """A setting is unknown or has a value that makes no sense. Shown on the command line, never over REST."""



class TableTaken(ControllerError):
    """A system declared a table, or an entry, that is not its own to have."""



class MissingService(ControllerError):
    """An application needs one that is not there. Shown on the command line, never over REST."""



class ServiceTaken(ControllerError):
    """Two applications provide the same. Shown on the command line, never over REST."""



class InvalidApplication(ControllerError):
    """A module in the list of applications is none. Shown on the command line, never over REST."""

