"""Handles of a worker's tensors, for `register_memory`: what the daemon opens their memory by.

Runs in the worker, which has torch; the client itself takes handles only. Not yet run on a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexkv_py.errors import ErrorCode, FlexKVError
from flexkv_tiers.cuda import CudaFailure
from flexkv_tiers.cuda.driver import CudaDriver
from flexkv_tiers.memory.cuda import Allocation

if TYPE_CHECKING:
    import torch


def allocation_of(tensor: torch.Tensor) -> Allocation:
    """The device memory a contiguous tensor lies in, exported; the tensor must outlive its registration.

    Raises FlexKVError: BAD_ARGUMENT for what is no such tensor, UNSUPPORTED where its memory has no IPC handle,
    CUDA_MISSING.
    """
    if not tensor.is_cuda or not tensor.is_contiguous():
        raise FlexKVError(
            ErrorCode.BAD_ARGUMENT,
            f"a tensor on {tensor.device.type} cannot be exported as device memory: give a contiguous one on CUDA",
        )
    try:
        handle, offset = CudaDriver().export_memory(tensor.data_ptr())
    except CudaFailure as failure:
        raise FlexKVError(
            ErrorCode.UNSUPPORTED,
            f"this tensor's memory has no IPC handle ({failure.detail}): allocate the KV without "
            "`expandable_segments`, or export its physical memory as descriptors",
        ) from failure
    return Allocation(offset, tensor.numel() * tensor.element_size(), handle)
