"""Numbers, sizes, lengths of time and moments as people read them: the one place that writes them.

Scripts get bytes, seconds and ISO 8601 from `--json`.
"""

import time

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DURATIONS = ((86400, "day"), (3600, "h"), (60, "min"), (1, "s"))


def counted(count: int, noun: str) -> str:
    """A number of things: `1 file`, `3 directories`; `noun` in the singular."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun.removesuffix('y')}ies" if noun.endswith("y") else \
        f"{count} {noun}s"


def size(count: int) -> str:
    """A number of bytes as `6.5 MiB`; below 1 KiB exactly."""
    scaled, unit = float(count), 0
    while round(scaled, 1) >= 1024 and unit < len(_SIZES) - 1:
        scaled, unit = scaled / 1024, unit + 1
    return f"{scaled:.1f} {_SIZES[unit]}" if unit else f"{count} B"


def duration(seconds: float) -> str:
    """A length of time, exact to the second: `7 days`, `1 day 12 h`, `30 min`, `90 s`; below 10 s to a tenth."""
    if seconds < 10 and round(seconds, 1) != round(seconds):
        return f"{seconds:.1f} s"
    return " ".join(_parts(round(seconds)))


def about(seconds: float) -> str:
    """A length of time of which nobody wants the last second: the larger two units of `duration`."""
    return duration(seconds) if seconds < 60 else " ".join(_parts(round(seconds))[:2])


def latency(seconds: float) -> str:
    """How long one operation takes: `1.25 ms`; from a second on as `duration`."""
    return duration(seconds) if seconds >= 1 else f"{1000 * seconds:.2f} ms"


def moment(time_ns: int, *, seconds: bool = False) -> str:
    """Local time, `2026-11-22 14:30`; of nanoseconds since 1970."""
    return time.strftime(f"%Y-%m-%d %H:%M{':%S' * seconds}", time.localtime(time_ns // 1_000_000_000))


def _parts(seconds: int) -> list[str]:
    if 60 < seconds < 120:
        return [f"{seconds} s"]
    parts = []
    for length, unit in _DURATIONS:
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''}")
    return parts or ["0 s"]
