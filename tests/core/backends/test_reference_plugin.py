"""The reference backend as a plugin: discovery, promises and refusals, memory, end of life."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pluggy
import pytest
import torch

from baseboard.backends import reference
from baseboard.backends.reference.device import AcceleratorMeter, memory_meter
from baseboard.contract import (
    API_VERSION,
    PROJECT,
    AttentionSpec,
    BackendHooks,
    BackendUnavailable,
    DiscoveryHooks,
    KVCacheSpec,
    MemorySnapshot,
    Unsupported,
)
from baseboard.kit.host_memory import read_host_memory

KV = KVCacheSpec(2, 2, 16, 16, "float32", 16)
ATTENTION = AttentionSpec(4, 2, 16, 0.25)


def test_discovery_loads_no_torch() -> None:
    code = """
import sys
import baseboard.backends.reference as reference
(device,) = reference.probe_devices()
assert device.available, device.reason
assert "torch" not in sys.modules
print(device.backend, device.device_type)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["reference", "cpu"]


@pytest.mark.parametrize(("hooks", "plugin"), [(DiscoveryHooks, reference), (BackendHooks, None)])
def test_every_hook_is_known_and_implemented(backend, hooks, plugin) -> None:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(plugin or backend)
    manager.check_pending()
    names = [name for name in vars(hooks) if hasattr(getattr(hooks, name), f"{PROJECT}_spec")]
    assert names
    for name in names:
        assert len(getattr(manager.hook, name).get_hookimpls()) == 1, name


def test_the_probe_tells_about_the_cpu() -> None:
    (device,) = reference.probe_devices()
    assert reference.contract_version() == API_VERSION
    assert (device.backend, device.device_type, device.index, device.priority) == ("reference", "cpu", 0, 0)
    assert device.reason is None
    assert device.name
    assert device.total_memory == read_host_memory().total > 0


def test_without_torch_the_probe_says_so(monkeypatch) -> None:
    (found,) = reference.probe_devices()
    monkeypatch.setitem(sys.modules, "torch", None)
    (device,) = reference.probe_devices()
    assert not device.available
    assert "baseboard[torch]" in str(device.reason)
    with pytest.raises(BackendUnavailable, match="torch is not installed"):
        reference.open_backend(found, {})


def test_the_device_option() -> None:
    (device,) = reference.probe_devices()
    opened: Any = reference.open_backend(device, {"device": "cpu"})
    assert opened.torch_device() == torch.device("cpu")
    with pytest.raises(BackendUnavailable, match="device='nonsense'"):
        reference.open_backend(device, {"device": "nonsense"})
    with pytest.raises(BackendUnavailable, match="hold no data"):
        reference.open_backend(device, {"device": "meta"})
    with pytest.raises(BackendUnavailable, match="no option colour, size: its only one is device"):
        reference.open_backend(device, {"size": 1, "colour": 2})


def test_what_is_declared_is_not_refused(backend) -> None:
    promise = backend.capabilities()
    assert promise.features == {
        "sliding_window",
        "softcap",
        "alibi",
        "sinks",
        "mixed_batch",
        "non_causal",
        "value_head_size",
    }
    for dtype in promise.dtypes:
        for size in promise.block_sizes:
            assert backend.unsupported(replace(KV, dtype=dtype, block_size=size, head_size_v=7), ATTENTION) == []
    everything = replace(ATTENTION, sliding_window=1, softcap=0.1, alibi_slopes=(0.5,) * 4, sinks=(0.0,) * 4)
    assert backend.unsupported(replace(KV, sliding_window=1), everything) == []


@pytest.mark.parametrize(
    ("kv", "attention", "words"),
    [
        ({"dtype": "float64"}, {}, "dtype 'float64'"),
        ({"kv_dtype": "int8"}, {}, "KV dtype 'int8'"),
        ({"kv_dtype": "fp8_e4m3"}, {}, "KV dtype 'fp8_e4m3'"),
        ({"block_size": 0}, {}, "block size 0"),
        ({"block_size": 3}, {}, "block size 3"),
        ({"num_layers": 0}, {}, "0 layers"),
        ({"head_size": 0}, {"head_size": 0}, "head size 0"),
        ({"head_size_v": 2000}, {}, "value head size 2000"),
        ({"sliding_window": 0}, {}, "KV cache's sliding window 0"),
        ({"num_kv_heads": 4}, {}, "2 KV heads, its cache has 4"),
        ({"head_size": 32}, {}, "head size 16, its cache has 32"),
        ({"sliding_window": 8}, {}, "sees all keys, its cache keeps 8"),
        ({"sliding_window": 8}, {"sliding_window": 9}, "sees 9 keys, its cache keeps 8"),
        ({}, {"num_heads": 5}, "5 query heads cannot share 2 KV heads"),
        ({"num_kv_heads": 0}, {"num_kv_heads": 0}, "cannot share 0 KV heads"),
        ({}, {"alibi_slopes": (0.5,)}, "1 ALiBi slopes for 4"),
        ({}, {"sinks": (0.5,) * 5}, "5 sinks for 4"),
        ({}, {"sinks": (float("nan"),) * 4}, "sinks must be finite"),
        ({}, {"sliding_window": 0}, "sliding window 0"),
        ({}, {"sliding_window": -4}, "sliding window -4"),
        ({}, {"softcap": 0.0}, "softcap 0.0"),
        ({}, {"softcap": float("nan")}, "softcap nan"),
        ({}, {"scale": float("inf")}, "scale inf"),
    ],
)
def test_what_is_not_declared_is_refused(backend, kv, attention, words) -> None:
    pair = replace(KV, **kv), replace(ATTENTION, **attention)
    (reason,) = backend.unsupported(*pair)
    assert words in reason
    with pytest.raises(Unsupported) as caught:
        backend.attention_kernel(pair[1], pair[0])
    assert caught.value.reasons == (reason,)


def test_all_reasons_are_given_at_once(backend) -> None:
    reasons = backend.unsupported(replace(KV, kv_dtype="int8", block_size=-1), replace(ATTENTION, softcap=-1.0))
    assert len(reasons) == 3


def test_no_fused_operators(backend) -> None:
    assert backend.operator_kernel("rms_norm", {"eps": 1e-6}) is None


@pytest.mark.parametrize(("shape", "dtype"), [((3, 5), "int32"), ((7,), "int64"), ((0, 4), "float32"), ((2,), "bool")])
def test_host_buffers(backend, shape, dtype) -> None:
    buffer = backend.allocate_host_buffer(shape, dtype)
    assert (buffer.shape, buffer.dtype.name) == (shape, dtype)
    assert buffer.flags.c_contiguous
    assert buffer.flags.writeable
    assert not buffer.any()
    buffer[...] = 1
    assert buffer.all()


def test_a_host_buffer_of_an_unknown_dtype(backend) -> None:
    with pytest.raises(ValueError, match="'int33'"):
        backend.allocate_host_buffer((1,), "int33")


def test_memory_follows_what_is_allocated(backend) -> None:
    backend.reset_peak_memory()
    start = backend.memory_snapshot()
    size = 1 << 26
    block = torch.ones(size, dtype=torch.uint8)
    held = backend.memory_snapshot()
    del block
    after = backend.memory_snapshot()
    assert held.allocated - start.allocated > size * 0.9
    assert held.peak >= held.allocated
    assert after.allocated < held.allocated - size * 0.9
    assert after.peak >= held.allocated
    backend.reset_peak_memory()
    backend.empty_cache()
    again = backend.memory_snapshot()
    assert again.allocated <= again.peak < held.allocated
    assert 0 < again.free <= again.total
    assert again.reserved == again.allocated


def test_an_accelerators_own_account() -> None:
    calls = []
    module = SimpleNamespace(
        mem_get_info=lambda device: (30, 100),
        memory_allocated=lambda device: 5,
        max_memory_allocated=lambda device: 9,
        memory_reserved=lambda device: 20,
        reset_peak_memory_stats=lambda device: calls.append(("reset", device)),
        empty_cache=lambda: calls.append("empty"),
    )
    device = torch.device("cuda", 1)
    meter = AcceleratorMeter(module, device)
    assert meter.snapshot() == MemorySnapshot(total=100, free=30, allocated=5, peak=9, reserved=20)
    meter.reset_peak()
    meter.empty_cache()
    assert calls == [("reset", device), "empty"]


def test_which_account_is_read(monkeypatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(mem_get_info=None))
    assert isinstance(memory_meter(torch.device("cuda")), AcceleratorMeter)
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    assert memory_meter(torch.device("mps")).snapshot().total == read_host_memory().total


def test_after_close_every_hook_says_so() -> None:
    opened: Any = reference.open_backend(reference.probe_devices()[0], {})
    cache = opened.allocate_kv_cache(KV, 2)
    opened.synchronize()
    opened.close()
    opened.close()
    pairs = np.empty((0, 2), np.int64)
    arguments = {
        "unsupported": (KV, ATTENTION),
        "kv_block_nbytes": (KV,),
        "allocate_kv_cache": (KV, 2),
        "allocate_host_kv_cache": (cache, 2),
        "copy_blocks": (cache, pairs),
        "swap_blocks": (cache, cache, pairs),
        "zero_blocks": (cache, pairs[:, 0]),
        "allocate_host_buffer": ((1,), "int32"),
        "build_attention_metadata": (None, cache),
        "attention_kernel": (ATTENTION, KV),
        "operator_kernel": ("rms_norm", {}),
        "graph_runner": ((),),
    }
    hooks = [name for name in vars(BackendHooks) if hasattr(getattr(BackendHooks, name), f"{PROJECT}_spec")]
    for name in set(hooks) - {"close"}:
        with pytest.raises(BackendUnavailable, match="was closed"):
            getattr(opened, name)(*arguments.get(name, ()))
