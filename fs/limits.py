"""How long a file can be, and for how long what nobody has any more is kept."""

from speedwell.fs.errors import FileTooLarge

MAX_FILE_BYTES = 1 << 47
"""128 TiB. The sums of so many blocks still fit into one file of the disks below, and a length near the end of the
number range, which only a mistake asks for, is refused before anybody has to keep or verify so many holes."""


def require_possible_length(length: int) -> None:
    """Raises FileTooLarge for a length in bytes that no file can have."""
    if length > MAX_FILE_BYTES:
        raise FileTooLarge(f"{length} bytes are more than a file can have ({MAX_FILE_BYTES})")
LEAST_ADVISED_BYTES = 8 << 20
"""The controller may say where a file goes that is expected to be of at least so many bytes: smaller ones are over
before a choice matters."""

MAX_KEEP_SECONDS = 3660 * 86400
"""What is removed, and contents that no file has, are kept for ten years at most."""

MAX_HOLES = 1000
"""One answer tells of so many holes of a content."""
