"""What the operators allow, and where each limit was read. ``docs/ascend.md`` has the same table for people.

Sources: ``docstring`` is ``_op_plugin_docs.py`` of the torch_npu 2.13.0 wheel, ``op-plugin`` are the newer pages of
the op-plugin repository (``docs/zh/custom_APIs/torch_npu``), ``atb`` is ``op_plugin/atb/_atb_api_docs.py`` in the
wheel.
"""

from __future__ import annotations

from typing import Final

#: op-plugin, npu_fused_infer_attention_score and npu_scatter_pa_kv_cache: products that have the operators.
SUPPORTED_FAMILIES: Final = ("Atlas A2", "Atlas A3")

#: op-plugin, npu_fused_infer_attention_score, TND: entries of ``actual_seq_lengths``.
MAX_SEQUENCES: Final = 4096
#: op-plugin, npu_fused_infer_attention_score, TND with paging: ``block_size``.
BLOCK_MULTIPLE: Final = 16
MAX_BLOCK: Final = 1024
#: docstring, "128 is recommended"; the only size that vllm-ascend runs.
PREFERRED_BLOCK: Final = 128
#: docstring, npu_fused_infer_attention_score: head numbers, and query heads per KV head.
MAX_HEADS: Final = 256
MAX_GQA_RATIO: Final = 64
#: op-plugin, npu_fused_infer_attention_score, TND without rope: sizes of heads that are not shared, and of any.
UNSHARED_HEAD_SIZES: Final = (64, 128)
SHARED_HEAD_SIZES: Final = (128,)
#: docstring, page attention: heads times head size of a cache in the layout (blocks, block size, heads * head size).
MAX_ROW: Final = 65_535
#: docstring, page attention with one query: elements of one layer's keys or values.
MAX_ELEMENTS: Final = 2**31 - 1
#: docstring, sparse modes 2, 3 and 4: both sides of the compressed mask.
MASK_SIDE: Final = 2048
#: op-plugin, npu_fused_infer_attention_score_v2, learnable_sink: its dtype, and the largest value head.
SINK_DTYPE: Final = "bfloat16"
MAX_SINK_HEAD: Final = 128

#: atb, _npu_paged_attention_v2 (the same kernel): head sizes of keys and values, and the block size.
MAX_PAGED_HEAD: Final = 256
MAX_PAGED_BLOCK: Final = 128

#: docstring, npu_fused_infer_attention_score with 16-bit types: alignment of the head size. Ours for every path.
HEAD_MULTIPLE: Final = 16
#: docstring, npu_fused_infer_attention_score: the largest head size of any layout. Ours for the gathering path.
MAX_HEAD: Final = 512

#: Descriptors in one aclrtMemcpyBatchAsync: the CANN documents name no limit; Mooncake's transfer engine keeps to this.
MAX_BATCHED_COPIES: Final = 4096
