"""How the daemon is, in one line: for whoever asks the service manager. Called by `notify`, every few seconds."""

from __future__ import annotations

from collections.abc import Iterator

from flexkv_py.core.messages import Tier
from flexkv_py.core.state import Level, State
from flexkv_py.geometry import ALIGN_BYTES
from flexkvd.readiness import Readiness

GIB = 1 << 30


def state_line(readiness: Readiness, state: State) -> str:
    """What is awaited at start and how far it is; then how full the tiers are, and which is down."""
    tickets = f"{len(state.tickets)} tickets, {len(state.transfers)} transfers"
    if readiness.draining:
        return "; ".join([f"draining: {tickets} to end", *_steps(readiness, awaited=False)])
    if not readiness.ready:
        return f"starting: {'; '.join(_steps(readiness, awaited=True))}"
    tiers = ", ".join(_occupancy(state, level) for level in state.levels.values())
    return f"serving: {tiers}; {len(state.sessions)} sessions, {tickets}"


def _steps(readiness: Readiness, *, awaited: bool) -> Iterator[str]:
    """What is awaited, or what goes on beside, and how far it is."""
    for name, step in readiness.steps.items():
        if step.awaited == awaited:
            yield f"{name}: {step.progress()}"


def _occupancy(state: State, level: Level) -> str:
    name, frames = level.tier.name.lower(), state.frames
    if not level.up:
        return f"{name} down ({level.down_reason})"
    if level.tier is Tier.DRAM:
        used_bytes, capacity_bytes = frames.used_pages * ALIGN_BYTES, frames.total_pages * ALIGN_BYTES
    else:
        used_bytes, capacity_bytes = level.used_bytes, level.capacity_bytes
    return f"{name} {used_bytes / GIB:.2f}" + (f" of {capacity_bytes / GIB:.2f} GiB" if capacity_bytes else " GiB")
