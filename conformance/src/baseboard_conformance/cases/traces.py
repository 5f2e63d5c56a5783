"""Traces: a tiny transformer, run by the real engine on the backend, says the same whatever happens around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from baseboard.contract import DType, SamplingParams
from baseboard_conformance.bench import Bench, require
from baseboard_conformance.case import Case, Profile
from baseboard_conformance.cases.attention import DTYPES
from baseboard_conformance.claims import Need, preferred_head_size, preferred_ratio

if TYPE_CHECKING:
    from baseboard.engine.results import RequestOutput
    from baseboard.llm import LLM

_NEW: Final = 12
_VOCABULARY: Final = 96
#: Two tokens whose log-probabilities are this close may change places when sums are made in another order.
_NEAR: Final[Mapping[DType, float]] = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}


@dataclass(frozen=True, slots=True)
class _Said:
    """What came of one prompt: tokens, and at each how far ahead of the second best the first was."""

    tokens: tuple[int, ...]
    leads: tuple[float, ...]


def _plain_model(bench: Bench, dtype: DType) -> Any:
    """Two layers of random weights, wide enough that the most likely token stands out."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from baseboard.kit.dtypes import torch_dtype

    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2 * preferred_ratio(bench.can),
        num_key_value_heads=2,
        head_dim=preferred_head_size(bench.can),
        max_position_embeddings=4 * _longest(bench),
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model: Any = LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
    model.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(bench.seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.25 * noise if parameter.ndim > 1 else 1 + 0.1 * noise)
    return model.to(dtype=torch_dtype(dtype), device=bench.hook.torch_device())


def _model(bench: Bench, dtype: DType) -> Any:
    from baseboard.runtime.loader import wrap_model

    return wrap_model(_plain_model(bench, dtype), self_check="skip")


def _longest(bench: Bench) -> int:
    return 8 * bench.can.block_sizes[0] + 64


def _engine(bench: Bench, dtype: DType, **settings: Any) -> LLM:
    from baseboard.llm import LLM

    seqs = 8 if bench.can.max_seqs is None else min(8, bench.can.max_seqs)
    usual: dict[str, Any] = {
        "num_kv_blocks": 64,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": 256,
        "max_model_len": 3 * bench.can.block_sizes[0] + 64,
        "enable_prefix_caching": False,
    }
    return LLM(_model(bench, dtype), backend=bench.name, dtype=dtype, **(usual | settings))


def _prompts(bench: Bench) -> list[list[int]]:
    size = bench.can.block_sizes[0]
    lengths = (3, size - 1 or 1, size, size + 1, 2 * size + 5)
    rng = bench.rng
    return [rng.integers(3, _VOCABULARY, length).tolist() for length in lengths]


def _say(llm: LLM, prompts: Sequence[Sequence[int]], **wishes: Any) -> list[_Said]:
    wish = SamplingParams(temperature=0, max_tokens=_NEW, ignore_eos=True, logprobs=2, **wishes)
    outputs = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], wish)
    return [_said(output, sample) for output in outputs for sample in range(len(output.outputs))]


def _said(output: RequestOutput, sample: int) -> _Said:
    made = output.outputs[sample]
    require(made.error is None, f"the engine ended a request with an error: {made.error}")
    leads: list[float] = []
    for at in made.logprobs or ():
        best = sorted((candidate.logprob for candidate in at.values()), reverse=True)
        leads.append(best[0] - best[1] if len(best) > 1 else float("inf"))
    return _Said(tuple(made.token_ids), tuple(leads))


def _alone(bench: Bench, dtype: DType) -> list[_Said]:
    """Each prompt on its own, in one chunk: what all else is held against."""
    with _engine(bench, dtype) as llm:
        return [_say(llm, [prompt])[0] for prompt in _prompts(bench)]


def _same(dtype: DType, got: Sequence[_Said], right: Sequence[_Said], event: str) -> None:
    for number, (new, old) in enumerate(zip(got, right, strict=True)):
        require(len(new.tokens) == len(old.tokens), f"{event}: prompt {number} gave {len(new.tokens)} tokens")
        differ = [i for i, pair in enumerate(zip(new.tokens, old.tokens, strict=True)) if pair[0] != pair[1]]
        # Where two tokens were as good as equally likely, everything after the first difference is another story.
        if differ and old.leads[differ[0]] > _NEAR[dtype]:
            at = differ[0]
            require(
                condition=False,
                message=f"{event}: prompt {number} says {new.tokens[at]} at output {at}, "
                f"alone it says {old.tokens[at]} (ahead by {old.leads[at]:.3g}); "
                f"{list(new.tokens)} against {list(old.tokens)}",
            )


def _against_transformers(dtype: DType, bench: Bench) -> None:
    """The engine's tokens are those of a forward pass without cache, written out here."""
    import torch

    alone = _alone(bench, dtype)
    plain = _reference_logits(bench, dtype)
    for prompt, said in zip(_prompts(bench), alone, strict=True):
        tokens = list(prompt)
        for at, token in enumerate(said.tokens):
            logits = plain(torch.tensor([tokens], device=bench.hook.torch_device()))
            best = logits.log_softmax(-1)
            lead = float(best.max() - best[token])
            require(
                lead <= 2 * _NEAR[dtype],
                f"output {at} of a prompt of {len(prompt)} tokens is {token}; without cache and kernels it is "
                f"{int(best.argmax())}, ahead by {lead:.3g}",
            )
            tokens.append(token)


def _reference_logits(bench: Bench, dtype: DType) -> Any:
    """The same weights through transformers' eager attention in float32."""
    import torch

    plain = _plain_model(bench, dtype).float()

    def logits(ids: Any) -> Any:
        with torch.inference_mode():
            return plain(input_ids=ids, use_cache=False).logits[0, -1].float()

    return logits


def _batch_order(dtype: DType, bench: Bench) -> None:
    right = _alone(bench, dtype)
    with _engine(bench, dtype) as llm:
        _same(dtype, _say(llm, _prompts(bench)), right, "all prompts in one batch")
        _same(dtype, _say(llm, _prompts(bench)[::-1])[::-1], right, "all prompts in one batch, backwards")


def _chunk_size(dtype: DType, bench: Bench) -> None:
    right = _alone(bench, dtype)
    for tokens in (8, 11):
        with _engine(bench, dtype, max_num_batched_tokens=tokens) as llm:
            _same(dtype, _say(llm, _prompts(bench)), right, f"chunks of at most {tokens} tokens")


def _prefix_hit(dtype: DType, bench: Bench) -> None:
    right = _alone(bench, dtype)
    with _engine(bench, dtype, enable_prefix_caching=True) as llm:
        _same(dtype, _say(llm, _prompts(bench)), right, "a cold prefix cache")
        _same(dtype, _say(llm, _prompts(bench)), right, "a warm prefix cache")
        require(llm.stats()["prefix_hits"] > 0, "the second round hit nothing: this case tests nothing")


def _preempted(mode: str, dtype: DType, bench: Bench) -> None:
    """A pool so small that requests throw each other out."""
    right = _alone(bench, dtype)
    size = bench.can.block_sizes[0]
    longest = 2 * size + 5 + _NEW
    blocks = -(-longest // size) + 2
    room = {"num_host_blocks": 32} if mode == "swap" else {}
    with _engine(bench, dtype, num_kv_blocks=blocks, preemption=mode, max_model_len=blocks * size, **room) as llm:
        prompts = _prompts(bench)
        _same(dtype, _say(llm, prompts), right, f"preemption by {mode}")
        stats = llm.stats()
    require(stats["num_preemptions"] > 0, "nobody was preempted: this case tests nothing")
    if mode == "swap":
        require(stats["num_swaps_out"] > 0, "nothing was swapped: this case tests nothing")


def _fork(dtype: DType, bench: Bench) -> None:
    """Three samples share a prompt's blocks; greedy, they say the same as one alone."""
    right = _alone(bench, dtype)
    with _engine(bench, dtype) as llm:
        got = _say(llm, _prompts(bench), n=3)
    _same(dtype, got, [said for said in right for _ in range(3)], "three samples of a prompt")


_TRACES: Final = {
    "against_transformers": (
        "the engine on this backend says what the model says without cache",
        _against_transformers,
    ),
    "batch_order": ("tokens do not depend on who shares the batch", _batch_order),
    "chunk_size": ("tokens do not depend on how a prompt is cut into chunks", _chunk_size),
    "prefix_hit": ("tokens do not depend on what the prefix cache had", _prefix_hit),
    "recompute": ("tokens do not change by preemption and recomputation", partial(_preempted, "recompute")),
    "swap": ("tokens do not change by preemption and swap", partial(_preempted, "swap")),
    "fork": ("samples that share blocks do not disturb each other", _fork),
}


@dataclass(frozen=True, slots=True)
class _Trace:
    check: Any
    dtype: DType

    def __call__(self, bench: Bench) -> Mapping[str, float]:
        self.check(self.dtype, bench)
        return {}


def cases() -> Iterator[Case]:
    for name, (clause, check) in _TRACES.items():
        for dtype in DTYPES:
            yield Case(
                id=f"trace/{name}/{dtype}",
                title=clause,
                clause=clause,
                oracle="the same prompts alone in one chunk"
                if name != "against_transformers"
                else "transformers, float32",
                body=_Trace(check, dtype),
                profile=Profile.CORE if dtype != "float32" or name != "batch_order" else Profile.SMOKE,
                need=Need(dtype=dtype, features=frozenset({"mixed_batch"})),
                params={"dtype": dtype, "trace": name},
                tolerance="tokens equal, unless the two best were as good as equally likely",
                alone=False,
                timeout=180.0,
            )
