"""Plugins and a backend made of plain Python, for the tests of discovery."""

from __future__ import annotations

import numpy as np

from baseboard.contract import Capabilities, DeviceInfo, MemorySnapshot, hookimpl
from baseboard.discovery import Installation, PluginSource

CAPABILITIES = Capabilities(
    dtypes=("float32",),
    kv_dtypes=("auto",),
    block_sizes=(16,),
    head_sizes=None,
    head_size_multiple=8,
    max_head_size=256,
    max_gqa_ratio=None,
    features=frozenset(),
    max_seqs=None,
    pinned_host_memory=False,
    communicator="gloo",
)


def device(backend, index=0, *, priority=0, reason=None, device_type="cpu"):
    return DeviceInfo(
        backend=backend,
        device_type=device_type,
        index=index,
        name=f"{backend} chip {index}",
        arch="v1",
        total_memory=1 << 30,
        available=reason is None,
        reason=reason,
        priority=priority,
    )


class FakePlugin:
    """Discovery hooks. What is an exception is raised."""

    def __init__(self, devices=(), *, version="1.0", opens=None):
        self.devices = devices
        self.version = version
        self.opens = FakeBackend() if opens is None else opens
        self.calls = []

    def answer(self, value):
        if isinstance(value, BaseException):
            raise value
        return value

    @hookimpl
    def contract_version(self):
        return self.answer(self.version)

    @hookimpl
    def probe_devices(self):
        return self.answer(self.devices)

    @hookimpl
    def open_backend(self, device, options):
        self.calls.append((device, dict(options)))
        return self.answer(self.opens)


class FakeBackend:
    """Every required backend hook; ``log`` holds what was called."""

    def __init__(self, capabilities=CAPABILITIES):
        self.answer = capabilities
        self.log = []

    @hookimpl
    def capabilities(self):
        self.log.append("capabilities")
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    @hookimpl
    def torch_device(self):
        return "cpu"

    @hookimpl
    def unsupported(self, kv, attention):
        return []

    @hookimpl
    def kv_block_nbytes(self, spec):
        return 4096

    @hookimpl
    def allocate_kv_cache(self, spec, num_blocks):
        return ("device", num_blocks)

    @hookimpl
    def allocate_host_kv_cache(self, like, num_blocks):
        return ("host", num_blocks)

    @hookimpl
    def copy_blocks(self, cache, pairs):
        self.log.append("copy_blocks")

    @hookimpl
    def swap_blocks(self, source, destination, pairs):
        self.log.append("swap_blocks")
        return ("transfer", pairs.tolist())

    @hookimpl
    def zero_blocks(self, cache, blocks):
        self.log.append("zero_blocks")

    @hookimpl
    def memory_snapshot(self):
        return MemorySnapshot(total=4, free=3, allocated=1, peak=1, reserved=1)

    @hookimpl
    def reset_peak_memory(self):
        self.log.append("reset_peak_memory")

    @hookimpl
    def empty_cache(self):
        self.log.append("empty_cache")

    @hookimpl
    def allocate_host_buffer(self, shape, dtype):
        return np.zeros(shape, dtype)

    @hookimpl
    def build_attention_metadata(self, batch, cache):
        return object()

    @hookimpl
    def attention_kernel(self, attention, kv):
        self.log.append("attention_kernel")
        return ("kernel", attention)

    @hookimpl
    def synchronize(self):
        self.log.append("synchronize")

    @hookimpl
    def close(self):
        self.log.append("close")


def source(name, plugin, *, distribution=None):
    """An entry point whose import gives ``plugin``, or raises it."""

    def load():
        if isinstance(plugin, BaseException):
            raise plugin
        return plugin

    return PluginSource(
        name=name,
        value=f"{name}.plugin",
        distribution=distribution or f"baseboard-{name}",
        version="0.3.0",
        load=load,
    )


def installation(*, only=None, instruments=None, active=(), **plugins):
    return Installation(
        backends=tuple(source(name, plugin) for name, plugin in plugins.items()),
        instruments=tuple(source(name, value) for name, value in (instruments or {}).items()),
        only_backends=only,
        active_instruments=active,
    )
