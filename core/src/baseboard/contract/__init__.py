"""All that a plugin may import of the core, beside :mod:`baseboard.kit`. No torch at run time."""

from baseboard.contract.batch import StepBatch
from baseboard.contract.cache import AttentionKernel, KVCache, OperatorKernel, Transfer
from baseboard.contract.device import Capabilities, DeviceInfo, DType, Feature, KVDType, MemorySnapshot
from baseboard.contract.errors import (
    BackendFault,
    BackendUnavailable,
    BaseboardError,
    ContractError,
    MemoryShortage,
    ModelLoadError,
    RequestRejected,
    Unsupported,
)
from baseboard.contract.graph import Graph, GraphRunner, LayerKind
from baseboard.contract.hookspecs import (
    BACKENDS_GROUP,
    INSTRUMENTS_GROUP,
    PROJECT,
    BackendHooks,
    DiscoveryHooks,
    hookimpl,
    hookspec,
)
from baseboard.contract.media import ContentId, EncoderInput, MediaSpan
from baseboard.contract.plan import (
    BlockPair,
    Executor,
    KVOp,
    KVOpKind,
    Load,
    PendingStep,
    RankedToken,
    RowLogprobs,
    RowState,
    StepPlan,
    StepResult,
    TableUpdate,
    TokenLogprobs,
)
from baseboard.contract.sampling import MAX_LOGPROBS, SamplingParams
from baseboard.contract.specs import AttentionSpec, KVCacheSpec
from baseboard.contract.version import API_VERSION

__all__ = [
    "API_VERSION",
    "BACKENDS_GROUP",
    "INSTRUMENTS_GROUP",
    "MAX_LOGPROBS",
    "PROJECT",
    "AttentionKernel",
    "AttentionSpec",
    "BackendFault",
    "BackendHooks",
    "BackendUnavailable",
    "BaseboardError",
    "BlockPair",
    "Capabilities",
    "ContentId",
    "ContractError",
    "DType",
    "DeviceInfo",
    "DiscoveryHooks",
    "EncoderInput",
    "Executor",
    "Feature",
    "Graph",
    "GraphRunner",
    "KVCache",
    "KVCacheSpec",
    "KVDType",
    "KVOp",
    "KVOpKind",
    "LayerKind",
    "Load",
    "MediaSpan",
    "MemoryShortage",
    "MemorySnapshot",
    "ModelLoadError",
    "OperatorKernel",
    "PendingStep",
    "RankedToken",
    "RequestRejected",
    "RowLogprobs",
    "RowState",
    "SamplingParams",
    "StepBatch",
    "StepPlan",
    "StepResult",
    "TableUpdate",
    "TokenLogprobs",
    "Transfer",
    "Unsupported",
    "hookimpl",
    "hookspec",
]
