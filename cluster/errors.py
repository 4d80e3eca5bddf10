"""What can go wrong while an installation is started, supervised or stopped.

Each error carries one message that says what to do about it; the command line prints it as it is.
"""


class ClusterError(Exception):
    """Base of the errors of this room."""


class AlreadyRunning(ClusterError):
    """Another command or installation holds what this one needs."""


class NotRunning(ClusterError):
    """There is no installation where one was expected."""


class StartFailed(ClusterError):
    """A process did not come up; the message ends with the last lines of its log."""


class MountFailed(ClusterError):
    """What mount(8) asked for was refused; the message names the option or the directory."""


class StopFailed(ClusterError):
    """Something could not be stopped or unmounted; the message names it."""


class InvalidState(ClusterError):
    """A state file cannot be read or is not one of ours."""


class InvalidSetting(ClusterError):
    """A setting from the command line or the environment is out of range."""


class CannotTell(ClusterError):
    """What would be needed for a decision cannot be asked."""


class NotOnFabric(ClusterError):
    """This process cannot reach the dataservers: their network is not its own."""


class ControllerSilent(ClusterError):
    """The SDN controller does not answer, or refuses."""


class InvalidDump(ClusterError):
    """A file is not a namespace's dump, or is damaged; the message names the line."""


class InvalidArchive(ClusterError):
    """A file is not a backup, or is damaged."""
