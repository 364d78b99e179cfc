"""Handles of a worker's tensors, for `register_memory`: what the daemon opens their memory by.

Runs in the worker, which has torch; the client itself takes handles only. Not yet run on a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.memory.cuda import HANDLE_BYTES, Allocation

if TYPE_CHECKING:
    import torch

_MADE_BY_MALLOC = b"\x01"
"""How torch marks, in front of a handle, an allocation that the handle alone names."""


def allocation_of(tensor: torch.Tensor) -> Allocation:
    """The device memory a contiguous tensor lies in, exported. Raises FlexKVError(UNSUPPORTED, BAD_ARGUMENT).

    torch keeps the memory until the worker is gone: it does not hear when the daemon closes it.
    """
    if not tensor.is_cuda or not tensor.is_contiguous():
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"a tensor on {tensor.device.type} cannot be exported as device memory: give a contiguous one on CUDA",
        )
    raise FlexKVError(ErrorCode.UNSUPPORTED, "see below")
