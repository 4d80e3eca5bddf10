"""What can go wrong in the controller, each with the HTTP status and the slug its problem document carries."""

from __future__ import annotations


class ControllerError(Exception):
    """Base of all. `str(error)` is one message a user can act on; `extensions` go into the problem document."""

    status = 500
    slug = "controller-error"
    title = "Controller error"

    def __init__(self, message: str, **extensions: object) -> None:
        super().__init__(message)
        self.extensions = extensions


class UnknownHost(ControllerError):
    """No host with this address answered on any edge port."""

    status = 404
    slug = "unknown-host"
    title = "Unknown host"

    def __init__(self, ip: str) -> None:
        super().__init__(f"no host with the address {ip} is known, and none answered to ARP", host=ip)


class UnknownSwitch(ControllerError):
    """No switch with this datapath id ever connected."""

    status = 404
    slug = "unknown-switch"
    title = "Unknown switch"

    def __init__(self, dpid: str) -> None:
        super().__init__(f"no switch with the datapath id {dpid} is known", dpid=dpid)


class UnknownCoflow(ControllerError):
    """No coflow with this id is live."""

    status = 404
    slug = "unknown-coflow"
    title = "Unknown coflow"

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
    slug = "switch-refused"
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
    slug = "switch-timed-out"
    title = "A switch did not answer"

    def __init__(self, dpid: str, timeout_seconds: float) -> None:
        super().__init__(f"switch {dpid} did not confirm within {timeout_seconds:g} s", dpid=dpid)


class SwitchGone(ControllerError):
    """A switch is not connected, or its connection ended before it confirmed."""

    status = 503
    slug = "switch-gone"
    title = "A switch is not connected"

    def __init__(self, dpid: str) -> None:
        super().__init__(f"switch {dpid} is not connected", dpid=dpid)


class InvalidPort(ControllerError):
    """A port cannot be as somebody says it is, or is not there."""

    status = 502
    slug = "invalid-port"
    title = "Invalid port"


class InvalidSettings(ControllerError):
    """A setting is unknown or has a value that makes no sense. Shown on the command line, never over REST."""

    slug = "invalid-settings"
    title = "Invalid settings"


class TableTaken(ControllerError):
    """A system declared a table, or an entry, that is not its own to have."""

    slug = "table-taken"
    title = "Table taken"


class MissingService(ControllerError):
    """An application needs one that is not there. Shown on the command line, never over REST."""

    slug = "missing-service"
    title = "Missing service"


class ServiceTaken(ControllerError):
    """Two applications provide the same. Shown on the command line, never over REST."""

    slug = "service-taken"
    title = "Service taken"


class InvalidApplication(ControllerError):
    """A module in the list of applications is none. Shown on the command line, never over REST."""

    slug = "invalid-application"
    title = "Invalid application"
