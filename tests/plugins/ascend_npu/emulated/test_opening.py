"""Opening, refusing, running out of memory, losing the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import baseboard_ascend_npu as plugin
from baseboard.contract import (
    AttentionSpec,
    BackendFault,
    BackendUnavailable,
    KVCacheSpec,
    Unsupported,
)
from baseboard.discovery import open_backend as open_through_core
from baseboard.kit.pool import PinnedMemory
from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_standin.library import StandIn
from plugins.ascend_npu.emulated.npu_world import Row, make_world
from plugins.ascend_npu.emulated.opened import open_backend

SPEC = KVCacheSpec(1, 2, 128, 128, "bfloat16", 16)
ATTENTION = AttentionSpec(4, 2, 128, 0.1)


def test_the_core_opens_it_by_name_and_prefers_it() -> None:
    with open_through_core("ascend_npu") as backend:
        assert backend.hook.torch_device() == torch.device("npu", 0)
        assert backend.capabilities.block_sizes[0] == 128
        assert backend.capabilities.max_seqs == 4096
    with open_through_core() as backend:
        assert backend.name == "ascend_npu"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": "npu:0"}, "no option devices: it has device, gqa_64"),
        ({"device": "cuda:0"}, "cannot use device='cuda:0': give npu or npu:INDEX"),
        ({"device": "npu:7"}, "npu:7 cannot be opened"),
        ({"gqa_64": "perhaps"}, "give yes or no"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(BackendUnavailable, match=message):
        open_backend(**options)


def test_a_device_that_is_not_available_is_not_opened() -> None:
    (device,) = plugin.probe_devices()
    with pytest.raises(BackendUnavailable, match="no heartbeat"):
        plugin.open_backend(replace(device, available=False, reason="no heartbeat"), {})


@pytest.mark.parametrize("missing", ["npu_fused_infer_attention_score", "npu_scatter_pa_kv_cache"])
def test_an_older_torch_npu_without_an_operator(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    from baseboard_ascend_npu import operators

    real = operators._optional
    monkeypatch.setattr(operators, "_optional", lambda space, name: None if name == missing else real(space, name))
    with pytest.raises(
        BackendUnavailable, match=rf"needs the operator {missing}, which torch_npu 2\.13\.0 does not have"
    ):
        open_backend()


def test_an_older_torch_npu_without_the_optional_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    from baseboard_ascend_npu import operators

    real = operators._optional
    kept = {"npu_fused_infer_attention_score", "npu_scatter_pa_kv_cache"}
    monkeypatch.setattr(operators, "_optional", lambda space, name: real(space, name) if name in kept else None)
    backend = open_backend()
    assert backend.operator_kernel("rms_norm", {"eps": 1e-6}) is None
    for options in ({"sinks": (1.0, 2.0, 0.0, -1.0)}, {"head_size": 64}, {}):
        made = make_world([Row(1, 20), Row(4, 9)], num_decodes=1, **options)
        made.check(made.run(backend))
    backend.close()


@pytest.mark.parametrize(
    ("kv", "attention", "reason"),
    [
        ({}, {"softcap": 30.0}, "softcap 30.0 is not supported: no attention operator of the NPU has one"),
        ({}, {"alibi_slopes": (0.1,) * 4}, "ALiBi is not supported: the NPU's paged attention operators take no bias"),
        ({"dtype": "float32"}, {}, "dtype 'float32' is not supported, only bfloat16, float16"),
        ({"kv_dtype": "int8"}, {}, "KV dtype 'int8' is not supported"),
        ({"block_size": 24}, {}, "block size 24 is not supported, only multiples of 16 up to 1024"),
        ({"block_size": 2048}, {}, "block size 2048 is not supported"),
        ({"head_size": 120}, {"head_size": 120}, "head size 120 is not supported, only multiples of 16 up to 512"),
        ({"head_size_v": 528}, {}, "value head size 528 is not supported"),
        ({"num_kv_heads": 4}, {}, "the layer has 2 KV heads, its cache has 4"),
        ({"sliding_window": 4}, {"sliding_window": 8}, "the layer sees 8 keys, its cache keeps 4"),
        ({}, {"num_heads": 5}, "5 query heads cannot share 2 KV heads evenly"),
        ({}, {"num_heads": 130}, "65 query heads share a KV head, the operators allow 64"),
        ({"num_kv_heads": 10}, {"num_heads": 260, "num_kv_heads": 10}, "260 query heads are not supported"),
        ({}, {"sinks": (1.0,)}, "there are 1 sinks for 4 query heads"),
        ({}, {"sinks": (float("nan"),) * 4}, "sinks must be finite"),
        ({}, {"scale": float("inf")}, "scale inf is not a finite number"),
        ({}, {"sliding_window": 0}, "sliding window 0 is not a positive number"),
        ({"num_layers": 0}, {}, "a group of 0 layers stores nothing"),
    ],
)
def test_layers_that_are_refused(
    backend: AscendBackend, kv: dict[str, Any], attention: dict[str, Any], reason: str
) -> None:
    spec, layer = replace(SPEC, **kv), replace(ATTENTION, **attention)
    reasons = backend.unsupported(spec, layer)
    assert any(each.startswith(reason) for each in reasons), reasons
    with pytest.raises(Unsupported):
        backend.attention_kernel(layer, spec)


def test_a_pool_that_the_operators_cannot_address(backend: AscendBackend, standin: StandIn) -> None:
    most = (2**31 - 1) // (16 * 2 * 128)
    with pytest.raises(torch.OutOfMemoryError, match=r"8,589,934,592 bytes do not fit: the NPU has 4,294,967,296"):
        backend.allocate_kv_cache(SPEC, most + 1)
    standin.set_capacity(16 << 30)
    try:
        with pytest.raises(Unsupported, match=f"the {most} whose keys .* num_kv_blocks={most - 1} or less"):
            backend.allocate_kv_cache(SPEC, most + 1)
    finally:
        standin.set_capacity(4 << 30)


def test_5000_sequences(backend: AscendBackend) -> None:
    rows = [Row(1, 1)] * 5000
    made = make_world(rows, num_decodes=5000, heads=(1, 1), head_size=16)
    cache = backend.allocate_kv_cache(made.kv, 2)
    with pytest.raises(ValueError, match=r"5000 sequences is more than the 4096 .* lower max_num_seqs"):
        backend.build_attention_metadata(made.batch(), cache)


@pytest.mark.usefixtures("nothing_kept")
def test_the_device_runs_out_of_memory(backend: AscendBackend, standin: StandIn) -> None:
    before = backend.memory_snapshot().allocated
    standin.set_capacity(standin.device_used() + (32 << 20))
    try:
        with pytest.raises(torch.OutOfMemoryError):
            backend.allocate_kv_cache(replace(SPEC, num_layers=8), 600)  # 16 planes of 5 MB
        backend.empty_cache()
        assert backend.memory_snapshot().allocated == before
        backend.allocate_kv_cache(SPEC, 600)
    finally:
        standin.set_capacity(4 << 30)


@pytest.mark.usefixtures("nothing_kept")
def test_the_driver_refuses_to_pin(backend: AscendBackend, standin: StandIn) -> None:
    cache = backend.allocate_kv_cache(SPEC, 2)
    standin.set_pinned_capacity(standin.pinned_used() + 4096)
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"refused to pin .* lower the size of the host pool"):
            backend.allocate_host_kv_cache(cache, 500)
        with pytest.raises(torch.OutOfMemoryError):
            backend.allocate_host_buffer((1 << 24,), "int64")
    finally:
        standin.set_pinned_capacity(64 << 30)


@pytest.mark.usefixtures("nothing_kept")
def test_pinned_memory_of_the_kit_is_refused_by_an_error_and_not_by_a_crash(standin: StandIn) -> None:
    standin.set_pinned_capacity(standin.pinned_used() + 4096)
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"refused to pin 134,217,728 bytes .* \(ulimit -l\)"):
            PinnedMemory().zeros((1 << 24,), torch.int64)
    finally:
        standin.set_pinned_capacity(64 << 30)
        torch.npu.host_empty_cache()  # the allocator keeps what it was refused


def test_more_host_memory_than_there_is(backend: AscendBackend) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        backend.allocate_host_kv_cache(backend.allocate_kv_cache(SPEC, 2), 1 << 40)


@pytest.mark.usefixtures("nothing_kept")
def test_memory_is_told_as_torch_npu_counts_it(backend: AscendBackend, standin: StandIn) -> None:
    backend.reset_peak_memory()
    start = backend.memory_snapshot()
    # Planes of 16 MiB: the allocator asks the driver for each and can give each back, whatever ran before.
    cache = backend.allocate_kv_cache(replace(SPEC, num_layers=2), 2048)
    during = backend.memory_snapshot()
    assert during.allocated - start.allocated >= 2048 * backend.kv_block_nbytes(cache.spec)
    assert during.total == 4 << 30
    assert during.free == during.total - standin.device_used()
    del cache
    after = backend.memory_snapshot()
    assert after.allocated == start.allocated
    assert after.peak >= during.allocated
    backend.reset_peak_memory()
    assert backend.memory_snapshot().peak == after.allocated
    backend.empty_cache()
    assert backend.memory_snapshot().reserved < during.reserved


def test_host_buffers_are_pinned_zeroed_and_of_any_shape(backend: AscendBackend) -> None:
    buffer = backend.allocate_host_buffer((3, 5), "int32")
    assert (buffer.shape, buffer.dtype, buffer.any()) == ((3, 5), np.dtype("int32"), False)
    assert torch.from_numpy(buffer).is_pinned()
    assert backend.allocate_host_buffer((0, 4), "int64").shape == (0, 4)
    with pytest.raises(ValueError, match="'elephant' is not a name that numpy knows"):
        backend.allocate_host_buffer((1,), "elephant")


def calls_on_a_lost_device(backend: AscendBackend) -> list[Callable[[], object]]:
    made = make_world([Row(1, 20), Row(4, 9)], num_decodes=1)
    cache = made.poisoned_cache(backend, 0.0)
    host = backend.allocate_host_kv_cache(cache, 2)
    kernel = backend.attention_kernel(made.spec, made.kv)
    step = backend.build_attention_metadata(made.batch(), cache)
    key, value, query = (part.to("npu") for part in (made._new(made.key), made._new(made.value), torch.cat(made.query)))
    transfer = backend.swap_blocks(cache, host, np.array([[1, 1]]))
    return [
        backend.synchronize,
        backend.memory_snapshot,
        transfer.wait,
        transfer.done,
        transfer.wait_on_stream,
        lambda: backend.build_attention_metadata(made.batch(), cache),
        lambda: kernel.write(key, value, cache.layer(0), step),
        lambda: kernel.attend(query, cache.layer(0), step),
        lambda: backend.copy_blocks(cache, np.array([[1, 2]])),
        lambda: backend.zero_blocks(cache, np.array([1])),
        lambda: backend.swap_blocks(cache, host, np.array([[1, 1]])),
    ]


def test_a_lost_device_is_a_fault_wherever_it_is_met(standin: StandIn) -> None:
    backend = open_backend()
    calls = calls_on_a_lost_device(backend)
    with standin.lost():
        for call in calls:
            with pytest.raises(BackendFault, match="CANN error 507010"):
                call()
        backend.close()
        backend.close()


def test_other_errors_stay_what_they_are(backend: AscendBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_world([Row(1, 20)], num_decodes=1)
    cache = made.poisoned_cache(backend, 0.0)
    kernel: Any = backend.attention_kernel(made.spec, made.kv)
    step = backend.build_attention_metadata(made.batch(), cache)

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("EZ9999: error code is 161002")

    monkeypatch.setattr(kernel, "_scatter", fails)
    monkeypatch.setattr(kernel, "_call", fails)
    rows = torch.cat(made.query).to("npu")
    with pytest.raises(RuntimeError, match="161002"):
        kernel.write(rows[:, :2], rows[:, :2], cache.layer(0), step)
    with pytest.raises(RuntimeError, match="161002"):
        kernel.attend(rows, cache.layer(0), step)


def test_closed(npu: Any) -> None:
    backend = open_backend()
    backend.close()
    backend.close()
    for call in (
        backend.capabilities,
        backend.torch_device,
        backend.memory_snapshot,
        backend.synchronize,
        lambda: backend.allocate_kv_cache(SPEC, 1),
        lambda: backend.operator_kernel("rms_norm", {}),
    ):
        with pytest.raises(BackendUnavailable, match="was closed"):
            call()
