"""Copies beside the step, and the step as a captured graph: what a device adds to the row path.

`SideCopies` starts a group's copies on a side stream when its plan is made and lets attention wait for one
layer at a time; on CPU the copies have run when `start` returns. `StepGraphs` captures a step once per padded
batch size. Tables, bases and pages change at fixed addresses, so nothing is ever captured again.
Called by `worker` and by engines; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.hbm.tables import GroupTables, RequestTables

CopyRows = Callable[[RequestTables, GroupTables, int, int], None]
"""(requests, group, layer within the group, plane): brings the planned misses in, on the current stream."""

WARM_RUNS = 3
"""Runs of a step before it is captured: kernels are compiled and libraries make their workspaces."""


class Copies(Protocol):
    """How the planned rows of a group come in, and what waits for them."""

    def start(self, requests: RequestTables, group: GroupTables) -> None: ...

    def wait(self, layer: int) -> None:
        """What is enqueued from here on finds the rows of `layer` (number of the model) in their slots."""
        ...

    def join(self) -> None:
        """Everything started is waited for."""
        ...

    def fence(self) -> Callable[[], bool]:
        """A question, never waiting: has everything enqueued so far ended?"""
        ...


class HostCopies:
    """Copies on the CPU, where the step is: done when `start` returns."""

    def __init__(self, copy: CopyRows) -> None:
        self._copy = copy

    def start(self, requests: RequestTables, group: GroupTables) -> None:
        for layer in range(len(group.shape.layers)):
            for plane in range(len(group.shape.planes)):
                self._copy(requests, group, layer, plane)

    def wait(self, layer: int) -> None:
        """Nothing to wait for."""

    def join(self) -> None:
        """Nothing to wait for."""

    def fence(self) -> Callable[[], bool]:
        return lambda: True


class SideCopies:
    """Copies on a stream of their own, forked from the step's stream at each plan and joined layer by layer.

    Events are made once, so a captured graph holds only dependencies. The side stream starts a group's
    copies behind its plan, hence behind every attention that read the slots now overwritten; within the
    side stream groups follow one another, so the bus serves the layer that is needed first.
    """

    def __init__(self, copy: CopyRows, layers: Sequence[int], device: torch.device) -> None:
        self._copy = copy
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._planned = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._landed = {layer: torch.cuda.Event() for layer in layers}  # type: ignore[no-untyped-call]
        self._last: torch.cuda.Event | None = None

    def start(self, requests: RequestTables, group: GroupTables) -> None:
        self._planned.record()  # on the step's stream; recorded anew per group, waited for at once
        self._stream.wait_event(self._planned)
        with torch.cuda.stream(self._stream):
            for place, layer in enumerate(group.shape.layers):
                for plane in range(len(group.shape.planes)):
                    self._copy(requests, group, place, plane)
                self._last = self._landed[layer]
                self._last.record()

    def wait(self, layer: int) -> None:
        torch.cuda.current_stream().wait_event(self._landed[layer])

    def join(self) -> None:
        if self._last is not None:  # a capture may not end while a stream it forked runs on
            torch.cuda.current_stream().wait_event(self._last)

    def fence(self) -> Callable[[], bool]:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event.query


class StepGraphs:
    """An engine's decode step, captured once per padded batch size and replayed.

    `step(size)` enqueues one step of `size` batch rows on the current stream, reading its inputs from tensors
    that stay; it calls `RowPath.plan`, `newest_slots` and `wait`, and keeps its outputs in tensors of its own.
    All graphs share one memory pool: a replay allocates nothing and asks the device for nothing.
    """

    def __init__(self, step: Callable[[int], None], sizes: Sequence[int], copies: Copies) -> None:
        """Capture every size, largest first, so that the smaller find the pool large enough.

        Batch rows must be padding meanwhile (`RequestTables.batch` = 0): the runs before a capture are real.
        """
        assert sizes
        self.sizes = sorted(sizes)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        pool = torch.cuda.graph_pool_handle()
        warming = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for size in reversed(self.sizes):
            warming.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warming):
                for _ in range(WARM_RUNS):
                    step(size)
                    copies.join()
            torch.cuda.current_stream().wait_stream(warming)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                step(size)
                copies.join()
            self._graphs[size] = graph

    def replay(self, batch: int) -> int:
        """Run one step of `batch` real rows; returns the padded size whose outputs hold it."""
        size = padded_size(batch, self.sizes)
        self._graphs[size].replay()
        return size


def padded_size(batch: int, sizes: Sequence[int]) -> int:
    """The smallest captured size with room for `batch` rows. Raises FlexKVError(LIMIT_EXCEEDED) when none has."""
    fitting = [size for size in sizes if size >= batch]
    if not fitting:
        raise FlexKVError(
            ErrorCode.LIMIT_EXCEEDED,
            f"a batch of {batch} rows, the largest captured has {max(sizes)}: capture a larger one, or split the batch",
        )
    return min(fitting)
