"""The `speedwell` command: finds the module of the command that was asked for."""

import importlib
import signal
from types import FrameType
from typing import Any, NoReturn

import click

from speedwell.fs import command_line, tracing
from speedwell.fs.ending import run_to_the_end

# name: module, attribute, the line in `speedwell --help` (so that the help imports no command)
COMMANDS = {
    "up": ("cluster.commands.up", "up", "Start an installation."),
    "down": ("cluster.commands.down", "down", "Unmount and stop an installation; stored files stay."),
    "list": ("cluster.commands.installations", "list_installations", "List the installations of this machine."),
    "status": ("cluster.commands.status", "status", "Show processes, capacity, dataservers and mounts."),
    "ls": ("cluster.commands.listing", "ls", "List directories."),
    "find": ("cluster.commands.tree", "find", "List everything below each PATH."),
    "du": ("cluster.commands.tree", "du", "Show how many bytes the files below each directory have."),
    "df": ("cluster.commands.listing", "df", "Show how much space there is."),
    "stat": ("cluster.commands.listing", "stat", "Show everything about a file, with its replicas."),
    "put": ("cluster.commands.transfer", "put", "Copy files from this machine into the filesystem."),
    "get": ("cluster.commands.transfer", "get", "Copy files from the filesystem to this machine."),
    "cat": ("cluster.commands.transfer", "cat", "Write files to standard output."),
    "append": ("cluster.commands.transfer", "append", "Append a file or standard input to a file."),
    "mkdir": ("cluster.commands.names", "mkdir", "Make directories."),
    "mv": ("cluster.commands.names", "mv", "Rename a file or directory, or move it into a directory."),
    "rm": ("cluster.commands.names", "rm", "Remove files, or whole directories with -r."),
    "chmod": ("cluster.commands.tree", "chmod", "Change permissions."),
    "chown": ("cluster.commands.tree", "chown", "Change owner and group."),
    "quota": ("cluster.commands.quota", "quota", "Limit what lies in a directory with everything below it."),
    "trash": ("cluster.commands.trash", "trash", "Keep removed files for a while, to bring them back."),
    "identity": ("cluster.commands.identity", "identity",
                 "Certificates: who may talk to an installation, and as what."),
    "init": ("cluster.commands.join", "init", "Make the first machine of an installation that has several."),
    "join": ("cluster.commands.join", "join", "Get this machine's certificates for an installation."),
    "check-config": ("cluster.commands.check_config", "check_config", "Check a file with the settings of a daemon."),
    "mount": ("cluster.commands.mounting", "mount", "Mount the filesystem on a directory."),
    "umount": ("cluster.commands.mounting", "umount", "Unmount the filesystem."),
    "top": ("cluster.commands.top", "top", "Show what the mounts of this machine do."),
    "accesslog": ("cluster.commands.accesslog", "accesslog", "Show each request to a mount as it happens."),
    "node": ("cluster.commands.node", "node", "Look after the dataservers: list, drain, remove, balance and others."),
    "quarantine": ("cluster.commands.quarantine", "quarantine", "Contents without a file, kept for some days."),
    "bench": ("cluster.commands.bench", "bench", "Measure how fast files are written, read, looked up and removed"
              " in DIRECTORY."),
    "warmup": ("cluster.commands.warmup", "warmup", "Have the dataservers read files into their memory."),
    "backup": ("cluster.commands.backup", "backup", "Write names, attributes and contents to FILE."),
    "restore": ("cluster.commands.backup", "restore", "Make what `speedwell backup` has written to FILE."),
    "dump": ("cluster.commands.dump", "dump", "Write the namespace to FILE, a JSON document a line."),
    "load": ("cluster.commands.dump", "load", "Fill the namespace of a new installation from FILE."),
    "fsck": ("cluster.commands.fsck", "fsck", "Check that every file's content lies where it should."),
    "metadata": ("cluster.commands.metadata", "metadata",
                 "Get and put records that the network finds by the hash of their key."),
    "coflow": ("cluster.commands.coflow", "coflow", "Move a file over TCP flows that are scheduled together."),
    "fabric": ("topo.cli", "fabric", "Build a network fabric by itself, with a Mininet prompt."),
    "flows": ("cluster.commands.flows", "flows",
              "Show the flow entries that the switches of the fabric hold, by owner."),
    "enter": ("cluster.commands.enter", "enter",
              "Run COMMAND, or a shell, on a HOST or switch of the emulated fabric."),
    "experiment": ("evaluation.commands.experiment", "experiment", "Re-run an evaluation of the papers."),
    "simulate": ("evaluation.commands.simulate", "simulate", "Simulate reads on a fabric of any size."),
    "report": ("evaluation.commands.report", "report", "Make one HTML page of results."),
    "completion": ("cluster.commands.version", "completion", "Print what makes a shell complete commands."),
    "man": ("cluster.commands.man", "man", "Write a man page for every command into DIRECTORY/man1."),
    "version": ("cluster.commands.version", "version", "Print the version, and in a clone its commit."),
}


class LazyGroup(click.Group):
    """A click group that imports a command's module when the command is used."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise command_line.Interrupted from None

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command = getattr(importlib.import_module(f"speedwell.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


def _print_version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from speedwell.cluster.commands.version import running

        click.echo(running())
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
              help="Print the version, and in a clone its commit.")
def speedwell() -> None:
    """Speedwell: a distributed filesystem whose reads are steered by an SDN controller.

    Commands talk to the installation that `speedwell up` started last; --nameserver HOST:PORT or
    SPEEDWELL_NAMESERVER names another, --installation DIR one of `speedwell list`, both after the command.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry of the `speedwell` executable. Ends the process with its exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    run_to_the_end(lambda: run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run one command line (default: the process's own); returns the exit code. Never raises."""
    tracing.start("speedwell")
    return command_line.run(speedwell, "speedwell", arguments)


def _terminated(number: int, frame: FrameType | None) -> Any:
    """SIGTERM unwinds like an interrupt, so that nothing half done stays behind."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
