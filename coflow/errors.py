"""What can go wrong with coflows, each with one message a user can act on."""


class CoflowError(Exception):
    """Base of all."""


class InvalidSetting(CoflowError):
    """An address, a key or another setting makes no sense."""


class InvalidReport(CoflowError):
    """A datagram is not a report to be believed. `reason` says why in one word, for counters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TransferFailed(CoflowError):
    """A transfer did not come about or broke off."""
