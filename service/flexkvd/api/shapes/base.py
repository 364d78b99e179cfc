"""What all shapes have in common: how a field is described, keys, deadlines, failures."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flexkv_py.errors import ErrorCode
from flexkv_py.keys import KEY_BYTES

KEYS_MAX = 4096
"""Keys in one body."""
PIN_KEYS_MAX = 512
"""Keys pinned at once: all or none of them, in one event."""
DEADLINE_S_DEFAULT = 60.0
MOVES_S_DEFAULT = 600.0
DEADLINE_S_MAX = 3600.0
TTL_S_MAX = 86_400.0
BYTES_MAX = 1 << 50
EXACT_MAX = (1 << 53) - 1
"""Larger whole numbers are not told apart by everybody who reads JSON."""

TierWord = Literal["hbm", "dram", "ssd", "s3"]
HeldWord = Literal["dram", "ssd", "s3"]
BelowWord = Literal["ssd", "s3"]
EXAMPLE_KEY = "5f0c1b2a39485766758493a2b1c0dfee"
PREFIX_PATTERN = f"^[0-9a-fA-F]{{0,{2 * KEY_BYTES}}}$"


def said(example: Any, meaning: str, **limits: Any) -> Any:
    """A field: an example of it, and what it means."""
    return Field(description=meaning, examples=[example], **limits)


Key = Annotated[
    str, Field(pattern=f"^[0-9a-fA-F]{{{2 * KEY_BYTES}}}$", description="Block key, hex.", examples=[EXAMPLE_KEY])
]
Deadline = Annotated[float, Field(gt=0, le=DEADLINE_S_MAX, description="Seconds until it is given up.", examples=[60])]


class Shape(BaseModel):
    """Part of an answer."""


class Body(BaseModel):
    """What is sent: nothing beyond the fields named."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, given: Any) -> Any:
        """JSON knows one kind of number: 5.0 is as good as 5. Of another type nothing is taken for what it is not."""
        if not isinstance(given, dict):
            return given
        return {key: _whole(each) for key, each in given.items()}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Failure(Shape):
    """Every error of the API."""

    code: ErrorCode = said("bad_argument", "Stable word for programs; docs/errors.md has cause and cure of each.")
    message: str = said("deadline_s: give more than 0", "One sentence that names cause and cure.")
