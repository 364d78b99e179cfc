"""Triton decides when it is imported whether kernels are compiled or interpreted: without a device, interpreted."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Torch's threads wait for each other in loops: on a busy machine steps this small take several times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
