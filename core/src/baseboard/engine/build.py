"""The one place that wires: from settings to an engine that is ready to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from baseboard.contract import KVCache, Unsupported
from baseboard.discovery import Backend, open_backend
from baseboard.engine.config import EngineConfig
from baseboard.engine.costs import MeasuredCosts
from baseboard.engine.engine import Engine, EngineParts, ModelFacts
from baseboard.engine.sample import NoText
from baseboard.kv.group import PoolShape
from baseboard.kv.prefix import NoPrefixIndex, PrefixIndex
from baseboard.runtime.binding import allocate, allocate_host, bind, check_supported
from baseboard.runtime.executor import LocalExecutor, LocalParts
from baseboard.runtime.graph_recording import Recording
from baseboard.runtime.graphs import DecodeGraphs
from baseboard.runtime.kv_memory import GroupCaches, KVMemory
from baseboard.runtime.layers import LayerGroup
from baseboard.runtime.loader import load_model
from baseboard.runtime.model_loaded import LoadedModel
from baseboard.runtime.operators import use_operators
from baseboard.runtime.profiling import LargestStep, profile
from baseboard.runtime.rows import RowTable
from baseboard.runtime.sizing import MemoryReport, SizingLimits, given_pool, size_pool
from baseboard.runtime.sources import resolve_model
from baseboard.runtime.step_batch import BatchBuilder, BatchLimits
from baseboard.scheduler.config import SchedulerConfig
from baseboard.scheduler.events import EventLog
from baseboard.scheduler.limits import PROMPT_LOGPROBS_CHUNK
from baseboard.scheduler.policy import make_kv, make_roles, splits_prompts
from baseboard.scheduler.scheduler import Scheduler

#: Longest request where neither the user nor the model names one.
_DEFAULT_MODEL_LEN: Final = 4096
_NOT_RECORDED: Final = "decode steps are not recorded: {}"
_TRIAL_BLOCKS: Final = 8


@dataclass(frozen=True, slots=True)
class Built:
    """An engine and what it was made from. Close engine and backend when done."""

    engine: Engine
    backend: Backend
    model: LoadedModel
    memory: MemoryReport
    block_size: int
    max_model_len: int
    graphs: DecodeGraphs | None = None  #: recorded decode steps; None where there are none


def build(config: EngineConfig, progress: Callable[[str], None]) -> Built:
    """Open the backend, load the model, measure, size the pool, wire the engine.

    Raises ``BackendUnavailable``, ``ModelLoadError``, ``Unsupported`` or ``MemoryShortage``; what was opened until
    then is closed.
    """
    source = resolve_model(config.model, progress)
    backend = open_backend(config.backend)
    try:
        progress(f"backend {backend.name}: {backend.why}")
        _check_capabilities(config, backend)
        model = load_model(source, config.dtype, backend.hook.torch_device(), progress)
        return _assemble(config, backend, model, progress)
    except BaseException:
        backend.close()
        raise


def build_from(config: EngineConfig, model: LoadedModel, progress: Callable[[str], None]) -> Built:
    """The same for a model that is loaded already and lies on the backend's device."""
    backend = open_backend(config.backend)
    try:
        progress(f"backend {backend.name}: {backend.why}")
        _check_capabilities(config, backend)
        if model.dtype != config.dtype:
            raise Unsupported([f"dtype={config.dtype!r}, but {model.name} was loaded in {model.dtype!r}: ask for that"])
        return _assemble(config, backend, model, progress)
    except BaseException:
        backend.close()
        raise


def _assemble(config: EngineConfig, backend: Backend, model: LoadedModel, progress: Callable[[str], None]) -> Built:
    hook = backend.hook
    block_size = config.block_size or backend.capabilities.block_sizes[0]
    max_model_len = _max_model_len(config, model)
    groups = model.groups(block_size)
    check_supported(hook, model, groups, backend.name)
    use_operators(hook, model.module)

    progress("measuring memory")
    limits = BatchLimits(
        max_tokens=config.max_num_batched_tokens,
        max_seqs=config.max_num_seqs,
        max_blocks=-(-max_model_len // block_size),
        block_size=block_size,
    )
    recording = Recording(hook, model, groups, limits)
    graphs_nbytes = _graph_memory(recording, progress) if config.enable_graphs else None
    memory = _size(config, backend, model, groups, max_model_len, graphs_nbytes or 0)
    num_blocks = memory.num_blocks
    progress(f"allocating {num_blocks} KV blocks of {block_size} tokens")
    caches = allocate(hook, groups, num_blocks)
    hosts = allocate_host(hook, groups, caches, config.num_host_blocks)
    kv_memory = KVMemory(hook, [GroupCaches(*parts) for parts in zip(groups, caches, hosts, strict=True)])
    bind(hook, model, groups, caches)

    scheduler_config = SchedulerConfig(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        pool_tokens=num_blocks * block_size,
        block_size=block_size,
        chunked_prefill=config.enable_chunked_prefill and splits_prompts(config.policy),
    )
    costs = MeasuredCosts(_seconds_per_block(kv_memory, min(config.num_host_blocks, num_blocks)))
    log = EventLog(time.perf_counter)
    index = PrefixIndex() if config.enable_prefix_caching else NoPrefixIndex()
    kv = make_kv(PoolShape(num_blocks, block_size), config.num_host_blocks, index)
    roles = make_roles(config.service, scheduler_config, costs, config.registry)
    scheduler = Scheduler(scheduler_config, kv, replace(roles, recorder=log))
    graphs: DecodeGraphs | None = None
    if graphs_nbytes is not None:
        progress("recording decode steps")
        graphs = _recorded(recording, caches, num_blocks, progress)
        if graphs is None:  # what was set aside for them stays free
            memory = replace(memory, graphs=0, margin=memory.margin + memory.graphs)
    limits = replace(limits, max_blocks=kv.blocks_for(min(max_model_len, num_blocks * block_size)))
    rows = RowTable(limits.max_seqs, limits.max_blocks, model.eos_token_ids)
    executor = LocalExecutor(LocalParts(hook, model, kv_memory, rows, BatchBuilder(hook, limits), graphs))
    facts = ModelFacts(model.vocab_size, model.eos_token_ids, model.tokenizer or NoText())
    engine = Engine(EngineParts(scheduler, executor, facts, costs, time.perf_counter, config.seed, log))
    return Built(engine, backend, model, memory, block_size, max_model_len, graphs)


def _check_capabilities(config: EngineConfig, backend: Backend) -> None:
    """What can be refused before the model is read."""
    can = backend.capabilities
    reasons: list[str] = []
    if config.dtype not in can.dtypes:
        reasons.append(f"dtype={config.dtype!r} is not among {backend.name}'s: {', '.join(can.dtypes)}")
    if can.max_seqs is not None and config.max_num_seqs > can.max_seqs:
        reasons.append(f"max_num_seqs={config.max_num_seqs} is more than {backend.name}'s {can.max_seqs}; lower it")
    if reasons:
        raise Unsupported(reasons)


def _max_model_len(config: EngineConfig, model: LoadedModel) -> int:
    if config.max_model_len is None:
        return model.max_positions or _DEFAULT_MODEL_LEN
    if model.max_positions is not None and config.max_model_len > model.max_positions:
        raise Unsupported(
            [f"max_model_len={config.max_model_len} is more than the {model.max_positions} positions of {model.name}"]
        )
    return config.max_model_len


def _graph_memory(recording: Recording, progress: Callable[[str], None]) -> int | None:
    """Bytes that recorded decode steps keep; None where none are to be: steps are told kernel by kernel then."""
    try:
        return recording.measure()
    except Unsupported as refusal:
        progress(_NOT_RECORDED.format(refusal))
        return None


def _recorded(
    recording: Recording, caches: Sequence[KVCache], num_blocks: int, progress: Callable[[str], None]
) -> DecodeGraphs | None:
    """Decode steps over ``caches``; None where memory no longer suffices, and what they had taken is given back."""
    try:
        return recording.record(caches, num_blocks)
    except Unsupported as refusal:
        progress(_NOT_RECORDED.format(refusal))
    recording.hook.empty_cache()
    return None


def _size(
    config: EngineConfig,
    backend: Backend,
    model: LoadedModel,
    groups: tuple[LayerGroup, ...],
    max_model_len: int,
    graphs_nbytes: int,
) -> MemoryReport:
    hook = backend.hook
    step = LargestStep(
        num_tokens=config.max_num_batched_tokens,
        longest_sequence=min(max_model_len, config.max_num_batched_tokens),
        num_logits=config.max_num_seqs + PROMPT_LOGPROBS_CHUNK,
        num_samples=config.max_num_seqs,
    )
    measured = replace(profile(hook, model, groups, step), graphs=graphs_nbytes)
    limits = SizingLimits(
        memory_fraction=config.memory_fraction,
        block_nbytes=sum(hook.kv_block_nbytes(spec=group.spec) for group in groups),
        block_size=groups[0].spec.block_size,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
    )
    if config.num_kv_blocks is None:
        return size_pool(measured, limits)
    return given_pool(measured, limits, config.num_kv_blocks)


def _seconds_per_block(kv: KVMemory, num_blocks: int) -> float:
    """Time a swap of a few empty blocks there and back; without host blocks nothing is ever swapped."""
    count = min(num_blocks, _TRIAL_BLOCKS)
    return kv.time_swap(count, time.perf_counter) / (2 * count) if count else float("inf")
