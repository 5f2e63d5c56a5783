"""``allocate_kv_cache``, ``allocate_host_kv_cache``, ``kv_block_nbytes``, ``allocate_host_buffer``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from baseboard.contract import KVCache, KVCacheSpec
from baseboard_conformance.bench import Bench, plane_bytes, raising_only, require
from baseboard_conformance.case import Case
from baseboard_conformance.cases.simple import Promise, promised
from baseboard_conformance.pools import plain_spec

#: More than any machine has; far below what counters of 64 bits hold.
_TOO_MUCH: Final = 1 << 55


def _specs(bench: Bench) -> Iterator[KVCacheSpec]:
    plain = plain_spec(bench)
    for dtype in bench.can.dtypes:
        for size in bench.can.block_sizes[:3]:
            yield replace(plain, dtype=dtype, block_size=size)
    yield replace(plain, num_layers=1)
    yield replace(plain, num_layers=5, num_kv_heads=1)


def _check_planes(cache: KVCache, spec: KVCacheSpec, num_blocks: int, what: str) -> None:
    import torch

    require(cache.num_blocks == num_blocks, f"{what} has num_blocks={cache.num_blocks}, {num_blocks} were asked for")
    require(cache.spec == spec, f"{what} has the spec {cache.spec}, not the one it was made for: {spec}")
    require(len(cache.planes) > 0, f"{what} shows no planes")
    for number, plane in enumerate(cache.planes):
        name = f"plane {number} of {what}"
        require(plane.dtype == torch.uint8, f"{name} is {plane.dtype}, right is torch.uint8")
        fine = plane.ndim == 2 and plane.shape[0] == num_blocks
        require(fine, f"{name} has shape {list(plane.shape)}, right is [{num_blocks}, nbytes]")
        require(
            plane.shape[1] == 1 or plane.stride(1) == 1, f"a block of {name} is no contiguous run: {plane.stride()}"
        )


def _device(bench: Bench) -> None:
    for spec in _specs(bench):
        cache = bench.hook.allocate_kv_cache(spec=spec, num_blocks=7)
        _check_planes(cache, spec, 7, f"the cache for {spec}")
        where = {str(plane.device) for plane in cache.planes}
        right = str(bench.hook.torch_device())
        require(where == {right}, f"the planes lie on {sorted(where)}, torch_device() is {right}")
        for plane in plane_bytes(bench, cache):
            require(not plane.any(), f"a fresh cache for {spec} is not zero-filled")
        layers = [cache.layer(i) for i in range(spec.num_layers)]
        require(len(layers) == spec.num_layers, "layer(i) gives a token for each layer")


def _host(bench: Bench) -> None:
    for spec in _specs(bench):
        device = bench.hook.allocate_kv_cache(spec=spec, num_blocks=3)
        host = bench.hook.allocate_host_kv_cache(like=device, num_blocks=5)
        _check_planes(host, spec, 5, f"the host cache for {spec}")
        sizes = [[plane.shape[1] for plane in cache.planes] for cache in (device, host)]
        require(
            sizes[0] == sizes[1], f"the host cache has planes of {sizes[1]} bytes a block, the device's has {sizes[0]}"
        )
        where = {plane.device.type for plane in host.planes}
        require(where == {"cpu"}, f"the host cache lies on {sorted(where)}")


def _exact_bytes(bench: Bench) -> None:
    for spec in _specs(bench):
        cache = bench.hook.allocate_kv_cache(spec=spec, num_blocks=2)
        taken = sum(int(plane.shape[1]) for plane in cache.planes)
        said = bench.hook.kv_block_nbytes(spec=spec)
        require(said == taken, f"kv_block_nbytes says {said} bytes, a block of the cache takes {taken}: {spec}")
        content = spec.num_layers * spec.num_kv_heads * (spec.head_size + spec.head_size_v) * spec.block_size
        require(said >= content, f"{said} bytes a block cannot hold {content} numbers: {spec}")


def _out_of_memory(bench: Bench) -> None:
    """A typed error, for device and host; and the backend works on."""
    spec = plain_spec(bench)
    count = _TOO_MUCH // bench.hook.kv_block_nbytes(spec=spec)
    _must_run_out(lambda: bench.hook.allocate_kv_cache(spec=spec, num_blocks=count), "allocate_kv_cache", count)
    small = bench.hook.allocate_kv_cache(spec=spec, num_blocks=2)
    _must_run_out(
        lambda: bench.hook.allocate_host_kv_cache(like=small, num_blocks=count), "allocate_host_kv_cache", count
    )
    again = bench.hook.allocate_kv_cache(spec=spec, num_blocks=2)
    bench.hook.zero_blocks(cache=again, blocks=np.array([1], np.int64))
    bench.hook.synchronize()


def _must_run_out(allocate: Callable[[], object], name: str, count: int) -> None:
    import torch

    try:
        with raising_only(torch.OutOfMemoryError, f"{name} of {count} blocks"):
            allocate()
    except torch.OutOfMemoryError:
        return
    require(condition=False, message=f"{name} claims to have allocated {count} blocks, {_TOO_MUCH >> 50} pebibytes")


def _host_buffers(bench: Bench) -> None:
    for shape, dtype in (((7,), "int32"), ((3, 5), "int64"), ((64, 129), "int32"), ((1,), "float32"), ((0,), "int64")):
        buffer: Any = bench.hook.allocate_host_buffer(shape=shape, dtype=dtype)
        what = f"allocate_host_buffer({shape}, {dtype!r})"
        require(isinstance(buffer, np.ndarray), f"{what} gave a {type(buffer).__name__}, right is a NumPy array")
        right = buffer.shape == shape and buffer.dtype == np.dtype(dtype)
        require(right, f"{what} gave {buffer.shape} of {buffer.dtype}")
        require(buffer.flags.c_contiguous and buffer.flags.writeable, f"{what} is not contiguous and writable")
        require(not buffer.any(), f"{what} is not zero-filled")
        buffer[...] = 1


def _buffers_apart(bench: Bench) -> None:
    """Buffers do not share memory, and live on while others come and go."""
    first = bench.hook.allocate_host_buffer(shape=(32,), dtype="int64")
    first[...] = np.arange(32)
    for _ in range(8):
        other = bench.hook.allocate_host_buffer(shape=(32,), dtype="int64")
        require(not np.shares_memory(first, other), "two host buffers share memory")
        other[...] = -1
    require(np.array_equal(first, np.arange(32)), "a host buffer changed when another was written")


_PROMISES: Final = {
    "allocation/device": Promise("blocks filled with zeros, shown as uint8 planes on torch_device()", _device),
    "allocation/host": Promise("the same planes in the same order, in host memory", _host),
    "allocation/block_nbytes": Promise("kv_block_nbytes is exact, padding included, over all layers", _exact_bytes),
    "allocation/out_of_memory": Promise("torch.OutOfMemoryError when it does not fit", _out_of_memory),
    "allocation/host_buffers": Promise("zeroed contiguous host arrays of any shape and dtype", _host_buffers),
    "allocation/buffers_apart": Promise("a host buffer lives as long as it is referenced", _buffers_apart),
}


def cases() -> Iterator[Case]:
    yield from promised("the contract's text", _PROMISES)
