"""Baseboard: an LLM inference core into which hardware plugs like cards into a board.

``LLM`` and ``SamplingParams`` are what most programs need. ``baseboard.contract`` is for those who write a backend,
``baseboard.testing`` for those who write a policy. Importing this package loads no torch.
"""

from typing import TYPE_CHECKING, Any

from baseboard.contract.sampling import SamplingParams

if TYPE_CHECKING:
    from baseboard.llm import LLM

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from baseboard.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
