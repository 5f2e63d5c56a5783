"""Computes operators on NPU tensors, where torch_npu would have called kernels that are not there.

Memory, streams, events and copies are torch_npu's own, on the stand-in's library. An operator becomes one piece of work
on the current stream, so it sees what came before it on that stream and nothing else; its host tensors are read when it
runs. Operators of torch_npu are checked against their documents first.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, Final

import torch
import torch_npu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from baseboard_ascend_standin.emulator import fused, paged, simple
from baseboard_ascend_standin.emulator.calls import Chip, Emulation
from baseboard_ascend_standin.emulator.job import Job, is_npu
from baseboard_ascend_standin.library import StandIn

_EMULATIONS: Final[dict[str, Emulation]] = {
    "npu::npu_fused_infer_attention_score": fused.version_1,
    "npu::npu_fused_infer_attention_score_v2": fused.version_2,
    "npu::npu_scatter_pa_kv_cache": simple.scatter,
    "npu::npu_rms_norm": simple.rms_norm,
    "npu::npu_add_rms_norm": simple.add_rms_norm,
    "npu::npu_swiglu": simple.swiglu,
    "npu::npu_mrope": simple.mrope,
    "npu::npu_top_k_top_p": simple.top_k_top_p,
    "atb::_npu_paged_attention": paged.paged_attention,
}
#: What torch_npu does itself: it concerns memory, not numbers.
_NATIVE: Final = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "set_", "resize_", "record_stream",
        "is_pinned", "pin_memory", "_pin_memory", "_unsafe_view", "_reshape_alias", "lift_fresh", "_local_scalar_dense",
        "_has_compatible_shallow_copy_type",
    )
)  # fmt: skip
#: Composites that give new tensors: computed as one, which is faster and rounds no more often than a kernel would.
_WHOLE: Final = frozenset({"aten::linear", "aten::matmul", "aten::scaled_dot_product_attention", "aten::softmax"})
_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
#: Room that a captured operator asks for. None is needed here, but it has to be a tensor of the NPU.
_WORKSPACE: Final = "_get_max_workspace"
_WORKSPACE_NBYTES: Final = 512


class EmulatedNpu(TorchDispatchMode):
    """While active, operators on NPU tensors are computed. ``log`` has the name of each call of torch_npu's own."""

    _tokens: Final = itertools.count(1)  # what is captured under one may be dropped under another

    def __init__(self, standin: StandIn, chip: Chip) -> None:
        super().__init__()
        self.chip = chip
        self.log: list[str] = []
        self._library: Final = standin.library
        self._work: Final[dict[int, Callable[[], None]]] = {}
        self._once: Final[set[int]] = set()
        self._failure: BaseException | None = None
        self._callback: Final = _CALLBACK(self._run)  # the library calls it: it must live as long as this object
        self._library.standin_on_call(self._callback)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _concerns_npu((args, kwargs)):
            return func(*args, **kwargs)
        name = func._schema.name
        if name == "aten::_to_copy":
            return self._to_copy(*args, **kwargs)
        if name == "aten::copy_":
            return self._copy(*args, **kwargs)
        if name in _NATIVE:
            return func(*args, **kwargs)
        if name not in _WHOLE and _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func.is_view or name.endswith("_infer_output"):
            return func(*args, **kwargs)
        if name.endswith(_WORKSPACE):
            return torch.empty(_WORKSPACE_NBYTES, dtype=torch.uint8, device="npu")
        return self._compute(func, args, kwargs)

    def check(self) -> None:
        """Raise what a piece of work that ran later has raised."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # Copies between host and device are torch_npu's; what changes numbers or their order is computed on one side.

    def _to_copy(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        target = torch.device(options.pop("device", None) or x.device)
        options.pop("pin_memory", None)
        late = options.pop("non_blocking", False)
        dtype = options.get("dtype") or x.dtype
        if target.type == x.device.type:
            return self._compute(torch.ops.aten._to_copy.default, (x,), options)
        if dtype != x.dtype or not x.is_contiguous():
            with self:
                x = x.to(dtype).contiguous()
        return torch.ops.aten._to_copy.default(x, device=target, non_blocking=late)

    def _copy(self, into: torch.Tensor, x: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if into.device.type == x.device.type:
            return self._compute(torch.ops.aten.copy_.default, (into, x), {})
        plain = into.dtype == x.dtype and into.shape == x.shape and into.is_contiguous() and x.is_contiguous()
        if plain:
            return torch.ops.aten.copy_.default(into, x, non_blocking)
        with self:
            x = x.to(into.dtype).expand(into.shape).contiguous()
        return self._copy(into, torch.ops.aten._to_copy.default(x, device=into.device), non_blocking)

    # Work.

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue the call; its result as tensors of the NPU."""
        emulation = _EMULATIONS.get(func._schema.name)
        if func._schema.name.partition("::")[0] in {"npu", "atb"}:
            if emulation is None:
                raise NotImplementedError(f"{func._schema.name} has no emulation")
            self.log.append(func._schema.name)
        job = Job(func, args, kwargs, emulation, self.chip)
        if self._is_late() or "out" in kwargs:
            out = job.allocate()
            if out is not None:
                value = out.value
                if self._lives_on():
                    job.let_go(out)
                self._launch(func, lambda: job.run_into(out))
                return value
        if self._lives_on():
            raise RuntimeError(f"{func}: the size of its result depends on numbers, which a capture does not have")
        results: list[Any] = []
        self._launch(func, lambda: results.append(job.run()))
        if not results:  # the device is late, and how large the result is depends on numbers: so does the program
            torch.npu.current_stream().synchronize()
            self.check()
        return job.on_npu(results[0])

    def _is_late(self) -> bool:
        return bool(ctypes.c_int.in_dll(self._library, "standin_late").value or self._lives_on())

    def _lives_on(self) -> bool:
        """Whether what is launched now belongs to a captured model: then it runs with every execution."""
        stream = _current_stream()
        return bool(self._library.standin_capturing(stream) or self._library.standin_updating(stream))

    def _launch(self, func: Any, work: Callable[[], None]) -> None:
        self.check()
        token = next(self._tokens)
        self._work[token] = work
        if not self._lives_on():
            self._once.add(token)
        error = self._library.standin_launch(_current_stream(), token)
        while dropped := self._library.standin_dropped():
            self._work.pop(dropped, None)
        if error:
            raise RuntimeError(f"launch of {func}: NPU function error: error code is {error}")
        self.check()

    def _run(self, token: int) -> None:
        """Called by the library, which knows no exceptions."""
        work = self._work.pop(token) if token in self._once else self._work[token]
        self._once.discard(token)
        try:
            with torch.inference_mode():  # as no program's tensors are: it may run anywhere, and writes to all
                work()
        except Exception as error:  # whatever it is, it is raised at the program's next call
            self._failure = self._failure or error


def _current_stream() -> int:
    return torch_npu._C._npu_getCurrentRawStream(torch.npu.current_device())


def _concerns_npu(tree: Any) -> bool:
    return any(
        is_npu(leaf) or (isinstance(leaf, torch.device) and leaf.type == "npu") for leaf in tree_flatten(tree)[0]
    )


def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
