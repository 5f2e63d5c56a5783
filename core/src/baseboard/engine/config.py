"""The engine's settings: checked once, then frozen."""

# What users hand in is checked at run time, whatever the annotations say:
# pyright: reportUnnecessaryIsInstance=false
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from baseboard.contract import DType, Unsupported
from baseboard.discovery import registry_for
from baseboard.scheduler.policy import Policy, check_host_pool, unknown_names
from baseboard.scheduler.registry import Registry


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Raises ``Unsupported``, naming value and limit, for settings that cannot work."""

    model: Any  #: a folder, a GGUF file, a hub id or ``smollm2``
    backend: str = "auto"
    dtype: DType = "bfloat16"
    block_size: int | None = None  #: None: the backend's preference
    num_kv_blocks: int | None = None  #: None: from ``memory_fraction``
    num_host_blocks: int = 0
    memory_fraction: float = 0.9
    max_model_len: int | None = None  #: None: the model's
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    enable_graphs: bool = True  #: record decode steps where the backend can
    preemption: str = "auto"
    policy: str = "fcfs"
    extensions: tuple[str, ...] = ()
    seed: int = 0
    registry: Registry = field(init=False, default_factory=Registry)  #: what plugins bring, where one is asked for

    def __post_init__(self) -> None:
        problems = [
            *self._whole_numbers(),
            *self._choice("dtype", get_args(DType)),
            *self._resolve_names(),
        ]
        fraction = self.memory_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            problems.append(f"memory_fraction={fraction!r} must be above 0 and at most 1")
        if problems:
            raise Unsupported(problems)
        check_host_pool(self.preemption, self.num_host_blocks)

    @property
    def service(self) -> Policy:
        """How requests are served: names, that a registry may have to be asked for."""
        return Policy(self.policy, self.preemption, extensions=self.extensions)

    def _resolve_names(self) -> list[str]:
        names = {"policy": (self.policy,), "preemption": (self.preemption,), "extensions": self.extensions}
        given = [(what, name) for what, several in names.items() for name in several]
        if no_names := [f"{what}={name!r} must be a name" for what, name in given if not isinstance(name, str)]:
            return no_names
        object.__setattr__(self, "registry", registry_for(self.service))
        return unknown_names(self.service, self.registry)

    def _whole_numbers(self) -> list[str]:
        least = {
            "block_size": 1,
            "num_kv_blocks": 1,
            "num_host_blocks": 0,
            "max_model_len": 2,
            "max_num_seqs": 1,
            "max_num_batched_tokens": 1,
            "seed": None,
        }
        optional = {"block_size", "num_kv_blocks", "max_model_len"}
        problems: list[str] = []
        for name, bound in least.items():
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                problems.append(f"{name}={value!r} must be a whole number")
            elif bound is not None and value < bound:
                problems.append(f"{name}={value} must be at least {bound}")
        return problems

    def _choice(self, name: str, known: Any) -> list[str]:
        value = getattr(self, name)
        return [] if value in known else [f"{name}={value!r} is unknown; known are {', '.join(sorted(known))}"]
