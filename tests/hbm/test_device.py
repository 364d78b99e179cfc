"""The kernels on a GPU, against the torch oracle: launched one by one, and replayed from a captured graph."""

from __future__ import annotations

import pytest
import torch

from flexkv_tiers.hbm import reference
from flexkv_tiers.hbm.gather import Kernels
from tests.hbm.cases import CASES, LARGE_CASES
from tests.hbm.test_kernels import take_steps
from tests.hbm.world import Copyist, World

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS = 150


class Replayed(Copyist):
    """Takes its steps by replaying one graph: captured before anything was attached, never again."""

    graph: torch.cuda.CUDAGraph | None = None

    def step(self, topk: torch.Tensor) -> None:
        if self.graph is None:
            batch = int(self.requests.batch)
            self.requests.batch.zero_()  # a step of padding alone changes nothing: it compiles the kernels
            super().step(topk)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                super().step(self.topk)
            self.requests.batch.fill_(batch)
        self.topk.copy_(topk)
        self.graph.replay()


def a_world(case, seed: int, kind: type[Copyist]) -> World:
    world, device = World(case, seed, batch=3), torch.device("cuda")
    world.let(reference)
    world.copyists.append(kind(Kernels([world.shape], device), world.shape, world.arena, device))
    return world


@pytest.mark.parametrize("case", [*CASES, *LARGE_CASES], ids=lambda case: case.name)
def test_kernels_equal_the_oracle_on_a_device(case):
    """All tensors are equal after every random step: more than 1,000 in all, with real races and barriers."""
    take_steps(a_world(case, 31, Copyist), STEPS)


@pytest.mark.parametrize("case", [*CASES, *LARGE_CASES], ids=lambda case: case.name)
def test_a_replayed_graph_equals_the_oracle(case):
    """A graph captured once serves growing sequences, other batches and other pages, and allocates nothing."""
    world = a_world(case, 32, Replayed)
    take_steps(world, STEPS // 3)
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    world.copyists[1].graph.replay()
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
