"""Commands that take several paths: what cannot be done with one is said, and the others are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import click

from speedwell.fs.command_line import FAILED, explain


@contextmanager
def each_path() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """What is yielded is entered for each path. The exit code is 1 if one of them failed; an error that does not lie
    with a path ends the command."""
    from speedwell.fs import errors

    of_a_path = (errors.NoSuchFile, errors.AlreadyExists, errors.NotADirectory, errors.IsADirectory,
                 errors.DirectoryNotEmpty, errors.DeviceBusy, errors.StaleFile, errors.NotPermitted,
                 errors.TooManySymbolicLinks, errors.InvalidName, errors.NameTooLong)
    failed = False

    @contextmanager
    def one() -> Iterator[None]:
        nonlocal failed
        try:
            yield
        except of_a_path as error:
            failed = True
            click.echo(f"speedwell: {explain(error)}", err=True)

    yield one
    if failed:
        raise click.exceptions.Exit(FAILED)
