"""Finds GPUs without importing torch and without making a device context."""

from baseboard_cuda.probing.devices import find_devices

__all__ = ["find_devices"]
