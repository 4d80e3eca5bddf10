"""A program of its own that works on files of one directory and writes down what it did.

    python -m tests.mixed_client DIRECTORY LOG SEED

Before it uses a file again it reads it: a file that is not what was acknowledged ends the program.
"""

import random
import sys
import time
from pathlib import Path

from tests.mixed_load import Expected, Log, Operation, describe

FILES = 6
LARGEST_BYTES = 150_000


def draw(generator: random.Random, expected: Expected, number: int) -> Operation:
    """The next operation; `number` makes new names."""
    size = generator.choice([generator.randint(1, 2000), generator.randint(1, LARGEST_BYTES)])
    seed = generator.getrandbits(32)
    if len(expected.files) < FILES:
        return Operation("put", f"f{number}", size=size, seed=seed)
    name = generator.choice(sorted(expected.files))
    content = expected.files[name]
    kind = generator.choice(["put", "append", "append", "patch", "patch", "rename", "remove"])
    if kind == "rename":
        return Operation(kind, name, other=generator.choice([f"f{number}", *sorted(expected.files.keys() - {name})]))
    if kind == "remove":
        return Operation(kind, name)
    offset = generator.randint(0, len(content)) if kind == "patch" else 0
    return Operation(kind, name, offset=offset, size=size, seed=seed)


def read(path: Path) -> bytes | None:
    """The whole file; None if it cannot be read now."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        if path.parent.exists():
            raise
        return None     # the mount itself is away
    except OSError:
        return None


def main() -> int:
    directory, log = Path(sys.argv[1]), Log(Path(sys.argv[2]))
    generator = random.Random(int(sys.argv[3]))
    expected = Expected()
    for number in range(sys.maxsize):
        operation = draw(generator, expected, number)
        wanted = expected.files.get(operation.name)
        if wanted is not None:
            try:
                found = read(directory / operation.name)
            except FileNotFoundError as error:
                log.wrong(str(error))
                return 1
            if found is None:
                time.sleep(0.05)
                continue
            if found != wanted:
                log.wrong(f"{operation.name}: {describe(found, wanted)}")
                return 1
        log.begin(operation)
        try:
            operation.run(directory)
        except OSError:
            log.end(False)
            expected.unanswered(operation)
            time.sleep(0.05)
        else:
            log.end(True)
            expected.acknowledged(operation)
    return 0


if __name__ == "__main__":
    sys.exit(main())
