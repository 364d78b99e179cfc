"""What orders a ticket's copies with the worker's own streams: the gates of a load, the event of a save.

Owns what is believed of both in a message, and that every gate of a load is opened. `requests` makes them, `copies`
hands them to the lanes, `tickets` gives gates up at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from flexkv_py.core.messages import Fault, Priority
from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_py.wire.gates import GATE_BYTES
from flexkv_py.wire.messages import GateArray
from flexkv_tiers.cuda.base import HANDLE_BYTES
from flexkv_tiers.lanes.base import AwaitedEvent, CopyTask, Direction, Lanes
from flexkv_tiers.memory.cuda import CudaMemory
from flexkv_tiers.memory.gates import Gate
from flexkv_tiers.memory.worker import WorkerMemory


class TicketGates:
    """The gates of one load, a chunk each. The lanes open them behind its copies."""

    def __init__(self, lanes: Lanes, memory: WorkerMemory, gates: tuple[Gate, ...]) -> None:
        self._lanes = lanes
        self._memory = memory
        self._gates = gates

    def of(self, chunks: Iterable[int]) -> dict[int, Gate]:
        """Those of a task that copies these chunks."""
        return {chunk: self._gates[chunk] for chunk in chunks}

    def give_up(self, opened: Callable[[], None]) -> None:
        """The load is over: open what is still shut as failed, so that no stream waits on. Calls `opened` then."""
        shut = {chunk: gate for chunk, gate in enumerate(self._gates) if not gate.opened}
        if not shut:
            opened()
            return
        for gate in shut.values():
            gate.failed = True  # at once: copies of the last blocks may just be submitted
        none = np.empty((0, self._memory.pages_per_block), np.uint32)
        task = CopyTask(Direction.INTO_WORKER, self._memory, list(shut), [], [], none, gates=shut)

        def copied(_: list[Fault | None]) -> None:
            opened()

        self._lanes.start(task, Priority.LOAD, copied)


def check_gates(array: GateArray, memory: WorkerMemory, block_count: int) -> tuple[Gate, ...]:
    """The gates of a load as they came in its message. Raises FlexKVError(BAD_ARGUMENT)."""
    gates = memory.gates(array, block_count)
    if isinstance(memory, CudaMemory):
        first, last = memory.address_of(array.offset), memory.address_of(gates[-1].offset)
        if first % GATE_BYTES or last - first != gates[-1].offset - array.offset:
            raise FlexKVError(
                ErrorCode.BAD_ARGUMENT,
                f"gates from offset {array.offset} lie in two allocations, or not on {GATE_BYTES} bytes of the device: "
                "put them into one allocation, aligned",
            )
    return gates


def check_event(handle: bytes, memory: WorkerMemory) -> AwaitedEvent:
    """What a save's copies wait for. Raises FlexKVError(BAD_ARGUMENT)."""
    if not memory.device:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            "a save from memory of the host waits for no event: write the pages first, and leave `after` empty",
        )
    if len(handle) != HANDLE_BYTES:
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"the event's handle has {len(handle)} bytes: send the {HANDLE_BYTES} of an inter-process event",
        )
    return AwaitedEvent(handle)
