"""The CUDA driver as lanes and memory use it. Importing it needs neither a device nor the bindings."""

from flexkv_tiers.cuda.base import CudaFailure, Device, Driver, Rectangle

__all__ = ["CudaFailure", "Device", "Driver", "Rectangle"]
