"""Replays: the published figures of real traces, and small ones worked out by hand."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from baseboard.scheduler.policy import Policy
from baseboard.testing.replay import (
    Cluster,
    StepCosts,
    TraceRequest,
    as_page,
    as_text,
    count_prefix_hits,
    read_trace,
    replay,
    summarise,
)
from baseboard.testing.replay.summary import percentile

TRACES = Path(__file__).parents[2] / "data" / "traces"

#: Asked, distinct, and hit ratios by capacity, worked out apart from this project with a plain LRU.
PUBLISHED = {
    "conversation": (288_500, 182_790, {1_000: 0.0445, 10_000: 0.2116, 30_000: 0.3257, 50_000: 0.3546}),
    "synthetic": (121_877, 43_924, {1_000: 0.0841, 10_000: 0.4239, 30_000: 0.6243, 50_000: 0.6396}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_endless_cache_hits_whatever_was_asked_for_before(name: str) -> None:
    asked, distinct, _ = PUBLISHED[name]
    count = count_prefix_hits(read_trace(TRACES / f"mooncake_{name}.jsonl.gz").requests, 200_000)
    assert (count.asked, count.hits) == (asked, asked - distinct)


@pytest.mark.parametrize("name", PUBLISHED)
def test_eviction_is_least_recently_used_tails_first(name: str) -> None:
    trace = read_trace(TRACES / f"mooncake_{name}.jsonl.gz").requests
    for num_blocks, ratio in PUBLISHED[name][2].items():
        assert count_prefix_hits(trace, num_blocks).ratio == pytest.approx(ratio, abs=2e-4)


def request(number: int, seconds: float, num_prompt: int, num_output: int) -> TraceRequest:
    return TraceRequest(seconds, num_prompt, num_output, (), number)


COSTS = StepCosts(decode_step=1.0, prefill_token=0.5, decode_row=0.25, swapped_byte=0.0)


def test_times_are_those_of_the_cost_model() -> None:
    # Step 1 at 0: prompt of 4, 1 + 4 x 0.5 = 3 s. Step 2: one decode, 1.25 s, and the request has its 2 tokens.
    # The second request comes at 10, when nothing runs: 1 + 2 x 0.5 = 2 s to its only token.
    result = replay([request(0, 0.0, 4, 2), request(1, 10.0, 2, 1)], Cluster(8, block_size=4, costs=COSTS))
    first, second = result.lives
    assert (first.ttft, first.finished, first.tpot) == (3.0, 4.25, 1.25)
    assert (second.arrived, second.ttft, second.tpot) == (10.0, 2.0, None)
    assert result.seconds == 12.0
    assert result.num_steps == 3


def test_what_can_never_run_is_refused_and_the_rest_goes_on() -> None:
    result = replay([request(0, 0.0, 40, 1), request(1, 0.0, 4, 1)], Cluster(4, block_size=4, costs=COSTS))
    assert len(result.lives) == 1
    assert "40 tokens" in result.refused[0]


def test_a_pool_too_small_preempts_and_says_so() -> None:
    trace = [request(at, 0.0, 4, 9) for at in range(3)]
    cluster = Cluster(5, block_size=4, num_host_blocks=8, costs=COSTS, policy=Policy(preemption="swap"))
    summary = summarise(replay(trace, cluster), cluster)
    assert summary["counters"]["num_requests"] == 3
    assert summary["counters"]["num_swaps_out"] > 0
    assert summary["counters"]["num_generated_tokens"] == 27
    assert 0 < summary["occupancy"]["max"] <= 1


def test_percentiles_by_nearest_rank() -> None:
    values = [15.0, 20.0, 35.0, 40.0, 50.0]
    assert [percentile(values, p) for p in (5, 30, 40, 50, 100)] == [15.0, 20.0, 20.0, 35.0, 50.0]


def test_a_real_trace_is_reported_as_text_json_and_page() -> None:
    trace = read_trace(TRACES / "mooncake_conversation.jsonl.gz").requests[:300]
    cluster = Cluster(40_000, costs=StepCosts(decode_step=0.03, prefill_token=2e-5))
    result = replay(trace, cluster)
    summary = json.loads(json.dumps(summarise(result, cluster)))
    assert summary["counters"]["num_requests"] == 300
    assert summary["counters"]["num_prompt_tokens"] == sum(each.num_prompt for each in trace)
    assert summary["counters"]["num_generated_tokens"] == sum(each.num_output for each in trace)
    assert summary["ttft"]["p50"] <= summary["ttft"]["p90"] <= summary["ttft"]["p99"]
    assert "300 requests" in as_text(summary)

    page = as_page(result, summary, cluster, "a <b> & c")
    checker = _Balance()
    checker.feed(page)
    assert checker.open == []
    assert page.count("<svg") == 3
    assert "a &lt;b&gt; &amp; c" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing is fetched


class _Balance(HTMLParser):
    """Every element that is opened is closed."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element that closes itself."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
