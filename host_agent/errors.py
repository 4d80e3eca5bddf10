"""What can go wrong at an agent, each with one message a user can act on."""


class AgentError(Exception):
    """Base of all."""


class MissingRequirement(AgentError):
    """This host lacks what the agent needs: a right, a program, a part of the kernel."""


class InvalidSetting(AgentError):
    """An option makes no sense here."""


class KernelRefused(AgentError):
    """A request by netlink, or a command of iptables or tc, failed."""


class InvalidDatagram(AgentError):
    """A datagram is not one to be believed. `reason` says why in one word, for counters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
