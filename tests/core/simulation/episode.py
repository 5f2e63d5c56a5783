"""Random episodes: any mix of requests, limits, interference and a nasty device, judged by one oracle.

An episode is drawn from a ``random.Random``: a seeded one, or one that Hypothesis controls and shrinks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from baseboard.contract.errors import RequestRejected
from baseboard.contract.media import ContentId
from baseboard.kv.events import RecordedIndex
from baseboard.request.request import Task
from baseboard.request.status import Status
from baseboard.testing import Handle, Simulation
from baseboard.testing.encoder import MediaItem
from core.simulation.replica import Replica

#: Text that prompts begin with, so that they share prefixes.
STEMS = ([5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20], [5, 6, 7, 8, 1, 1, 1, 1, 1, 1], [3] * 14, [])
LONGEST_PROMPT = 24
#: Inputs by content id, and what they cost the encoder.
INPUTS: dict[ContentId, int] = {"a": 1, 2**127: 3, 2**127 + 2**64: 4, b"d": 6}


def every_third(outputs: Sequence[int]) -> list[int]:
    """A grammar that never ends."""
    return list(range(len(outputs) % 2, 97, 3))


def short_words(outputs: Sequence[int]) -> list[int]:
    """A grammar whose texts have two to five tokens: a token divisible by four ends one."""
    if len(outputs) == 5 or (len(outputs) > 1 and outputs[-1] % 4 == 0):
        return []
    return list(range(20, 40))


@dataclass
class Episode:
    """One simulation, the requests it was given and what became of them."""

    sim: Simulation
    rng: Random
    handles: list[Handle] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)  #: how often something worth testing happened
    replica: Replica = field(default_factory=Replica)
    gone: list[Handle] = field(default_factory=list)  #: given up before they had begun

    @property
    def live(self) -> list[Handle]:
        return [h for first in self.handles for h in first.samples if not h.status.finished]

    # --- what may happen between two steps ----------------------------------------------------------------------

    def submit(self) -> None:
        rng = self.rng
        prompt = rng.choice(STEMS)[: rng.randint(0, 16)] + [rng.randint(0, 3) for _ in range(rng.randint(1, 6))]
        seed = rng.choice((None, 1, 2))
        grammar = rng.choice((None, None, None, None, every_third, short_words))
        media = self._draw_media(prompt) if rng.randint(0, 2) == 0 else []
        pools = rng.randint(0, 7) == 0
        try:
            handle = self.sim.submit(
                prompt,
                max_tokens=rng.randint(1, 14),
                n=1 if pools else rng.choice((1, 1, 1, 2, 3)),
                task="pool" if pools else "generate",
                streaming=rng.randint(0, 2) == 0,
                client=rng.randint(0, 2),
                seed=seed,
                priority=rng.randint(0, 2),
                salt=rng.choice((None, None, "a")),
                adapter=rng.choice((None, None, None, "x", "y")),
                stop_token_ids=range(rng.choice((0, 0, 0, 8))),
                media=media,
                grammar=grammar,
                source=[rng.randint(0, 3) for _ in range(rng.choice((0, 0, 0, 0, 2, 9)))],
            )
        except RequestRejected:
            self.met["refused"] += 1
            return
        self.handles.append(handle)
        for sample in handle.samples if grammar is None else ():
            if rng.randint(0, 3) == 0:
                self.sim.script(sample, [rng.randint(0, 96) for _ in range(rng.randint(1, 6))])
            self.sim.accept_drafts(sample, [rng.randint(0, 3) for _ in range(rng.randint(0, 4))])

    def _draw_media(self, prompt: list[int]) -> list[MediaItem]:
        """Inputs that lie one behind the other, on placeholders of the prompt or on what would be text elsewhere."""
        media: list[MediaItem] = []
        at = self.rng.randint(0, 3)
        while at < len(prompt) and len(media) < 3:
            content = self.rng.choice(list(INPUTS))
            length = min(self.rng.randint(1, 6), len(prompt) - at)
            media.append((at, length, content, INPUTS[content]))
            at += length + self.rng.randint(0, 3)
        return media

    def offer_prefix(self) -> None:
        """The beginning of a text that prompts share lies outside, whole or with a hole."""
        rng = self.rng
        stem = rng.choice(STEMS[:3])
        lost = [at for at in range(6) if rng.randint(0, 5) == 0]
        self.sim.connector.offer(stem, rng.randint(1, len(stem)), latency=rng.choice((0, 1, 3)), lost_blocks=lost)

    def grammar_ready(self) -> None:
        waiting = [h for h in self.handles if h.status is Status.WAITING_FOR_GRAMMAR]
        if waiting:
            self.sim.grammar_ready(self.rng.choice(waiting))

    def hold(self) -> None:
        """Pause, or throttle, for some steps."""
        self.sim.pause(self.rng.choice(("new", "all", "none")))
        self.sim.throttle(self.rng.randint(0, 1) == 1)
        for _ in range(self.rng.randint(1, 4)):
            self.step()
        self.sim.pause("none")
        self.sim.throttle(False)

    def offer_encoding(self) -> None:
        """One of the inputs has been encoded elsewhere."""
        content, latency = self.rng.choice(list(INPUTS)), self.rng.choice((0, 1, 4))
        self.sim.encoder_source.offer(content, latency, lost=self.rng.randint(0, 2) == 0)

    def add_input(self) -> None:
        """More for somebody whose prompt is open, or its end."""
        for handle in self.rng.sample(self.handles, len(self.handles)):
            if handle.request.input_open and not handle.status.finished:
                break
        else:
            return
        waited = handle.status is Status.WAITING_FOR_STREAMING_INPUT
        self.met["input for one that waits"] += waited
        self.met["input for one that lost its blocks"] += waited and not handle.blocks
        if self.rng.randint(0, 2) == 0:
            self.sim.end_input(handle)
            return
        try:
            self.sim.add_input(handle, [self.rng.randint(0, 3) for _ in range(self.rng.randint(1, 7))])
        except RequestRejected:
            self.met["refused input"] += 1

    def give_up(self) -> None:
        handle = self.rng.choice(self.handles)
        before = handle.status
        self.sim.give_up(handle)
        if handle.finish_reason == "ignored" and not before.finished:
            self.gone.append(handle)

    def delay(self) -> None:
        self.sim.delay_next_result(self.rng.randint(1, 3))

    def abort(self) -> None:
        first = self.rng.choice(self.handles)
        self.sim.abort(first, deliver_after=self.rng.choice((0, 0, 2)))
        self.met["abort"] += 1

    def preempt(self) -> None:
        self.sim.preempt(self.rng.choice(self.live), self.rng.choice(("recompute", "swap", "auto")))

    def fork(self) -> None:
        parent = self.rng.choice(self.live)
        if not parent.request.num_outputs or parent.id != parent.request.id:
            return
        child = self.sim.fork(parent)
        if parent.facts.grammar is None and self.rng.randint(0, 1):
            self.sim.script(child, child.tokens + [self.rng.randint(0, 96) for _ in range(self.rng.randint(1, 4))])
        self.handles.append(child)
        self.met["fork"] += 1
        self.met["fork that shares"] += child.status is Status.RUNNING

    def reset(self) -> None:
        self.sim.reset_prefix_cache(preempt=self.rng.randint(0, 2) == 0)
        assert self.sim.cached_blocks == 0

    def fail(self) -> None:
        self.sim.fail_next_step()
        self.met["failed step"] += 1

    def step(self) -> None:
        plan = self.sim.step()
        self.met["load"] += bool(plan.loads)
        self.met["sent from outside"] += self.sim.scheduler.num_parked > 0
        self._follow_index()
        self.met["encoding"] += bool(plan.encodes)
        self.met["encoding dropped"] += bool(plan.encoder_drops)
        self.met["common prefix"] += bool(plan.num_common_prefix_blocks) and len(plan.ids) > 1
        self.met["resting block"] += self.sim.scheduler.kv.pool.num_coming > 0
        self.met["copy"] += bool(plan.copies)
        self.met["draft"] += bool(plan.drafts)
        self.met["swap in"] += bool(plan.swaps_in)
        self.met["swap out"] += bool(plan.swaps_out)

    # --- what must be true in the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """Run to the end and compare everything with the solo runs."""
        sim = self.sim
        sim.delay_next_result(0)
        for first in self.handles:
            if first.status is Status.WAITING_FOR_GRAMMAR:
                sim.grammar_ready(first)
            sim.end_input(first)
        sim.run(max_steps=5000)
        self._follow_index()
        self.met["step"] = sim.scheduler.stats.num_steps
        for first in self.handles:
            for handle in first.samples:
                self._judge(handle)
        sim.step()
        assert sim.device.num_rows == 0, "the device was not told to forget a row"
        assert sim.stats.tracked_requests == 0
        assert sim.free_blocks == sim.scheduler.kv.pool.num_blocks
        assert sim.free_host_blocks == sim.scheduler.kv.host.num_blocks
        assert sim.encoder.cache.units_held == 0
        self.met["encoding found"] += sim.encoder.stats.num_hits > 0
        self.met["encoding loaded"] += sim.encoder.stats.num_loaded > 0
        self.met["encoding lost"] += sim.encoder.stats.num_lost > 0
        self.met["hit"] += sim.stats.prefix_hits > 0
        self.met["eviction"] += sim.stats.evictions > 0
        self.met["preemption"] += sim.stats.num_preemptions > 0
        self.met["stale result"] += sim.stats.stale_results > 0
        self.met["stored block"] += self.replica.num_stored

    def _follow_index(self) -> None:
        """Whoever replays the events knows what the index knows."""
        scheduler = self.sim.scheduler
        self.replica.apply(scheduler.take_kv_events())
        if isinstance(scheduler.kv.index, RecordedIndex):
            assert set(self.replica.texts) == set(scheduler.kv.index._block_of)

    def _judge(self, handle: Handle) -> None:
        self.met[str(handle.finish_reason)] += 1
        self._judge_delivery(handle)
        if handle.request.spec.task is Task.POOL:
            self._judge_pooled(handle)
            return
        solo = self.sim.solo(handle)
        assert handle.tokens == solo[: len(handle.tokens)], f"{handle!r} is not what it is alone"
        assert (handle.finish_reason == "ignored") == any(handle.request is each.request for each in self.gone)
        if handle.finish_reason in {"abort", "error", "ignored"}:
            return
        config = self.sim.scheduler.config_beside(len(handle.request.spec.source))
        self.met["source"] += bool(handle.request.spec.source)
        room = min(config.max_model_len, config.pool_tokens + 1) - handle.request.num_prompt
        assert len(handle.tokens) == min(len(solo), room)
        grammar = handle.facts.grammar
        at_the_end = solo[-1] in handle.request.stop_ids or (grammar is not None and not grammar(solo))
        stopped = len(solo) <= room and at_the_end
        assert handle.finish_reason == ("stop" if stopped else "length")

    def _judge_delivery(self, handle: Handle) -> None:
        """Each client has all of its own requests' tokens, and none of another's."""
        own = handle.request.spec.caller.client
        for client in range(3):
            got = self.sim.delivered(client).get(handle.request.id, [])
            # A fork begins with outputs that its parent was given.
            assert got == (handle.tokens[len(handle.tokens) - len(got) :] if client == own else [])

    def _judge_pooled(self, handle: Handle) -> None:
        assert handle.tokens == []
        self.met["pooled"] += handle.finish_reason == "stop"
        if handle.finish_reason == "stop":
            assert handle.pooled == self.sim.solo_pooled(handle)
        else:
            assert handle.pooled is None
            assert handle.finish_reason in {"abort", "error", "ignored"}


def draw_settings(rng: Random) -> dict[str, Any]:
    block_size = rng.choice((1, 2, 4, 8))
    tokens = rng.randint(16, 80)
    windows = rng.choice(((None,), (None,), (None,), (7,), (None, 3), (1, 12, None)))
    budget, places = rng.choice((64, 16, 24, 5, 1)), rng.choice((12, 8, 5, 3, 1))
    caching = rng.randint(0, 3) > 0
    return {
        "num_blocks": max(1, tokens // block_size) + 8 * (len(windows) - 1),
        "block_size": block_size,
        "num_host_blocks": rng.choice((0, 1, 3, 8, 40)),
        "max_num_batched_tokens": budget,
        "max_num_seqs": places,
        "max_num_active_seqs": rng.choice((None, None, None, min(3, places))),
        "max_model_len": rng.choice((4096, 30, 20)),
        "policy": rng.choice(("fcfs", "fcfs", "priority", "prefill_first")),
        "preemption": rng.choice(("auto", "recompute", "swap")),
        "prefix_caching": caching,
        "kv_events": caching and rng.randint(0, 1) == 1,
        "common_prefix": None in windows and rng.randint(0, 1) == 1,
        "device_in_order": rng.randint(0, 2) > 0,
        "preempt_probability": rng.choice((0.0, 0.0, 0.0, 0.1)),
        "chunked_prefill": rng.randint(0, 3) > 0,
        "long_prefill_token_threshold": rng.choice((0, 0, 1, min(5, budget))),
        "num_draft_tokens": rng.choice((0, 0, 0, 3)),
        "max_loras": rng.choice((None, 1)),
        "encoder_budget": rng.choice((None, 9, 4)),
        "encoder_cache_size": rng.choice((None, 9, 6)),
        **rng.choice(({}, {}, {"split_inputs": False}, {"chunk_alignment": 4})),
        "pipeline_depth": rng.randint(0, 3),
        "reverse_rows": rng.randint(0, 1) == 1,
        "copy_latency": rng.choice((0, 1, 4)),
        "layer_windows": windows,
        "context_ranks": rng.choice((1, 1, 1, 3)),
        "late_metadata": rng.randint(0, 1) == 1,
    }


#: How often each action is taken; the simple ones first, which Hypothesis shrinks to.
ACTIONS = ("step",) * 16 + ("submit",) * 7 + ("preempt",) * 3 + ("fork",) * 3 + ("add_input",) * 4
ACTIONS += ("abort", "reset", "fail", "offer_encoding", "offer_prefix", "grammar_ready", "hold", "give_up", "delay")


def play(rng: Random, num_actions: int) -> Episode:
    """Draw an episode, play it and judge it. Raises ``AssertionError`` for anything wrong."""
    episode = Episode(Simulation(**draw_settings(rng)), rng)
    episode.submit()
    for _ in range(num_actions):
        action = rng.choice(ACTIONS)
        if action in {"abort", "give_up"} and not episode.handles:
            continue
        if action in {"preempt", "fork"} and not episode.live:
            continue
        getattr(episode, action)()
    episode.finish()
    return episode
