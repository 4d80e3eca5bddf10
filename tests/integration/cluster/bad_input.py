"""Runs command lines of `speedwell` that are given as JSON; prints for each its exit code and its output."""

import json
import os
import sys
import tempfile

from speedwell.cluster import cli
from speedwell.fs import command_line
from speedwell.fs.client.names import nameservers


def outcome(arguments: list[str]) -> tuple[object, str, str]:
    """Exit code, standard output and standard error, of the descriptors themselves: libraries write there too."""
    kept = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        code: object
        try:
            code = command_line.run(cli.speedwell, "speedwell", arguments)
        except BaseException as error:
            code = f"raised {error!r}"
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="backslashreplace"))
        return code, texts[0], texts[1]


if __name__ == "__main__":
    nameservers.CALL_SECONDS = nameservers.TAKEOVER_SECONDS = 0.05
    for line in sys.stdin:
        print(json.dumps(outcome(json.loads(line))), flush=True)
