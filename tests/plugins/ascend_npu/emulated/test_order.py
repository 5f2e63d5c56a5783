"""On a device that lags behind: the plugin waits where it must, and one that does not is found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from baseboard_ascend_npu import backend as backend_module
from baseboard_ascend_npu import swapping
from baseboard_ascend_npu.backend import AscendBackend
from baseboard_ascend_standin.library import StandIn
from plugins.ascend_npu.emulated.npu_world import NpuWorld, Row, make_world


def world(**options: Any) -> NpuWorld:
    return make_world([Row(1, 33), Row(1, 20), Row(9, 40)], num_decodes=2, **options)


def everything(cache: Any) -> Any:
    blocks = np.arange(cache.num_blocks)
    return np.stack([blocks, blocks], 1)


def attend_after_a_trip_to_the_host(backend: AscendBackend, made: NpuWorld) -> torch.Tensor:
    """Write, move everything out, wipe the device, move it back in, attend."""
    cache = made.poisoned_cache(backend, 0.0)
    host = backend.allocate_host_kv_cache(cache, cache.num_blocks)
    kernel = backend.attention_kernel(made.spec, made.kv)
    step = backend.build_attention_metadata(made.batch(), cache)
    kernel.write(made._new(made.key).to("npu"), made._new(made.value).to("npu"), cache.layer(0), step)
    backend.swap_blocks(cache, host, everything(cache)).wait_on_stream()
    backend.zero_blocks(cache, np.arange(cache.num_blocks))
    backend.swap_blocks(host, cache, everything(cache)).wait_on_stream()
    return kernel.attend(torch.cat(made.query).to("npu"), cache.layer(0), step).cpu()


@pytest.mark.parametrize("head_size", [128, 64])
@pytest.mark.parametrize("batched", [True, False])
def test_swaps_wait_for_what_they_read_and_are_waited_for(
    backend: AscendBackend, standin: StandIn, monkeypatch: pytest.MonkeyPatch, batched: bool, head_size: int
) -> None:
    if not batched:
        monkeypatch.setattr(backend._swapper, "_batch", None)
    made = world(head_size=head_size)
    with standin.late():
        made.check(attend_after_a_trip_to_the_host(backend, made))


def forget(name: str) -> Callable[[pytest.MonkeyPatch, AscendBackend], None]:
    """A plugin whose transfers do not wait: the attribute of its parts becomes a function that does nothing."""

    def mutate(patch: pytest.MonkeyPatch, backend: AscendBackend) -> None:
        if name == "wait_on_stream":
            patch.setattr(swapping.StreamTransfer, "wait_on_stream", lambda self: None)
            return

        class Forgetful:
            npu_stream = backend._swapper._stream.npu_stream

            def wait_stream(self, other: Any) -> None:
                """Forgets."""

            def __getattr__(self, missing: str) -> Any:
                return getattr(stream, missing)

        stream = backend._swapper._stream
        patch.setattr(swapping.npu, "Event", lambda: _EventOn(stream))
        patch.setattr(backend._swapper, "_stream", Forgetful())

    return mutate


class _EventOn:
    """An event that is recorded on the real stream, whatever it is given."""

    def __init__(self, stream: Any) -> None:
        self._event = torch.npu.streams.Event()
        self._stream = stream

    def record(self, _: Any) -> None:
        self._event.record(self._stream)

    def query(self) -> bool:
        return self._event.query()

    @property
    def npu_event(self) -> Any:
        return self._event.npu_event

    def wait(self, stream: Any) -> None:
        self._event.wait(stream)


@pytest.mark.parametrize("forgotten", ["wait_on_stream", "wait_stream"])
def test_a_swap_that_nobody_waits_for_gives_wrong_results(
    backend: AscendBackend, standin: StandIn, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    made = world()
    forget(forgotten)(monkeypatch, backend)
    with standin.late(), pytest.raises(AssertionError):
        made.check(attend_after_a_trip_to_the_host(backend, made))


def run_while_the_next_batch_is_written(backend: AscendBackend, made: NpuWorld) -> torch.Tensor:
    """The core writes the arrays of a batch anew as soon as the metadata is made."""
    cache = made.poisoned_cache(backend, 0.0)
    kernel = backend.attention_kernel(made.spec, made.kv)
    batch = made.batch()
    for name in ("query_start_loc", "seq_lens", "block_tables", "slot_mapping", "positions"):
        array = getattr(batch, name)
        buffer = backend.allocate_host_buffer(array.shape, array.dtype.name)
        buffer[...] = array
        object.__setattr__(batch, name, buffer)
    # Copies of pageable memory wait for the stream: they come first.
    key, value, query = (part.to("npu") for part in (made._new(made.key), made._new(made.value), torch.cat(made.query)))
    step = backend.build_attention_metadata(batch, cache)
    kernel.write(key, value, cache.layer(0), step)
    for name in ("query_start_loc", "seq_lens", "block_tables", "slot_mapping", "positions"):
        getattr(batch, name)[...] = 1
    return kernel.attend(query, cache.layer(0), step).cpu()


@pytest.mark.parametrize("options", [{}, {"head_size": 64}, {"head_size": 96, "sliding_window": 5}])
def test_the_batch_may_be_written_anew_at_once(
    backend: AscendBackend, standin: StandIn, options: dict[str, Any]
) -> None:
    made = world(**options)
    with standin.late():
        made.check(run_while_the_next_batch_is_written(backend, made))


def test_a_plugin_that_uploads_the_batch_itself_gives_wrong_results(
    backend: AscendBackend, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Straight(backend_module.StepMetadata):
        def __init__(self, batch: Any, block_size: int, upload: Any) -> None:
            super().__init__(batch, block_size, upload)
            object.__setattr__(self, "tables", torch.from_numpy(batch.block_tables).to("npu", non_blocking=True))

    monkeypatch.setattr(backend_module, "StepMetadata", Straight)
    made = world()
    with standin.late(), pytest.raises(AssertionError):
        made.check(run_while_the_next_batch_is_written(backend, made))


def test_a_plugin_that_shares_the_lengths_gives_wrong_results(
    backend: AscendBackend, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shared(backend_module.StepMetadata):
        def __init__(self, batch: Any, block_size: int, upload: Any) -> None:
            super().__init__(batch, block_size, upload)
            object.__setattr__(self, "decode_lengths", torch.from_numpy(batch.seq_lens[: batch.num_decodes]))

    monkeypatch.setattr(backend_module, "StepMetadata", Shared)
    made = world(head_size=64)
    with standin.late(), pytest.raises(AssertionError):
        made.check(run_while_the_next_batch_is_written(backend, made))


def test_metadata_of_two_steps_at_once(backend: AscendBackend, standin: StandIn) -> None:
    """The next step's metadata is made while this one runs; both stay right."""
    made, other = world(seed=1), world(seed=2)
    with standin.late():
        steps = []
        for each in (made, other):
            cache = each.poisoned_cache(backend, 0.0)
            steps.append((each, cache, backend.build_attention_metadata(each.batch(), cache)))
        results = []
        for each, cache, step in steps:
            kernel = backend.attention_kernel(each.spec, each.kv)
            kernel.write(each._new(each.key).to("npu"), each._new(each.value).to("npu"), cache.layer(0), step)
            results.append(kernel.attend(torch.cat(each.query).to("npu"), cache.layer(0), step))
        for each, result in zip((made, other), results, strict=True):
            each.check(result.cpu())


def test_a_step_does_not_wait_for_the_device(backend: AscendBackend, standin: StandIn) -> None:
    made = world(head_size=64)
    cache = made.poisoned_cache(backend, 0.0)
    host = backend.allocate_host_kv_cache(cache, cache.num_blocks)
    kernel = backend.attention_kernel(made.spec, made.kv)
    key, value, query = (part.to("npu") for part in (made._new(made.key), made._new(made.value), torch.cat(made.query)))
    spare = next(block for block in range(1, cache.num_blocks) if not any(block in table for table in made.tables))
    waits = ("aclrtSynchronizeStream", "aclrtSynchronizeDevice", "aclrtSynchronizeEvent")
    before = [standin.calls(name) for name in waits]
    with standin.late():
        backend.zero_blocks(cache, np.array([0]))
        backend.copy_blocks(cache, np.array([[0, spare]]))
        backend.swap_blocks(cache, host, np.array([[1, 1]])).wait_on_stream()
        step = backend.build_attention_metadata(made.batch(), cache)
        kernel.write(key, value, cache.layer(0), step)
        result = kernel.attend(query, cache.layer(0), step)
        assert [standin.calls(name) for name in waits] == before
        assert standin.pending() > 0
        made.check(result.cpu())
