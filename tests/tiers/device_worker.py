"""A worker process that holds device memory and exports it: its own process cannot open a handle."""

from __future__ import annotations

import itertools
import multiprocessing
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import Any


def device_uuid() -> str:
    """The first device's UUID, as the daemon's driver spells it."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}".replace("GPU-GPU-", "GPU-")


class DeviceWorker:
    """`length` bytes on device 0, of a process that all of them share: starting one takes seconds."""

    def __init__(self, length: int) -> None:
        self._number = next(_numbers)
        self.handle, self.offset = self._ask("make", length)

    def read(self) -> bytes:
        return bytes(self._ask("read", None))

    def write(self, content: bytes) -> None:
        self._ask("write", content)

    def write_behind_event(self, content: bytes) -> bytes:
        """Write after a tenth of a second of other work; the handle of an event behind it, at once."""
        return bytes(self._ask("write behind event", content))

    def close(self) -> None:
        self._ask("drop", None)

    def _ask(self, word: str, content: object) -> Any:
        pipe = _process()
        pipe.send((word, self._number, content))
        assert pipe.poll(60), "the device worker does not answer"
        return pipe.recv()


_numbers = itertools.count()


@cache
def _process() -> Connection:
    """Starts it; it ends with this one."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    context.Process(target=_hold, args=(theirs,), daemon=True).start()
    return pipe


def _hold(pipe: Connection) -> None:
    import torch

    from flexkv_tiers.memory.tensors import allocation_of

    memories: dict[int, torch.Tensor] = {}
    events = []
    with suppress(EOFError):  # the other end is gone
        while True:
            word, number, content = pipe.recv()
            answer: object = None
            if word == "make":
                memories[number] = torch.zeros(content, dtype=torch.uint8, device="cuda:0")
                part = allocation_of(memories[number])
                answer = part.handle, part.offset
            elif word == "write":
                memories[number].copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            elif word == "read":
                answer = memories[number].cpu().numpy().tobytes()
            elif word == "write behind event":
                source = torch.frombuffer(bytearray(content), dtype=torch.uint8).to("cuda:0")
                events.append(torch.cuda.Event(interprocess=True))
                torch.cuda._sleep(200_000_000)
                memories[number].copy_(source)
                events[-1].record()
                pipe.send(events[-1].ipc_handle())
                continue  # without waiting for it: that is the point
            else:
                del memories[number]
            torch.cuda.synchronize()
            pipe.send(answer)
