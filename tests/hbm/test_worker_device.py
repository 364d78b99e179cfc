"""The row path of a worker on its device's kernels: interpreted here, captured as a graph where there is a device."""

from __future__ import annotations

import random

import pytest
import torch

from flexkv_tiers.hbm.gather import Kernels
from flexkv_tiers.hbm.granted import PagesChange
from flexkv_tiers.hbm.rooms import Admission
from flexkv_tiers.hbm.shape import TableLimits
from flexkv_tiers.hbm.steps import StepTables
from flexkv_tiers.hbm.tables import EMPTY
from flexkv_tiers.hbm.worker import Outcome, RowPath
from tests.hbm.decoder import CPU, Decoder, select_some, shapes
from tests.hbm.test_turnover import Turnover

CACHED_BLOCKS, TOKENS = 7, 60
STEPS = 40


interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a device, it runs the kernels")


@interpreted
def test_a_request_on_the_kernels():
    """A hot request decodes over the interpreted kernels: absent in both groups, replayed, and every row right."""
    decoder = Decoder(requests=1, queries=2, kernels=lambda made: Kernels(made, CPU, programs=1))
    decoder.start_hot(1, text=1, tokens=60)
    some = select_some(random.Random(4))
    outcomes = decoder.step([1], lambda *_: [0, 9, 3, 9, -1, 61])
    decoder.grant_all(1)
    for _ in range(4):
        outcomes += decoder.step([1], some, lambda _: 2)
    assert outcomes == [Outcome.REPLAY, *[Outcome.DONE] * 4]
    decoder.check()


@interpreted
@pytest.mark.full
def test_a_turnover_on_the_kernels():
    """Requests come, go hot, are absent and replayed over the interpreted kernels, every row right."""
    turnover = Turnover(5, queries=2)
    turnover.decoder = Decoder(
        3, 20, 14, queries=2, frames=40, replays_max=3, kernels=lambda made: Kernels(made, CPU, programs=1)
    )
    turnover.run(120)
    assert turnover.seen["hot"]
    assert turnover.seen["replay"]


class Worker:
    """A row path on one device over a pinned arena; what attention would read is gathered into tensors that stay."""

    def __init__(self, device: torch.device, arena: torch.Tensor) -> None:
        geometry, self.shapes = shapes(TableLimits(2, 2, 16), slots=24, row_bytes=656)
        self.path = RowPath(StepTables(self.shapes, 8, device), 8, geometry.chunk_count)
        segments = self.path.tables.requests.segments
        if device.type == "cuda":
            segments.point([arena.data_ptr()], arena.nbytes)
        else:
            segments.map([arena.numpy()], arena.nbytes)
        self.units = geometry.frame_bytes // 4096
        self.topk = {
            shape.group: torch.full((2, 1, 6), EMPTY, dtype=torch.int32, device=device) for shape in self.shapes
        }
        self.slots = {group: torch.full_like(topk, EMPTY) for group, topk in self.topk.items()}
        self.rows = [torch.zeros((12, 656), dtype=torch.uint8, device=device) for _ in range(3)]

    def enqueue(self, _size: int = 2) -> None:
        for shape in self.shapes:
            slots = self.path.plan(shape.group, self.topk[shape.group])
            self.slots[shape.group].copy_(slots)
            for layer in shape.layers:
                self.path.wait(layer)
                found = self.path.tables.rows_of(layer, 0)[slots.clamp(min=0).view(-1)]
                self.rows[layer].copy_(found * (slots.view(-1, 1) >= 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_equals_the_reference():
    """Replays of one captured graph give the CPU's slots and rows while pages come and go, and allocate nothing."""
    chance = random.Random(7)
    arena = torch.randint(0, 256, (2 * CACHED_BLOCKS * 64 * 4096,), dtype=torch.uint8).pin_memory()
    workers = [Worker(CPU, arena), Worker(torch.device("cuda", 0), arena)]
    graphs = workers[1].path.capture(workers[1].enqueue, [1, 2])
    for worker in workers:
        assert worker.path.attach(1, TOKENS, CACHED_BLOCKS) is Admission.HOT
        worker.path.prefilled(1, TOKENS - 8 * CACHED_BLOCKS)
    frames = [number * workers[0].units for number in range(4 * CACHED_BLOCKS)]
    granted: dict[tuple[int, int], int] = {}
    outcomes = []
    for version in range(1, STEPS + 1):
        settled = version % 5 == 0 and outcomes[-1] is Outcome.DONE  # else the step would wait for what leaves
        revoked = chance.sample(sorted(granted), min(len(granted), 2)) if settled else []
        asks = [part for _, part in workers[0].path.take_asks()]
        assert [part for _, part in workers[1].path.take_asks()] == asks
        fresh = dict.fromkeys([*asks, (chance.randrange(CACHED_BLOCKS), chance.randrange(2))])
        for part in revoked:
            del granted[part]
        granted |= {part: chance.choice(frames) for part in fresh if part not in granted}
        change = PagesChange(1, version, tuple((*part, granted[part]) for part in fresh), tuple(revoked))
        ids = [chance.randrange(-1, CACHED_BLOCKS * 8) for _ in range(6)]
        for worker in workers:
            worker.path.apply(change)
            for topk in worker.topk.values():
                topk[0, 0] = torch.tensor(ids, dtype=torch.int32)
            assert worker.path.begin([1]) == [1]
        workers[0].enqueue()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        graphs.replay(1)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        runs = [worker.path.collect() for worker in workers]
        assert runs[0] == runs[1]
        for group, slots in workers[0].slots.items():
            assert torch.equal(slots, workers[1].slots[group].cpu())
        for near, far in zip(*(worker.rows for worker in workers), strict=True):
            assert torch.equal(near, far.cpu())
        outcomes += workers[0].path.commit([0])
        assert workers[1].path.commit([0]) == outcomes[-1:]
    assert {Outcome.DONE, Outcome.REPLAY} <= set(outcomes)
