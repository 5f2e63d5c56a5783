"""What nobody can run is refused, typed and before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from baseboard.contract import AttentionSpec, KVCacheSpec
from baseboard_conformance.bench import Bench, raising_only, require
from baseboard_conformance.case import Case, NotObservable, Profile
from baseboard_conformance.cases.simple import Promise, promised
from baseboard_conformance.claims import Need, declares_head_size
from baseboard_conformance.outcome import CheckFailedError
from baseboard_conformance.pools import plain_attention, plain_spec


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A pair that is wrong in one way."""

    kv: Mapping[str, Any]
    attention: Mapping[str, Any]

    def __call__(self, bench: Bench) -> None:
        kv, attention = replace(plain_spec(bench), **self.kv), replace(plain_attention(bench), **self.attention)
        require_refused(bench, kv, attention)


def require_refused(bench: Bench, kv: KVCacheSpec, attention: AttentionSpec) -> None:
    from baseboard.contract import Unsupported

    reasons = bench.hook.unsupported(kv=kv, attention=attention)
    is_list = type(reasons) is list and all(type(reason) is str and reason.strip() for reason in reasons)
    require(is_list, f"unsupported() gave {reasons!r}, right is a list of sentences")
    require(reasons, f"unsupported() has nothing against {kv} with {attention}")
    try:
        with raising_only(Unsupported, "attention_kernel"):
            bench.hook.attention_kernel(attention=attention, kv=kv)
    except Unsupported as error:
        require(error.reasons, "attention_kernel raised Unsupported without a reason")
        return
    raise CheckFailedError(f"unsupported() says {reasons}, yet attention_kernel made a kernel")


def _accepts_plain(bench: Bench) -> None:
    """The other half: what is declared is not refused."""
    plain, attention = plain_spec(bench), plain_attention(bench)
    for dtype in bench.can.dtypes:
        for size in bench.can.block_sizes:
            kv = replace(plain, dtype=dtype, block_size=size)
            reasons = bench.hook.unsupported(kv=kv, attention=attention)
            require(reasons == [], f"declared, yet refused: {kv} with {attention}: {reasons}")
    first = bench.hook.unsupported(kv=plain, attention=attention)
    require(first == bench.hook.unsupported(kv=plain, attention=attention), "unsupported() changes its mind")


def _head_size_beyond(bench: Bench) -> None:
    can = bench.can
    wrong = can.max_head_size + can.head_size_multiple
    size = {"head_size": wrong}
    require_refused(
        bench, replace(plain_spec(bench), head_size_v=wrong, **size), replace(plain_attention(bench), **size)
    )


def _head_size_between(bench: Bench) -> None:
    can = bench.can
    wrong = [size for size in range(1, can.max_head_size) if not declares_head_size(can, size)]
    if not wrong:
        raise NotObservable("every head size up to the largest is declared")
    for size in sorted({wrong[0], wrong[len(wrong) // 2], wrong[-1]}):
        kv = replace(plain_spec(bench), head_size=size, head_size_v=size)
        require_refused(bench, kv, replace(plain_attention(bench), head_size=size))


def _block_sizes(bench: Bench) -> None:
    wrong = [size for size in (3, 5, 7, 12, 48, 100, 1000) if Need(block_size=size).missing(bench.can)]
    if not wrong:
        raise NotObservable("every odd block size is declared")
    for size in wrong:
        require_refused(bench, replace(plain_spec(bench), block_size=size), plain_attention(bench))


def _ratio(bench: Bench) -> None:
    limit = bench.can.max_gqa_ratio
    if limit is None:
        raise NotObservable("no limit of query heads per KV head is declared")
    require_refused(bench, plain_spec(bench), replace(plain_attention(bench), num_heads=2 * (limit + 1)))


def _head_sizes_differ(bench: Bench) -> None:
    plain = plain_attention(bench)
    require_refused(bench, plain_spec(bench), replace(plain, head_size=plain.head_size + bench.can.head_size_multiple))


_PROMISES: Final = {
    "refusal/accepts_declared": Promise("none for a pair that is declared", _accepts_plain),
    "refusal/dtype": Promise("an unknown dtype", _Refusal({"dtype": "float8_e5m2"}, {})),
    "refusal/kv_dtype": Promise("an unknown KV dtype", _Refusal({"kv_dtype": "int3"}, {})),
    "refusal/block_size": Promise("a block size that is not declared", _block_sizes),
    "refusal/block_size_zero": Promise("a block size of nothing", _Refusal({"block_size": 0}, {})),
    "refusal/head_size_large": Promise("a head size above max_head_size", _head_size_beyond),
    "refusal/head_size_between": Promise("a head size that is not declared", _head_size_between),
    "refusal/gqa_ratio": Promise("more query heads per KV head than max_gqa_ratio", _ratio),
    "refusal/uneven_heads": Promise("query heads that KV heads cannot share evenly", _Refusal({}, {"num_heads": 3})),
    "refusal/no_kv_heads": Promise(
        "no KV heads at all", _Refusal({"num_kv_heads": 0}, {"num_kv_heads": 0, "num_heads": 4})
    ),
    "refusal/kv_heads_differ": Promise("KV heads of layer and cache differ", _Refusal({"num_kv_heads": 4}, {})),
    "refusal/head_sizes_differ": Promise("head sizes of layer and cache differ", _head_sizes_differ),
}


def cases() -> Iterator[Case]:
    for case in promised("the contract's text", _PROMISES):
        yield replace(case, clause=f"unsupported() must name an obstacle: {case.clause}", profile=Profile.SMOKE)
