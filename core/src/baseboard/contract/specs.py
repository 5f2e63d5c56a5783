"""What a model asks of a backend, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from baseboard.contract.device import DType, KVDType


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Attention of one layer: constant from load to close.

    For a query at absolute position ``p`` and keys at ``j``::

        visible(j)  =  p - sliding_window < j <= p          (bottom-right causal)
        x(j)        =  scale * <q, k_j>
        x(j)        =  softcap * tanh(x(j) / softcap)       where softcap is given
        x(j)       +=  alibi_slopes[h] * (j - p)            where slopes are given
        out         =  sum_j exp(x(j)) v_j  /  (sum_j exp(x(j)) + exp(sinks[h]))

    Query head ``h`` reads KV head ``h // (num_heads // num_kv_heads)``. A row that sees no key gives zeros.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sliding_window: int | None = None  #: number of visible keys, the query's own included
    softcap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None  #: one per query head
    sinks: tuple[float, ...] | None = None  #: one extra logit per query head, in the denominator only


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Keys and values of one group of layers that are stored alike."""

    num_layers: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    dtype: DType  #: of the model's keys and values
    block_size: int  #: tokens a block
    kv_dtype: KVDType = "auto"
    sliding_window: int | None = None
