"""What attention computes: features x layouts x dtypes x head sizes, and one axis at a time for all other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_args

from baseboard.contract import DType
from baseboard_conformance.bench import Bench
from baseboard_conformance.case import Case, NotObservable, Profile
from baseboard_conformance.claims import Need, declares_head_size
from baseboard_conformance.judging import BOTH, Trial, check_attention
from baseboard_conformance.scenario import Scenario
from baseboard_conformance.verdict import POLICY

DTYPES: Final[tuple[DType, ...]] = get_args(DType)
_ORACLE: Final = "NumPy float64, from the formula in AttentionSpec; blocks in random order"

#: Options of a layer, alone and together.
FEATURES: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {},
    "window": {"window": 7},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": "geometric"},
    "sinks": {"sinks": True},
    "window_softcap": {"window": 19, "softcap": 3.0},
    "window_sinks": {"window": 5, "sinks": True},
    "alibi_softcap": {"alibi": "distinct", "softcap": 4.0},
}
_CLAUSES: Final[Mapping[str, str]] = {
    "plain": "out = sum_j exp(scale <q, k_j>) v_j / sum_j exp(scale <q, k_j>) over the keys j <= p",
    "window": "a query at position p sees the keys p - sliding_window < j <= p",
    "softcap": "softcap * tanh(x / softcap) on the scaled logits, before the mask",
    "alibi": "alibi_slopes[h] * (j - p) is added to the logits",
    "sinks": "exp(sinks[h]) is added to the denominator only",
    "window_softcap": "window and softcap together",
    "window_sinks": "window and sinks together: a sink is never out of the window",
    "alibi_softcap": "the softcap comes before ALiBi's bias",
}
_LAYOUTS: Final = ("decode", "prefill", "chunked", "mixed")
_SIZES: Final = (32, 64, 80, 96, 112, 120, 128, 192, 256)


def cases() -> Iterator[Case]:
    yield from _grid()
    yield from _axes()
    yield from _inputs()
    yield from _declared()


def _grid() -> Iterator[Case]:
    for feature, options in FEATURES.items():
        for layout in _LAYOUTS:
            for dtype in DTYPES:
                for size in (None, *_SIZES):
                    scenario = Scenario(dtype, layout, head_size=size, **options)
                    name = f"{feature}/{layout}/{dtype}/{'preferred' if size is None else f'd{size}'}"
                    trial = Trial(scenario, (*BOTH, "onehot") if scenario.window else BOTH)
                    yield numeric(f"attention.{name}", _CLAUSES[feature], trial, _grid_profile(feature, layout, size))


def _grid_profile(feature: str, layout: str, size: int | None) -> Profile:
    if size is None:
        in_smoke = feature in {"plain", "window"} or layout in {"decode", "chunked"}
        return Profile.SMOKE if in_smoke else Profile.CORE
    return Profile.CORE if size in {64, 128} and feature in {"plain", "window", "softcap", "sinks"} else Profile.FULL


def _axes() -> Iterator[Case]:
    for dtype in DTYPES:
        for ratio in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32):
            profile = Profile.SMOKE if ratio in {1, 3, 8} else Profile.CORE
            clause = "query head h reads KV head h // (num_heads // num_kv_heads)"
            for layout in ("decode", "chunked"):
                yield numeric(
                    f"gqa/{layout}/{dtype}/r{ratio}", clause, Trial(Scenario(dtype, layout, ratio=ratio)), profile
                )
        for size in (1, 8, 16, 32, 48, 64, 128, 256):
            profile = Profile.SMOKE if size in {16, 48} else Profile.CORE
            clause = "the result does not depend on the block size; one that is not declared is refused"
            for layout in ("decode", "chunked"):
                trial = Trial(Scenario(dtype, layout, block_size=size))
                yield numeric(f"block_size/{layout}/{dtype}/b{size}", clause, trial, profile)
        for window in (1, 2, 15, 16, 17, 64, 1000):
            clause = _CLAUSES["window"]
            for layout in ("decode", "chunked"):
                trial = Trial(Scenario(dtype, layout, window=window), (*BOTH, "onehot"))
                yield numeric(f"window/{layout}/{dtype}/w{window}", clause, trial, Profile.CORE)
        for heads in (1, 3, 8):
            trial = Trial(Scenario(dtype, "chunked", num_kv_heads=heads))
            yield numeric(f"kv_heads/chunked/{dtype}/h{heads}", "any number of KV heads", trial, Profile.CORE)
        yield from _layouts(dtype)


def _layouts(dtype: DType) -> Iterator[Case]:
    shapes: dict[str, tuple[str, Profile]] = {
        "shared_prefix": ("several sequences may read the same blocks", Profile.SMOKE),
        "padded": ("rows of the null block may pad a batch; they disturb nobody", Profile.SMOKE),
        "single_token_chunk": ("the last chunk of a prefill may have one token", Profile.SMOKE),
        "long_decode": ("sums over thousands of keys are as exact as those over few", Profile.SMOKE),
        "long_chunk": ("a chunk far into a long sequence", Profile.CORE),
        "many": ("many sequences in one step", Profile.CORE),
    }
    for layout, (clause, profile) in shapes.items():
        yield numeric(f"layout/{layout}/{dtype}", clause, Trial(Scenario(dtype, layout)), profile)
    wide = Trial(Scenario(dtype, "long_decode", window=1025), ("gauss", "needle"))
    yield numeric(f"layout/long_window/{dtype}", "a window that is far shorter than the sequence", wide, Profile.CORE)


def _inputs() -> Iterator[Case]:
    for dtype in DTYPES:
        for layout in ("decode", "chunked"):
            trial = Trial(Scenario(dtype, layout), ("extreme",))
            yield numeric(f"extreme/{layout}/{dtype}", "logits beyond what exp takes in float32", trial, Profile.SMOKE)
        odd = Trial(Scenario(dtype, "chunked", scale=0.29))
        yield numeric(f"scale/chunked/{dtype}", "the scale is the spec's, not one over a root", odd, Profile.SMOKE)
        flat = Trial(Scenario(dtype, "decode", alibi="distinct", ratio=3))
        clause = "slopes are per query head, in any order, for a number of heads that is no power of two"
        yield numeric(f"alibi/decode/{dtype}/r3", clause, flat, Profile.CORE)
        for layout in ("chunked", "prefill"):
            both = Trial(Scenario(dtype, layout, causal=False))
            clause = "with causal=False a query sees every key of its sequence"
            yield numeric(f"non_causal/{layout}/{dtype}", clause, both, Profile.CORE)
        for value_size in (16, 128):
            trial = Trial(Scenario(dtype, "chunked", head_size_v=value_size))
            clause = "values may have a head size of their own"
            yield numeric(f"value_head_size/chunked/{dtype}/v{value_size}", clause, trial, Profile.CORE)


def numeric(name: str, clause: str, trial: Trial, profile: Profile) -> Case:
    """A case that compares attention with the oracle."""
    scenario = trial.scenario
    return Case(
        id=name,
        title=f"attention, {scenario.layout}, {scenario.dtype}",
        clause=clause,
        oracle=_ORACLE,
        body=partial(check_attention, trial),
        profile=profile,
        need=scenario.need,
        params=scenario.as_dict() | {"families": list(trial.families), "content": str(trial.content)},
        probe=scenario,
        tolerance=POLICY,
    )


# --- sizes that only the backend can name -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sweep:
    """All declared sizes of one kind."""

    scenario: Scenario

    def block_sizes(self, bench: Bench) -> dict[str, float]:
        return self._worst(bench, [replace(self.scenario, block_size=size) for size in bench.can.block_sizes])

    def head_sizes(self, bench: Bench) -> dict[str, float]:
        can = bench.can
        step = can.head_size_multiple
        sizes = can.head_sizes or {step, 3 * step, 5 * step, can.max_head_size // step * step}
        fresh = sorted(size for size in sizes if size not in _SIZES and declares_head_size(can, size))
        if not fresh:
            raise NotObservable(f"no head size is declared beside the standard ones, {_SIZES}")
        return self._worst(bench, [replace(self.scenario, head_size=size) for size in fresh])

    def _worst(self, bench: Bench, scenarios: list[Scenario]) -> dict[str, float]:
        found = [check_attention(Trial(scenario), bench) for scenario in scenarios]
        return max(found, key=lambda measures: max(measures["ratio"], measures["row_ratio"]))


def _declared() -> Iterator[Case]:
    for dtype in DTYPES:
        for layout in ("decode", "chunked"):
            scenario = Scenario(dtype, layout)
            sweep = _Sweep(scenario)
            for name, body in (("block_sizes", sweep.block_sizes), ("head_sizes", sweep.head_sizes)):
                yield Case(
                    id=f"declared.{name}/{layout}/{dtype}",
                    title=f"every declared {name.replace('_', ' ')[:-1]} works",
                    clause=f"what Capabilities.{name} declares works",
                    oracle=_ORACLE,
                    body=body,
                    profile=Profile.CORE,
                    need=Need(dtype=dtype, features=scenario.need.features),
                    params=scenario.as_dict(),
                    probe=scenario,
                    tolerance=POLICY,
                )
