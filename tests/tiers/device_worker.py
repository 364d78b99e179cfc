"""A worker process that holds device memory and exports it: handles cannot be opened by the process that made them."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any


def device_uuid() -> str:
    """The first device's UUID, as the daemon's driver spells it."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}".replace("GPU-GPU-", "GPU-")


class DeviceWorker:
    """A spawned process with `length` bytes on device 0."""

    def __init__(self, length: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_hold, args=(theirs, length), daemon=True)
        self._process.start()
        self.handle, self.offset = self._ask(("where", None))

    def read(self) -> bytes:
        return bytes(self._ask(("read", None)))

    def write(self, content: bytes) -> None:
        self._ask(("write", content))

    def write_behind_event(self, content: bytes) -> bytes:
        """Write after a tenth of a second of other work; the handle of an event behind it, at once."""
        return bytes(self._ask(("write behind event", content)))

    def close(self) -> None:
        self._pipe.send(("end", None))
        self._process.join(30)

    def _ask(self, request: tuple[str, object]) -> Any:
        self._pipe.send(request)
        assert self._pipe.poll(60), "the device worker does not answer"
        return self._pipe.recv()


def _hold(pipe: Connection, length: int) -> None:
    import torch

    from flexkv_tiers.memory.tensors import allocation_of

    memory = torch.zeros(length, dtype=torch.uint8, device="cuda:0")
    events = []
    while True:
        word, content = pipe.recv()
        if word == "end":
            return
        if word == "where":
            part = allocation_of(memory)
            pipe.send((part.handle, part.offset))
        elif word == "write":
            memory.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
            torch.cuda.synchronize()
            pipe.send(None)
        elif word == "write behind event":
            source = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(memory.device)
            events.append(torch.cuda.Event(interprocess=True))
            torch.cuda._sleep(200_000_000)
            memory.copy_(source)
            events[-1].record()
            pipe.send(events[-1].ipc_handle())
        else:
            pipe.send(memory.cpu().numpy().tobytes())
