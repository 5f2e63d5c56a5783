"""Other engines in the place of our kernel: what they are given, when they are refused, and which one is chosen."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

import baseboard_cuda
from baseboard.contract import AttentionSpec, BackendUnavailable, KVCacheSpec, Unsupported
from baseboard_cuda.backend import CudaBackend
from baseboard_cuda.engines import flashinfer as flashinfer_engine
from baseboard_cuda.engines.choice import Missing
from baseboard_cuda.engines.flashinfer import FlashInfer, find_flashinfer
from baseboard_cuda.engines.varlen import Varlen, find_varlen
from baseboard_cuda.opening import open_interpreter
from baseboard_cuda.options import Options
from core.backends.world import Row, make_world
from plugins.cuda.interpreted.judging import check
from plugins.cuda.interpreted.other_engines import FakeFlashInfer, VarlenOnCpu

CPU = torch.device("cpu")
ROWS = [Row(1, 1), Row(1, 16), Row(1, 40), Row(7, 19), Row(20, 20), Row(1, 33)]


def with_flashinfer(module: FakeFlashInfer, wanted: str = "flashinfer") -> CudaBackend:
    return CudaBackend(
        replace(open_interpreter(Options()), engines=(FlashInfer(module, CPU),)), Options(attention=wanted)
    )


def with_varlen(wanted: str = "varlen") -> CudaBackend:
    engine = find_varlen(90)
    assert isinstance(engine, Varlen), "the torch that is tested with has it"
    return CudaBackend(replace(open_interpreter(Options()), engines=(engine,)), Options(attention=wanted))


@pytest.mark.parametrize("options", [{}, {"sliding_window": 5}, {"softcap": 20.0}])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block_size", [16, 32])
def test_flashinfer_is_given_what_it_wants(options, causal, block_size) -> None:
    module = FakeFlashInfer()
    world = make_world(ROWS, "float16", (8, 2), 64, block_size, num_decodes=3, causal=causal, **options)
    check(world, world.run(with_flashinfer(module), torch.nan))
    assert module.log == ["plan decode", "plan prefill", "run decode", "run prefill"]


def test_flashinfer_plans_once_a_step_for_all_layers_of_a_kind() -> None:
    module = FakeFlashInfer()
    backend = with_flashinfer(module)
    world = make_world(ROWS, "float16", (4, 2), 64, 16, num_decodes=3)
    cache = world.poisoned_cache(backend, 0.0)
    kernels = [backend.attention_kernel(world.spec, world.kv) for _ in range(3)]
    other = backend.attention_kernel(replace(world.spec, scale=0.3), world.kv)
    query = torch.cat(world.query)
    for _ in range(2):
        metadata = backend.build_attention_metadata(world.batch(), cache)
        for kernel in [*kernels, other]:
            kernel.attend(query, cache.layer(0), metadata)
    assert module.log.count("plan decode") == module.log.count("plan prefill") == 2 * 2
    assert module.log.count("run decode") == 2 * 4


def test_steps_that_follow_each_other_have_plans_of_their_own() -> None:
    """A step's plan may still be read when the next one is made: the wrappers take turns."""
    module = FakeFlashInfer()
    backend = with_flashinfer(module)
    world = make_world([Row(1, 20)], "float16", (4, 2), 64, 16, num_decodes=1)
    cache = world.poisoned_cache(backend, 0.0)
    kernel = backend.attention_kernel(world.spec, world.kv)
    used = []
    for _ in range(3):
        kernel.attend(world.query[0], cache.layer(0), backend.build_attention_metadata(world.batch(), cache))
        used.append(kernel.compute._sets[0][True])
    assert used[0] is not used[1]
    assert used[0] is used[2]


@pytest.mark.parametrize("options", [{}, {"sliding_window": 5}])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [(2, 2), (8, 2)])
def test_torchs_varlen_is_given_what_it_wants(options, causal, heads) -> None:
    world = make_world([*ROWS, Row(3, 300)], "float16", heads, 24, 256, num_decodes=3, causal=causal, **options)
    with VarlenOnCpu() as mode:
        check(world, world.run(with_varlen(), torch.nan))
    assert mode.calls == 1


def test_an_empty_step_calls_nobody() -> None:
    world, backend = make_world([], "float16", (4, 2), 64, 256), with_varlen()
    cache = backend.allocate_kv_cache(world.kv, 2)
    kernel = backend.attention_kernel(world.spec, world.kv)
    metadata = backend.build_attention_metadata(world.batch(), cache)
    with VarlenOnCpu() as mode:
        out = kernel.attend(torch.zeros(0, 4, 64, dtype=torch.float16), cache.layer(0), metadata)
    assert out.shape == (0, 4, 64)
    assert mode.calls == 0


KV = KVCacheSpec(1, 2, 64, 64, "float16", 256)
ATTENTION = AttentionSpec(4, 2, 64, 0.125)


@pytest.mark.parametrize(
    ("kv", "attention", "said"),
    [
        ({"block_size": 16}, {}, "block size 16 is no multiple of 256"),
        ({"dtype": "float32"}, {}, "not float32"),
        ({"kv_dtype": "fp8_e4m3"}, {}, "reads no fp8_e4m3"),
        ({"head_size_v": 32}, {}, "head sizes 64 and 32"),
        ({"head_size": 12, "head_size_v": 12}, {"head_size": 12}, "head size 12"),
        ({"head_size": 512, "head_size_v": 512}, {"head_size": 512}, "head size 512"),
        ({}, {"softcap": 9.0}, "no softcap"),
        ({}, {"sinks": (0.0,) * 4}, "no sinks"),
        ({}, {"alibi_slopes": (0.5,) * 4}, "no ALiBi"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_name_and_ours_with_auto(kv, attention, said) -> None:
    kv, attention = replace(KV, **kv), replace(ATTENTION, **attention)
    named = with_varlen()
    assert any(said in reason and "attention=varlen" in reason for reason in named.unsupported(kv, attention))
    with pytest.raises(Unsupported, match="attention=varlen"):
        named.attention_kernel(attention, kv)
    auto = with_varlen("auto")
    assert auto.unsupported(kv, attention) == []
    chosen = auto.attention_engine(attention, kv)
    assert chosen.name == "triton"
    assert [name for name, _ in chosen.against] == ["varlen"]
    assert said in chosen.against[0][1]


@pytest.mark.parametrize(("size", "block_size", "said"), [(80, 16, "head size 80"), (64, 8, "block size 8")])
def test_flashinfer_has_sizes_of_its_own(size, block_size, said) -> None:
    kv = replace(KV, head_size=size, head_size_v=size, block_size=block_size)
    reasons = with_flashinfer(FakeFlashInfer()).unsupported(kv, replace(ATTENTION, head_size=size))
    assert len(reasons) == 1
    assert said in reasons[0]


def test_nothing_is_chosen_unless_it_was_asked_for(caplog) -> None:
    caplog.set_level(logging.INFO, "baseboard_cuda")
    assert with_varlen("triton").attention_engine(ATTENTION, KV).name == "triton"
    with_varlen("triton").attention_kernel(ATTENTION, KV)
    assert not caplog.records
    for wanted in ("varlen", "auto"):
        assert with_varlen(wanted).attention_engine(ATTENTION, KV).name == "varlen"
    with_varlen("auto").attention_kernel(ATTENTION, KV)
    assert "computed by varlen" in caplog.text
    with_varlen("auto").attention_kernel(replace(ATTENTION, softcap=9.0), KV)
    assert "computed by triton; not varlen: it has no softcap" in caplog.text


def test_varlen_prefers_the_blocks_it_can_read(backend) -> None:
    assert with_varlen().capabilities().block_sizes[0] == 256
    assert backend.capabilities().block_sizes[0] == 16
    assert set(with_varlen().capabilities().block_sizes) == set(backend.capabilities().block_sizes)


def test_an_engine_that_is_not_here_cannot_be_named(interpreter) -> None:
    for name in ("flashinfer", "varlen"):
        with pytest.raises(BackendUnavailable, match=f"attention={name} is not possible: it runs on a GPU only"):
            baseboard_cuda.open_backend(interpreter, {"attention": name})
    auto = baseboard_cuda.open_backend(interpreter, {"attention": "auto"})
    assert [name for name, _ in auto.attention_engine(ATTENTION, KV).against] == ["flashinfer", "varlen"]


def test_why_flashinfer_is_missing(monkeypatch) -> None:
    found = set()
    monkeypatch.setattr(flashinfer_engine, "find_spec", lambda name: name if name in found else None)
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    reasons = []
    for name in ("none", "flashinfer", "flashinfer_cubin"):
        found.add(name)
        monkeypatch.setattr(flashinfer_engine, "import_module", _broken)
        missing = find_flashinfer(CPU)
        assert isinstance(missing, Missing)
        reasons.append(missing.reason)
    assert "not installed" in reasons[0]
    assert "neither nvcc nor flashinfer_jit_cache nor flashinfer_cubin" in reasons[1]
    assert "cannot be imported: needs CUDA 12" in reasons[2]
    monkeypatch.setattr(flashinfer_engine, "import_module", lambda name: FakeFlashInfer())
    assert isinstance(find_flashinfer(CPU), FlashInfer)


def _broken(name: str):
    raise RuntimeError("needs CUDA 12")


def test_why_varlen_is_missing(monkeypatch) -> None:
    missing = find_varlen(75)
    assert isinstance(missing, Missing)
    assert "needs compute capability 8.0, not 7.5" in missing.reason
    import torch.nn.attention.varlen as real

    monkeypatch.setattr(real, "varlen_attn", lambda query, key, value: None)
    missing = find_varlen(90)
    assert isinstance(missing, Missing)
    assert "takes no block table" in missing.reason
