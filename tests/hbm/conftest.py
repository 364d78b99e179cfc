"""Triton decides when it is imported whether kernels are compiled or interpreted: without a device, interpreted."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
