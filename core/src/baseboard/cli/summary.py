"""What is said at the end: who ran it, how much, how fast; and where the memory went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.table import Column, Table
from rich.text import Text

from baseboard.cli.terminal import about

if TYPE_CHECKING:
    from baseboard.engine.build import Built

MEBIBYTE: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    generating: float
    first_token: float | None  #: None where there was no token

    def tokens_per_second(self, num_tokens: int) -> float:
        return num_tokens / self.generating if self.generating else 0.0

    def as_dict(self, stats: Mapping[str, int]) -> dict[str, float | None]:
        """Plain data for JSON."""
        return {
            "generating_seconds": self.generating,
            "first_token_seconds": self.first_token,
            "tokens_per_second": self.tokens_per_second(stats["num_generated_tokens"]),
        }


def print_summary(built: Built, stats: Mapping[str, int], timing: Timing) -> None:
    """One line on stderr."""
    line = Text(style="dim")
    line.append(built.backend.name, style="bold")
    line.append(f" on {built.backend.device.name} ({built.backend.why}): ")
    line.append(", ".join(_figures(stats, timing)))
    about().print(line, soft_wrap=True)


def _figures(stats: Mapping[str, int], timing: Timing) -> list[str]:
    generated = stats["num_generated_tokens"]
    hits, queries = stats["prefix_hits"], stats["prefix_queries"]
    percent = round(100 * hits / queries) if queries else 0
    figures = [
        f"{stats['num_prompt_tokens']:,} prompt tokens",
        f"{generated:,} generated",
        f"{timing.tokens_per_second(generated):.1f} tokens/s",
        f"prefix cache {hits:,} ({percent}%)",
        f"{stats['num_preemptions']} preemptions",
    ]
    if timing.first_token is not None:
        figures.insert(3, f"first token after {timing.first_token:.2f} s")
    return figures


def print_memory(built: Built) -> None:
    """The items of the memory budget, and their sum, on stderr."""
    memory = built.memory
    table = Table(Column(style="dim"), Column(justify="right"), box=None, show_header=False, pad_edge=False)
    for item, nbytes in memory.lines():
        table.add_row(item, _mebibytes(nbytes))
    table.add_row("budget", _mebibytes(memory.budget), style="bold")
    about().print(table)
    size = built.block_size
    about().print(
        Text(
            f"{memory.num_blocks:,} KV blocks of {size} tokens ({memory.block_nbytes:,} bytes each), "
            f"of {_mebibytes(memory.total)} in all",
            style="dim",
        ),
        soft_wrap=True,
    )


def memory_as_dict(built: Built) -> dict[str, Any]:
    """Plain data for JSON, in bytes."""
    memory = built.memory
    items = {item.replace(" ", "_").lower(): nbytes for item, nbytes in memory.lines()}
    return {"total": memory.total, "budget": memory.budget, **items, "num_kv_blocks": memory.num_blocks}


def backend_as_dict(built: Built) -> dict[str, str]:
    """Plain data for JSON."""
    return {"name": built.backend.name, "device": built.backend.device.name, "why": built.backend.why}


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / MEBIBYTE:,.1f} MiB"
