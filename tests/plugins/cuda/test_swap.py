"""Swaps: what is planned, how it is handed to the driver, and in which order it takes effect."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baseboard.contract import BackendFault, KVCacheSpec
from baseboard.kit.pool import DeviceMemory
from baseboard_cuda.cache import PooledKVCache, make_cache
from baseboard_cuda.layout import block_layout
from baseboard_cuda.registered import RegisteredMemory
from baseboard_cuda.swap.driver import DriverCopies, SourceAccess, submit
from baseboard_cuda.swap.lanes import Direction, Lanes, Order
from baseboard_cuda.swap.plan import PlanePair, describe_copies, find_runs
from baseboard_cuda.swap.swapper import HostSwapper, LaneSwapper, Swap, checked_swap
from plugins.cuda.fake_cuda import FakeCopies, FakeGpuStreams

SPEC = KVCacheSpec(3, 1, 4, 4, "float16", 1)  # three layers; 8 bytes of keys and 8 of values, each padded to 16
BLOCK = 32
HOST = DeviceMemory(torch.device("cpu"))


def pairs_of(*pairs) -> np.ndarray:
    return np.array(pairs, np.int64).reshape(-1, 2)


class NoRegistry:
    def register(self, address: int, nbytes: int) -> int:
        return 0

    def unregister(self, address: int) -> int:
        return 0


def cache(num_blocks: int, pinned: bool = False) -> PooledKVCache:
    memory = RegisteredMemory(NoRegistry()) if pinned else HOST
    return make_cache(SPEC, block_layout(SPEC, "tensor"), num_blocks, memory)


# --- the plan


def test_adjacent_blocks_become_one_copy() -> None:
    runs = find_runs(pairs_of((5, 1), (9, 7), (4, 0), (6, 2), (3, 3)))
    assert list(zip(runs.source, runs.destination, runs.count, strict=True)) == [(4, 0, 3), (3, 3, 1), (9, 7, 1)]


def test_a_source_may_go_to_two_places() -> None:
    runs = find_runs(pairs_of((4, 0), (4, 1), (5, 2)))
    assert list(zip(runs.source, runs.destination, runs.count, strict=True)) == [(4, 0, 1), (4, 1, 2)]


def test_no_pairs_give_no_runs() -> None:
    assert len(find_runs(pairs_of()).count) == 0


def test_addresses_are_64_bit() -> None:
    runs = find_runs(pairs_of((70_000, 131_068), (70_001, 131_069)))
    copies = describe_copies(runs, [PlanePair(2**46, 2**45, 65_536)])
    assert copies.source.tolist() == [2**46 + 70_000 * 65_536]
    assert copies.destination.tolist() == [2**45 + 131_068 * 65_536]
    assert copies.nbytes.tolist() == [2 * 65_536]
    assert copies.total_nbytes == 2 * 65_536


@given(
    ids=st.integers(0, 40).flatmap(
        lambda n: st.tuples(st.lists(st.integers(0, 50), min_size=n, max_size=n), st.permutations(range(60)))
    ),
    planes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=3),
)
@settings(deadline=None)
def test_copies_move_exactly_the_bytes_of_the_pairs(ids, planes) -> None:
    sources, permutation = ids
    pairs = np.array(list(zip(sources, permutation, strict=False)), np.int64).reshape(-1, 2)
    base = [(10_000 * i, 10_000 * i + 5_000, nbytes) for i, (_, nbytes) in enumerate(planes)]
    copies = describe_copies(find_runs(pairs), [PlanePair(*plane) for plane in base])
    moved = {
        int(destination) + byte: int(source) + byte
        for source, destination, nbytes in zip(copies.source, copies.destination, copies.nbytes, strict=True)
        for byte in range(int(nbytes))
    }
    expected = {
        to + d * nbytes + byte: come + s * nbytes + byte
        for come, to, nbytes in base
        for s, d in pairs.tolist()
        for byte in range(nbytes)
    }
    assert moved == expected
    assert copies.total_nbytes == len(expected)
    assert copies.nbytes.min(initial=1) > 0


# --- the driver's call


def submitted(table: FakeCopies, pairs, access=SourceAccess.STREAM):
    a, b = cache(8), cache(8)
    a.pool.copy_(torch.arange(a.pool.numel()).view_as(a.pool) % 251)
    submit(table, Swap(a, b, pairs).copies(), access, table.gpu.compute.cuda_stream)
    return a, b


@pytest.mark.parametrize("batch", [True, False])
def test_one_call_for_all_layers_or_a_loop_on_older_drivers(batch) -> None:
    table = FakeCopies(FakeGpuStreams(0), has_batch=batch)
    a, b = submitted(table, pairs_of((1, 5), (2, 6), (4, 0)))
    assert not b.pool.any()
    table.gpu.run_all()
    assert torch.equal(b.pool[:, [5, 6, 0]], a.pool[:, [1, 2, 4]])
    assert not b.pool[:, [1, 2, 3, 4, 7]].any()
    assert len(table.batches) == (1 if batch else 0)
    assert table.singles == (0 if batch else 2 * SPEC.num_layers)


def test_nothing_to_copy_is_no_call() -> None:
    table = FakeCopies(FakeGpuStreams(0))
    submitted(table, pairs_of())
    assert table.batches == []


def test_the_null_stream_is_refused_by_the_driver() -> None:
    copies = Swap(cache(2), cache(2), pairs_of((0, 1))).copies()
    with pytest.raises(BackendFault, match="CUDA_ERROR_INVALID_HANDLE"):
        submit(FakeCopies(FakeGpuStreams(0)), copies, SourceAccess.STREAM, 0)


@pytest.mark.parametrize("batch", [True, False])
def test_a_refused_copy_is_named(batch) -> None:
    a, b = cache(8), cache(8)
    copies = Swap(a, b, pairs_of((1, 5), (4, 0))).copies()
    bad = frozenset({b.planes[2].data_ptr() + 5 * BLOCK})
    table = FakeCopies(FakeGpuStreams(0), has_batch=batch, bad=bad)
    with pytest.raises(BackendFault, match="copy 5, blocks 1 to 1 to blocks 5 to 5 of plane 2") as caught:
        submit(table, copies, SourceAccess.STREAM, 7000)
    assert "CUDA_ERROR_INVALID_VALUE" in str(caught.value)


def test_a_refused_batch_without_an_index_still_says_what_the_driver_said() -> None:
    a, b = cache(4), cache(4)
    table = FakeCopies(FakeGpuStreams(0), bad=frozenset({a.planes[0].data_ptr()}), says_index=False)
    with pytest.raises(BackendFault, match=r"INVALID_VALUE$"):
        submit(table, Swap(a, b, pairs_of((0, 1))).copies(), SourceAccess.STREAM, 7000)


class FakeLibrary:
    """libcuda with a copy function that only counts, and with or without the batched one."""

    def __init__(self, code: int | None) -> None:
        self.copied: list[tuple] = []

        def memcpy(*args) -> int:
            self.copied.append(args)
            return 0

        self.cuMemcpyAsync = memcpy
        if code is not None:
            self.cuGetProcAddress_v2 = lambda *_: code


@pytest.mark.parametrize("code", [None, 0, 500])
def test_a_driver_without_the_batched_copy_is_told_apart(code) -> None:
    """Too old for the query itself, answers with no address, or with an error."""
    library = FakeLibrary(code)
    table = DriverCopies(library)
    assert not table.has_batch
    assert table.memcpy_async(1, 2, 3, 4) == 0
    assert library.copied == [(1, 2, 3, 4)]


# --- order


@dataclass
class World:
    """A device, a host pool, and the same moved at once, one thing after the other."""

    seed: int
    pinned: bool = True
    batch: bool = True
    device: PooledKVCache = field(init=False)
    host: PooledKVCache = field(init=False)

    def __post_init__(self) -> None:
        self.device, self.host = cache(6), cache(5, self.pinned)
        rng = np.random.default_rng(self.seed)
        for c in (self.device, self.host):
            c.pool.copy_(torch.from_numpy(rng.integers(0, 256, c.pool.shape, np.uint8)))
        self.model = {Direction.TO_DEVICE: self.device.pool.clone(), Direction.TO_HOST: self.host.pool.clone()}
        self.gpu = FakeGpuStreams(self.seed)
        self.table = FakeCopies(self.gpu, has_batch=self.batch)
        self.lanes = Lanes(self.table, self.gpu)
        self.transfers: list = []

    def swap(self, direction: Direction, pairs):
        """Start it; the model is moved at once."""
        caches = (self.device, self.host) if direction is Direction.TO_HOST else (self.host, self.device)
        swap = checked_swap(*caches, pairs)
        order = Order(swap.copies(), direction, *_addresses(caches, pairs), pinned=self.pinned, keep=swap)
        transfer = self.lanes.start(order)
        target, source = self.model[direction], self.model[direction.other]
        target[:, pairs[:, 1]] = source[:, pairs[:, 0]]
        self.transfers.append(transfer)
        return transfer

    def compute(self, block: int, value: int) -> None:
        """A kernel that writes a device block, after the transfers that the core waits for."""
        for transfer in self.transfers:
            transfer.wait_on_stream()
        self.gpu.compute.enqueue(lambda: self.device.pool[:, block].fill_(value))
        self.model[Direction.TO_DEVICE][:, block] = value

    def check(self) -> None:
        assert torch.equal(self.device.pool, self.model[Direction.TO_DEVICE])
        assert torch.equal(self.host.pool, self.model[Direction.TO_HOST])


def _addresses(caches, pairs):
    return [
        np.uint64(c.planes[0].data_ptr()) + ids.astype(np.uint64) * np.uint64(BLOCK)
        for c, ids in zip(caches, pairs.T, strict=True)
    ]


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("compute"), st.integers(0, 5), st.integers(0, 255)),
        st.tuples(
            st.sampled_from(list(Direction)),
            st.lists(st.integers(0, 4), min_size=1, max_size=3),
            st.permutations(range(5)),
        ),
    ),
    min_size=1,
    max_size=10,
)


@given(moves=MOVES, seed=st.integers(0, 10_000), pinned=st.booleans(), batch=st.booleans())
@settings(deadline=None, max_examples=150)
def test_whatever_the_order_of_streams_the_result_is_that_of_the_calls(moves, seed, pinned, batch) -> None:
    world = World(seed, pinned, batch)
    for what, *rest in moves:
        if what == "compute":
            world.compute(*rest)
        else:
            sources, targets = rest
            world.swap(what, np.array(list(zip(sources, targets, strict=False)), np.int64))
    world.gpu.run_all()
    world.check()
    assert all(transfer.done() for transfer in world.transfers)


@pytest.mark.parametrize("seed", range(30))
def test_the_last_transfer_is_done_when_all_are(seed) -> None:
    world = World(seed)
    world.compute(1, 7)
    world.swap(Direction.TO_HOST, pairs_of((1, 0), (2, 1)))
    world.swap(Direction.TO_DEVICE, pairs_of((3, 4)))
    world.swap(Direction.TO_HOST, pairs_of((3, 0)))
    world.swap(Direction.TO_DEVICE, pairs_of((0, 5), (1, 0)))
    last = world.swap(Direction.TO_HOST, pairs_of((5, 2)))
    last.wait()
    assert all(transfer.done() for transfer in world.transfers)
    world.check()


@pytest.mark.parametrize("seed", range(20))
def test_compute_may_wait_for_what_comes_from_the_host(seed) -> None:
    world = World(seed)
    arrived = world.swap(Direction.TO_DEVICE, pairs_of((4, 2)))
    arrived.wait_on_stream()
    copied: list[torch.Tensor] = []
    world.gpu.compute.enqueue(lambda: copied.append(world.device.pool[:, 2].clone()))
    world.gpu.run_all()
    assert torch.equal(copied[0], world.host.pool[:, 4])


def test_directions_that_share_no_block_do_not_wait_for_each_other() -> None:
    world = World(0)
    world.swap(Direction.TO_HOST, pairs_of((1, 0)))
    world.swap(Direction.TO_DEVICE, pairs_of((2, 3)))
    _, to_host, to_device = world.gpu.streams
    assert [len(lane.queue) for lane in (to_host, to_device)] == [3, 3]  # wait for compute, copies, event


def test_when_sources_may_be_read_early() -> None:
    world = World(0)
    world.swap(Direction.TO_HOST, pairs_of((1, 0)))
    world.swap(Direction.TO_DEVICE, pairs_of((2, 3)))
    world.swap(Direction.TO_DEVICE, pairs_of((0, 4)))  # still arriving from the device
    assert [access for access, _ in world.table.batches] == [SourceAccess.STREAM, SourceAccess.ANY, SourceAccess.STREAM]
    pageable = World(0, pinned=False)
    pageable.swap(Direction.TO_DEVICE, pairs_of((2, 3)))
    assert [access for access, _ in pageable.table.batches] == [SourceAccess.STREAM]


def test_bytes_and_closing() -> None:
    world = World(3)
    transfer = world.swap(Direction.TO_HOST, pairs_of((1, 0), (2, 1)))
    assert transfer.nbytes == 2 * 3 * BLOCK
    world.lanes.close()
    world.check()
    assert transfer.done()


def test_a_lost_gpu_is_a_fault_and_can_be_closed(monkeypatch) -> None:
    world = World(3)
    transfer = world.swap(Direction.TO_HOST, pairs_of((1, 0)))

    def lost(self):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    event = type(world.gpu.compute.record_event())
    monkeypatch.setattr(event, "query", lost)
    monkeypatch.setattr(event, "synchronize", lost)
    for action in (transfer.done, transfer.wait, lambda: world.swap(Direction.TO_HOST, pairs_of((1, 0)))):
        with pytest.raises(BackendFault, match="a swap: CUDA error"):
            action()
    world.lanes.close()


# --- the backend's side


def test_caches_that_are_no_pair_are_refused() -> None:
    a = cache(4)
    other = make_cache(
        KVCacheSpec(2, 1, 8, 8, "float16", 1), block_layout(KVCacheSpec(2, 1, 8, 8, "float16", 1), "tensor"), 4, HOST
    )
    with pytest.raises(ValueError, match="one cache"):
        checked_swap(a, a, pairs_of((0, 1)))
    with pytest.raises(ValueError, match="planes differ"):
        checked_swap(a, other, pairs_of((0, 1)))
    with pytest.raises(ValueError, match=r"destination block ids \[4\]"):
        checked_swap(a, cache(4), pairs_of((0, 4)))
    gpu = FakeGpuStreams(0)
    with pytest.raises(ValueError, match="same side"):
        LaneSwapper(Lanes(FakeCopies(gpu), gpu)).start(checked_swap(a, cache(4), pairs_of((0, 1))))


def test_the_interpreter_swaps_on_the_host() -> None:
    a, b = cache(8), cache(8)
    a.pool.copy_(torch.randint(0, 256, a.pool.shape, dtype=torch.uint8))
    transfer = HostSwapper().start(checked_swap(a, b, pairs_of((1, 5), (2, 6), (7, 0))))
    assert transfer.done()
    assert transfer.nbytes == 3 * 3 * BLOCK
    assert torch.equal(b.pool[:, [5, 6, 0]], a.pool[:, [1, 2, 7]])
    assert not b.pool[:, [1, 2, 3, 4, 7]].any()
