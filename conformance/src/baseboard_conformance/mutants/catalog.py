"""All mutants and variants: name, where its class is, and which case must kill it. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from baseboard_conformance.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Mutant:
    """A wrong backend."""

    name: str
    place: str  #: ``module:Class`` in this package
    killer: str  #: the case that must find it out
    outcome: Outcome = Outcome.FAIL  #: how
    shim: str = "plain"  #: which text the plugin's module has

    @property
    def backend(self) -> str:
        return self.name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Variant:
    """A right backend."""

    name: str
    place: str

    @property
    def backend(self) -> str:
        return self.name.replace("_", "-")


_PLAIN: Final = "attention.plain/{}/float32/preferred"

_MASKS: Final = {
    "causal_misses_own": ("CausalMissesOwn", _PLAIN.format("chunked")),
    "causal_sees_next": ("CausalSeesNext", _PLAIN.format("prefill")),
    "causal_top_left": ("CausalTopLeft", _PLAIN.format("chunked")),
    "no_causal_mask": ("NoCausalMask", _PLAIN.format("prefill")),
    "chunk_forgets_history": ("ChunkForgetsHistory", _PLAIN.format("chunked")),
    "first_token_dropped": ("FirstTokenDropped", _PLAIN.format("decode")),
    "last_token_dropped": ("LastTokenDropped", "layout/long_decode/bfloat16"),
    "first_block_dropped": ("FirstBlockDropped", "layout/long_decode/float16"),
    "partial_block_dropped": ("PartialBlockDropped", _PLAIN.format("decode")),
    "interleaved_heads": ("InterleavedHeads", "gqa/decode/float32/r3"),
    "many_heads_share_first": ("ManyHeadsShareFirst", "gqa/decode/float32/r9"),
    "window_one_more": ("WindowOneMore", "window/decode/bfloat16/w16"),
    "window_one_less": ("WindowOneLess", "window/chunked/bfloat16/w17"),
    "window_not_in_decode": ("WindowNotInDecode", "attention.window/decode/float32/preferred"),
    "window_not_in_prefill": ("WindowNotInPrefill", "attention.window/prefill/float32/preferred"),
    "stale_block": ("StaleBlock", "layout/shared_prefix/float32"),
    "sorted_blocks": ("SortedBlocks", _PLAIN.format("decode")),
    "block_48": ("Block48", "block_size/decode/float32/b48"),
    "single_token_chunk_is_padding": ("SingleTokenChunkIsPadding", "layout/single_token_chunk/float32"),
}
_NUMBERS: Final = {
    "scale_two_percent": ("ScaleTwoPercent", "attention.plain/decode/bfloat16/preferred"),
    "scale_from_head_size": ("ScaleFromHeadSize", "scale/chunked/float32"),
    "softcap_after_mask": ("SoftcapAfterMask", "attention.softcap/chunked/float32/preferred"),
    "softcap_before_scale": ("SoftcapBeforeScale", "attention.softcap/decode/float32/preferred"),
    "softcap_ignored": ("SoftcapIgnored", "attention.softcap/decode/float16/preferred"),
    "alibi_sign": ("AlibiSign", "attention.alibi/decode/float32/preferred"),
    "alibi_own_slopes": ("AlibiOwnSlopes", "alibi/decode/float32/r3"),
    "sink_in_numerator": ("SinkInNumerator", "attention.sinks/decode/float32/preferred"),
    "sinks_ignored": ("SinksIgnored", "attention.window_sinks/decode/float32/preferred"),
    "coarse_sums": ("CoarseSums", "layout/long_decode/bfloat16"),
    "no_maximum": ("NoMaximum", "extreme/decode/float32"),
    "zero_times_nan": ("ZeroTimesNaN", "poison.nan/decode/float32"),
    "additive_mask": ("AdditiveMask", "poison.inf/decode/float32"),
    "weak_mask": ("WeakMask", "poison.huge/decode/float32"),
    "truncated_values": ("TruncatedValues", "value_head_size/chunked/float32/v128"),
}
_BUFFERS: Final = {
    "padding_to_block_one": ("PaddingToBlockOne", "kv_write.only_owned/padded/float32"),
    "wipes_block": ("WipesBlock", "kv_write.pieces/chunked/float32"),
    "writes_one_more": ("WritesOneMore", _PLAIN.format("decode")),
    "leaves_rows": ("LeavesRows", _PLAIN.format("chunked")),
    "scales_query": ("ScalesQuery", _PLAIN.format("decode")),
    "ignores_strides": ("IgnoresStrides", "inputs.strided/chunked/float32"),
    "changes_batch": ("ChangesBatch", _PLAIN.format("decode")),
    "late_metadata": ("LateMetadata", "metadata.double_buffer/decode/float32"),
    "one_metadata": ("OneMetadata", "metadata.double_buffer/chunked/float32"),
    "one_layer": ("OneLayer", "kv_write.layers/chunked/float32"),
    "half_supports_softcap": ("HalfSupportsSoftcap", "attention.softcap/decode/float32/preferred"),
    "kernel_for_everything": ("KernelForEverything", "refusal/uneven_heads"),
    "any_block_size": ("AnyBlockSize", "refusal/block_size"),
    "refuses_declared": ("RefusesDeclared", "refusal/accepts_declared"),
}
_BLOCKS: Final = {
    "copy_first_layer": ("CopyFirstLayer", "copy/all_layers"),
    "copy_keys_only": ("CopyKeysOnly", "copy/all_layers"),
    "copy_backwards": ("CopyBackwards", "copy/all_layers"),
    "copy_late": ("CopyLate", "copy/in_order"),
    "copy_chains": ("CopyChains", "copy/illegal"),
    "copy_checks_late": ("CopyChecksLate", "copy/illegal"),
    "copy_few": ("CopyFew", "copy/many"),
    "swap_first_layer": ("SwapFirstLayer", "swap/round_trip"),
    "swap_negative": ("SwapNegative", "swap/illegal"),
    "swap_bytes_of_one_layer": ("SwapBytesOfOneLayer", "swap/nbytes"),
    "never_done": ("NeverDone", "swap/nothing"),
    "swap_not_waited": ("SwapNotWaited", "swap/source_reuse"),
    "swap_last_first": ("SwapLastFirst", "swap/fifo"),
    "stream_does_not_wait": ("StreamDoesNotWait", "swap/wait_on_stream"),
    "zero_keys_only": ("ZeroKeysOnly", "zero/all_layers"),
    "zero_negative": ("ZeroNegative", "zero/illegal"),
}
_MANNERS: Final = {
    "forgets_layers": ("ForgetsLayers", "allocation/block_nbytes"),
    "not_zeroed": ("NotZeroed", "allocation/device"),
    "one_block_short": ("OneBlockShort", "memory/last_block"),
    "untyped_shortage": ("UntypedShortage", "allocation/out_of_memory"),
    "promises_memory": ("PromisesMemory", "allocation/out_of_memory"),
    "shared_buffer": ("SharedBuffer", "allocation/buffers_apart"),
    "over_reports": ("OverReports", "memory/follows"),
    "constant_memory": ("ConstantMemory", "memory/follows"),
    "peak_forgets": ("PeakForgets", "memory/peak"),
    "free_above_total": ("FreeAboveTotal", "memory/sane"),
    "swallows_options": ("SwallowsOptions", "rules/unknown_option"),
    "closes_all": ("ClosesAll", "rules/close_twice"),
    "moving_capabilities": ("MovingCapabilities", "rules/capabilities"),
    "changes_core": ("ChangesCore", "rules/core_unchanged"),
}
_OPERATORS: Final = {
    "eps_ignored": ("EpsIgnored", "operator.rms_norm/float32"),
    "residual_in_place": ("ResidualInPlace", "operator.add_rms_norm/float32"),
    "gate_behind": ("GateBehind", "operator.silu_and_mul/bfloat16"),
    "always_halves": ("AlwaysHalves", "operator.rotary_embedding/interleaved/float16"),
    "turns_back": ("TurnsBack", "operator.rotary_embedding/halves/float32"),
}
_GRAPHS: Final = {
    "replays_old_lengths": ("ReplaysOldLengths", "graph.replays/plain/float32"),
    "replays_old_slots": ("ReplaysOldSlots", "graph.replays/plain/float16"),
    "replays_old_tables": ("ReplaysOldTables", "graph.moved/plain/float32"),
    "replays_padding_to_block_one": ("ReplaysPaddingToBlockOne", "graph.padding/plain/float32"),
    "replays_first_group": ("ReplaysFirstGroup", "graph.replays/window/float32"),
    "untyped_capture": ("UntypedCapture", "graph.refused/plain/float32"),
}
_OTHERS: Final = (
    Mutant("crashes", "wrong_manners:Crashes", "swap/nothing", Outcome.CRASH),
    Mutant("hangs", "wrong_manners:Hangs", "zero/nothing", Outcome.TIMEOUT),
    Mutant("exits", "wrong_manners:Exits", "copy/nothing", Outcome.CRASH),
    Mutant("heavy_import", "right:Plain", "rules/light_import", shim="heavy"),
    Mutant("private_import", "right:Plain", "rules/private_imports", shim="private"),
    Mutant("fragile_probe", "right:Plain", "rules/probe_crippled", shim="fragile"),
)


def _group(module: str, entries: Mapping[str, tuple[str, str]]) -> tuple[Mutant, ...]:
    return tuple(Mutant(name, f"{module}:{place}", killer) for name, (place, killer) in entries.items())


MUTANTS: Final[tuple[Mutant, ...]] = (
    *_group("wrong_masks", _MASKS),
    *_group("wrong_numbers", _NUMBERS),
    *_group("wrong_buffers", _BUFFERS),
    *_group("wrong_blocks", _BLOCKS),
    *_group("wrong_manners", _MANNERS),
    *_group("operators", _OPERATORS),
    *_group("wrong_graphs", _GRAPHS),
    *_OTHERS,
)
VARIANTS: Final[tuple[Variant, ...]] = (
    Variant("plain", "right:Plain"),
    Variant("split_keys", "right:SplitKeys"),
    Variant("key_columns", "right:KeyColumns"),
    Variant("one_plane", "right:OnePlane"),
    Variant("asynchronous_swaps", "right:AsynchronousSwaps"),
    Variant("operators", "operators:Operators"),
    Variant("recording", "recording:Recording"),
    Variant("noisy", "right:Noisy"),
)
