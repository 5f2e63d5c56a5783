"""``baseboard simulate``: size a cluster before buying it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def simulate(
    trace: Annotated[Path, typer.Argument(help="Mooncake JSON lines or Azure CSV, plain or gzipped.")],
    blocks: Annotated[int, typer.Option("--blocks", "-N", help="KV blocks of the device.")],
    block_size: Annotated[int, typer.Option("--block-size", "-B", help="Tokens a block.")] = 16,
    host_blocks: Annotated[int, typer.Option(help="KV blocks of the host, for swapping.")] = 0,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens computed in one step.")] = 8192,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 256,
    max_model_len: Annotated[int, typer.Option(help="Longest request, prompt and output.")] = 1 << 20,
    policy: Annotated[
        str, typer.Option(help="fcfs, priority, aging, prefill_first or a plugin's; see baseboard policies.")
    ] = "fcfs",
    preemption: Annotated[str, typer.Option(help="auto, recompute, swap or a plugin's.")] = "auto",
    extension: Annotated[list[str] | None, typer.Option(help="A plugin's extension; may be repeated.")] = None,
    prefix_caching: Annotated[bool, typer.Option(help="Share the KV of equal beginnings.")] = True,
    decode_step_s: Annotated[float, typer.Option(help="Seconds that every step takes at least.")] = 0.02,
    prefill_token_s: Annotated[float, typer.Option(help="Seconds to compute one prompt token.")] = 1e-4,
    decode_row_s: Annotated[float, typer.Option(help="Seconds that each decoding sequence adds to a step.")] = 0.0,
    swap_gb_s: Annotated[float, typer.Option(help="GB/s between device and host.")] = 25.0,
    block_nbytes: Annotated[int, typer.Option(help="Bytes of one KV block, to cost its move.")] = 0,
    limit: Annotated[int, typer.Option(help="Replay only the first so many requests; 0: all.")] = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out bad rows instead of stopping.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page with charts.")] = None,
) -> None:
    """Replay recorded traffic on the real scheduler and KV manager; the device only takes time."""
    from baseboard.scheduler.policy import Policy
    from baseboard.testing.replay import Cluster, StepCosts, as_page, as_text, read_trace, replay, summarise

    loaded = read_trace(trace, skip_bad=skip_bad)
    cluster = Cluster(
        num_blocks=blocks,
        block_size=block_size,
        num_host_blocks=host_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        policy=Policy(policy, preemption, extensions=tuple(extension or ())),
        prefix_caching=prefix_caching,
        costs=StepCosts(decode_step_s, prefill_token_s, decode_row_s, 1 / (swap_gb_s * 1e9), block_nbytes),
    )
    requests = loaded.requests[:limit] if limit else loaded.requests
    result = replay(requests, cluster)
    summary = summarise(result, cluster) | {"skipped_rows": list(loaded.skipped)}
    typer.echo(json.dumps(summary, indent=2) if as_json else as_text(summary))
    if loaded.skipped and not as_json:
        typer.echo(f"left out         {len(loaded.skipped)} rows, the first: {loaded.skipped[0]}")
    if html is not None:
        html.write_text(as_page(result, summary, cluster, f"Replay of {trace.name}"), encoding="utf-8")
