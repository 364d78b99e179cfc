"""Numbers in words for people: sizes, times, shares. Pure; the same everywhere a command prints."""

from __future__ import annotations

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS = ("", "k", "M", "G", "T")
NONE = "–"


def size(count: float | None) -> str:
    """Bytes with three digits: `0 B`, `1.50 GiB`, `12.3 MiB`, `512 KiB`."""
    if count is None:
        return NONE
    return _scaled(count, 1024, _SIZES, " ")


def rate(count: float | None) -> str:
    """Bytes per second."""
    return NONE if count is None else f"{size(count)}/s"


def count(number: float | None) -> str:
    """A count with three digits: `0`, `950`, `12.3k`, `1.50M`."""
    if number is None:
        return NONE
    return _scaled(number, 1000, _COUNTS, "")


def share(part: float | None, whole: float | None) -> str:
    """Percent of a whole; of nothing: a dash."""
    return NONE if part is None or not whole else f"{100 * part / whole:.1f} %"


def span(seconds: float | None) -> str:
    """A time in its two largest units: `0.5 s`, `12 s`, `3 min 5 s`, `2 h 4 min`, `3 d 1 h`."""
    if seconds is None:
        return NONE
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    left = round(seconds)
    for large, unit, small, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= large:
            rest = left % large // small
            return f"{left // large} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{left} s"


def latency(seconds: float | None) -> str:
    """A short time: `12 µs`, `1.25 ms`, `2.00 s`."""
    if seconds is None:
        return NONE
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds)} s"


def _scaled(number: float, step: int, units: tuple[str, ...], space: str) -> str:
    scaled, unit = float(number), units[0]
    for larger in units[1:]:
        if abs(scaled) < step:
            break
        scaled, unit = scaled / step, larger
    text = f"{scaled:.0f}" if unit == units[0] else _three_digits(scaled)
    return f"{text}{space}{unit}"


def _three_digits(number: float) -> str:
    return f"{number:.2f}" if number < 10 else f"{number:.1f}" if number < 100 else f"{number:.0f}"
