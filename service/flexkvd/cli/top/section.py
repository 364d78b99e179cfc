"""A part of the live view: a heading row and rows of cells, which can be cut to fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

Cell = str | Text
LINES_LEAST = 2
"""A heading and a row."""


@dataclass(frozen=True, slots=True)
class Section:
    """`right` are the columns of numbers, `wide` is the one that takes what room is left over; `left_out` counts rows
    that were cut."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    right: Sequence[int] = ()
    wide: int = 0
    left_out: int = 0

    @property
    def height(self) -> int:
        """Lines on the screen."""
        return 1 + len(self.rows)

    def cut(self, lines: int) -> Section:
        """At most so many lines; the heading then says how many rows are left out."""
        left_out = max(0, self.height - lines)
        return replace(self, rows=self.rows[: lines - 1], left_out=left_out) if left_out else self

    def table(self) -> Table:
        """As it is drawn: one line a row, however narrow the columns."""
        made = Table(box=None, expand=True, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold reverse")
        first = f"{self.columns[0]} +{self.left_out}" if self.left_out else self.columns[0]
        for position, name in enumerate((first, *self.columns[1:])):
            justify: JustifyMethod = "right" if position in self.right else "left"
            ratio = 1 if position == self.wide else None
            least = None if position else len(name)
            made.add_column(
                name,
                justify=justify,
                no_wrap=True,
                overflow="ellipsis",
                ratio=ratio,
                min_width=least,
            )
        for row in self.rows:
            made.add_row(*row)
        return made


def fit(sections: Sequence[Section], lines: int) -> list[Section]:
    """Cut to so many lines together: two for each first, then one more for each in turn that wants it.

    Where there are not even two for each, the last ones are left out.
    """
    heights, left = [0] * len(sections), lines
    for position in range(len(sections)):
        if left >= LINES_LEAST:
            heights[position], left = LINES_LEAST, left - LINES_LEAST
    while left and any(0 < given < section.height for given, section in zip(heights, sections, strict=True)):
        for position, section in enumerate(sections):
            if left and 0 < heights[position] < section.height:
                heights[position], left = heights[position] + 1, left - 1
    return [section.cut(given) for section, given in zip(sections, heights, strict=True) if given]
