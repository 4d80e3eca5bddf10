"""Where the dataservers of an installation keep files: in one directory each, or several, as if each were a disk."""

from pathlib import Path

MAX_DIRECTORIES = 16


def directory_options(directory: Path, number: int) -> list[str]:
    """Of a dataserver with so many: `directory`, then others beside it."""
    return [word for disk in range(number)
            for word in ("--directory", str(directory) if not disk else f"{directory}-disk{disk + 1}")]
