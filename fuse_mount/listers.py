"""Which programs list directories and look at no file in them, as `find` without conditions does.

What stat(2) tells of the files is most of the work of a listing, in the nameserver, the mount and the kernel, and the
kernel asks for it before the program has said whether it wants it. So of a program's first long listing one file is
left out. A program that has not looked it up when it lists the next directory is given names alone, until it looks up
a file.
"""

from dataclasses import dataclass

LEAST_ENTRIES = 64
"""Of a shorter listing nothing is left out: a look-up more would be too large a part of it."""
KEPT_SECONDS = 10.0
"""After a program's last listing; the number may be another program's later."""
MOST_PROGRAMS = 1024


@dataclass(slots=True)
class _Program:
    until: float
    looks: bool = False


class Listers:
    """Programs are named by numbers (0: nobody knows which), `now` is in monotonic seconds. What threads lose of each
    other's notes makes a guess worse, nothing else."""

    def __init__(self) -> None:
        self._programs: dict[int, _Program] = {}

    def __bool__(self) -> bool:
        """Whether there may be a program of which a look-up tells something."""
        return bool(self._programs)

    def is_new(self, program: int, now: float) -> bool:
        """Whether a file may be left out, to learn more."""
        return bool(program) and self._known(program, now) is None

    def wants_names_alone(self, program: int, now: float) -> bool:
        """A program lists a directory."""
        known = self._known(program, now)
        if known is None:
            return False
        known.until = now + KEPT_SECONDS
        return not known.looks

    def left_out(self, program: int, now: float) -> None:
        """The program was not told of a file."""
        if len(self._programs) >= MOST_PROGRAMS:
            self._programs.clear()
        self._programs[program] = _Program(now + KEPT_SECONDS)

    def looked_up(self, program: int) -> None:
        """The program wants to know more about a file than its name."""
        known = self._programs.get(program)
        if known is not None:
            known.looks = True

    def _known(self, program: int, now: float) -> _Program | None:
        known = self._programs.get(program)
        return None if known is None or now >= known.until else known
