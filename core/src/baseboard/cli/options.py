"""What the commands that run a model have in common: the engine's options and how they become an ``LLM``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from baseboard.engine.progress import Progress
    from baseboard.llm import LLM

_ENGINE = "Engine"
_SAMPLING = "Sampling"

Model: TypeAlias = Annotated[
    str, typer.Option("--model", "-m", help="A folder, a GGUF file, a hub id, or the packaged smollm2.")
]
Backend: TypeAlias = Annotated[
    str, typer.Option(help="auto, a backend's name, or name:index.", rich_help_panel=_ENGINE)
]
DType: TypeAlias = Annotated[str, typer.Option(help="bfloat16, float16 or float32.", rich_help_panel=_ENGINE)]
NumKVBlocks: TypeAlias = Annotated[
    int | None,
    typer.Option("--num-kv-blocks", help="Size of the KV pool in blocks; else from memory.", rich_help_panel=_ENGINE),
]
MemoryFraction: TypeAlias = Annotated[
    float, typer.Option(help="Share of the device's memory to use.", rich_help_panel=_ENGINE)
]
MaxModelLen: TypeAlias = Annotated[
    int | None, typer.Option(help="Longest prompt and answer, in tokens; else the model's.", rich_help_panel=_ENGINE)
]
Policy: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Who is served first: fcfs, priority, aging, prefill_first or a plugin's.", rich_help_panel=_ENGINE
    ),
]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show where the memory goes.", rich_help_panel=_ENGINE)
]

MaxTokens: TypeAlias = Annotated[int, typer.Option(help="Longest answer, in tokens.", rich_help_panel=_SAMPLING)]
Temperature: TypeAlias = Annotated[
    float, typer.Option(help="0 always takes the most likely token.", rich_help_panel=_SAMPLING)
]
TopP: TypeAlias = Annotated[
    float, typer.Option(help="Keep the likeliest tokens that sum to this.", rich_help_panel=_SAMPLING)
]
Seed: TypeAlias = Annotated[
    int | None, typer.Option(help="The same seed gives the same text.", rich_help_panel=_SAMPLING)
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine's options as the command line has them."""

    model: str
    backend: str
    dtype: str
    num_kv_blocks: int | None
    memory_fraction: float
    max_model_len: int | None
    max_num_seqs: int
    policy: str = "fcfs"

    def open(self, progress: Progress) -> LLM:
        """Load the model; whoever asked closes it. Raises what ``LLM`` raises."""
        from baseboard.llm import LLM

        return LLM(
            self.model,
            backend=self.backend,
            dtype=self.dtype,
            num_kv_blocks=self.num_kv_blocks,
            memory_fraction=self.memory_fraction,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            policy=self.policy,
            progress=progress,
        )
