"""Mistakes that the tests must find: each is one textual change to the real sources, with its reason.

``python mutants.py NUMBER`` loads the changed module in place of the real one and plays random episodes until one
fails; for a mistake that these hardly meet, or that breaks a policy and no token, it runs the tests named. It exits with 0 when a failure was found (the mutant is killed) and with 1 when all episodes passed.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from random import Random
from types import ModuleType

TESTS = Path(__file__).parents[2]

#: Episodes played before a mutant counts as a survivor.
EPISODES = 3000

POOL, PREFIX, MANAGER = "baseboard.kv.pool", "baseboard.kv.prefix", "baseboard.kv.manager"
GROUP, TABLE = "baseboard.kv.group", "baseboard.kv.table"
BOOK, PLANNER, COMMIT = "baseboard.scheduler.book", "baseboard.scheduler.planner", "baseboard.scheduler.commit"
DRAFT, PREEMPTION, INFLIGHT = (
    "baseboard.scheduler.draft",
    "baseboard.scheduler.preemption",
    "baseboard.scheduler.inflight",
)
SCHEDULER, REQUEST, LIMITS = "baseboard.scheduler.scheduler", "baseboard.request.request", "baseboard.scheduler.limits"
ORDERS, QUEUE, DEADLINE = (f"baseboard.scheduler.{name}" for name in ("orders", "queue", "deadline"))
GUARD, GUARDED, GUARDED_SOURCE, TURN, VIEWS = (
    f"baseboard.scheduling.{name}" for name in ("guard", "guarded", "guarded_source", "turn", "views")
)
ENCODER, SPLITTING = "baseboard.scheduler.encoder", "baseboard.scheduler.splitting"
KV_TABLE = "baseboard.kv.table"
KV_ENCODER, KV_MEDIA, MEDIA = "baseboard.kv.encoder", "baseboard.kv.media", "baseboard.contract.media"

STREAMING, COMMON = "baseboard.scheduler.streaming", "baseboard.scheduler.common_prefix"
EVENTS, STATS = "baseboard.scheduler.events", "baseboard.scheduler.stats"
LIMBO, KV_EVENTS = "baseboard.kv.limbo", "baseboard.kv.events"


#: Who finds a mutant that the episodes meet too rarely, or cannot tell from the real thing: a test file.
EPISODES_FIND_IT = ""
ADMISSION, CACHE = "core/simulation/test_admission.py", "core/simulation/test_prefix_cache.py"
ENDINGS, FAILURES = "core/simulation/test_endings.py", "core/simulation/test_failures.py"
PIPELINE, PREEMPTION_TESTS = "core/simulation/test_pipeline.py", "core/simulation/test_preemption.py"
KV, KV_POOL = "core/kv/test_manager.py", "core/kv/test_pool.py"
CONNECTOR = "core/simulation/test_connector.py"
WINDOWS = "core/simulation/test_windows.py"
ENCODER_TESTS, MEDIA_PREFIX = "core/simulation/test_encoder.py", "core/simulation/test_media_prefix.py"
ENCODER_SOURCE, CROSS = "core/simulation/test_encoder_source.py", "core/simulation/test_encoder_decoder.py"
GUARDS, CONNECTORS = "core/scheduling/test_guards.py", "core/scheduling/test_connectors.py"
STREAMED, DISORDER = "core/simulation/test_streaming_input.py", "core/simulation/test_out_of_order.py"
EVENT_TESTS, FIGURES = "core/simulation/test_events.py", "core/simulation/test_figures.py"
COMMON_TESTS = "core/scheduler/test_common_prefix.py"
SCHEDULING, ROLES = "core/scheduler/test_scheduler.py", "core/scheduler/test_roles.py"


@dataclass(frozen=True)
class Mutant:
    """``old`` occurs once in ``module`` and becomes ``new``."""

    reason: str
    module: str
    old: str
    new: str
    quick: bool = False  #: also in the default test run
    found_by: str = EPISODES_FIND_IT


MUTANTS = (
    # --- block pool -------------------------------------------------------------------------------------------------
    Mutant("a block taken from the cache keeps its index entry", POOL, "self._content.forget(block)", "pass", True),
    Mutant("a hit on a free block leaves it in the free list", POOL, "del self._cached[block]", "pass"),
    Mutant("a block with references left is freed", POOL, "if self._refs[block] == 0:\n                self._free", "if True:\n                self._free"),
    Mutant("a taken block starts with two references", POOL, "self._refs[block] = 1", "self._refs[block] = 2"),
    Mutant("blocks with content are freed as plain", POOL, "if self._content.holds(block):\n            self._cached", "if False:\n            self._cached"),
    Mutant("forgotten blocks get lost", POOL, "self._plain.extend(dropped)", "pass"),
    # --- prefix index -----------------------------------------------------------------------------------------------
    Mutant("a key ignores what came before", PREFIX, "blake2b(last + raw[at : at + step]", "blake2b(raw[at : at + step]", True),
    Mutant("a key leaves out the last token of its block", PREFIX, "raw[at : at + step]", "raw[at : at + step - 4]", True),
    Mutant("a key ignores the namespace", PREFIX, "self._last = blake2b(namespace,", "self._last = blake2b(b'',"),
    Mutant("a copied chain of keys starts anew", PREFIX, "twin._last = self._last", "pass", found_by="core/kv/test_prefix.py"),
    Mutant("the search goes on behind a gap", PREFIX, "if block is None:\n                break", "if block is None:\n                continue"),
    Mutant("a known key moves to the newer block", PREFIX, "if key not in self._block_of:", "if True:"),
    # --- KV manager -------------------------------------------------------------------------------------------------
    Mutant("the whole prompt may be a hit", MANAGER, "limit = (len(tokens) - 1) // self.block_size", "limit = len(tokens) // self.block_size", True),
    Mutant("a half-filled block is published", MANAGER, "full = self.index.full_blocks(computed, self.block_size)", "full = self.index.full_blocks(computed + 1, self.block_size)", True),
    Mutant("nothing is copied on write", MANAGER, "if self.pool.refs(block) > 1:", "if self.pool.refs(block) > 99:", True),
    Mutant("every holder copies, the last one too", MANAGER, "if self.pool.refs(block) > 1:", "if self.pool.refs(block) > 0:"),
    Mutant("an inherited published block is written in place", MANAGER, "self.index.forget(block)", "pass", found_by=PIPELINE),
    Mutant("the copy is left out of the count of room", MANAGER, "pool.refs(table.blocks[first]) > 1:\n                needed += 1", "pool.refs(table.blocks[first]) > 1:\n                needed += 0"),
    Mutant("free hit blocks are counted twice", MANAGER, "return fresh <= self.pool.num_free - self._idle(cached) - spoken_for", "return fresh <= self.pool.num_free - spoken_for"),
    Mutant("blocks spoken for are given away", MANAGER, "self._idle(cached) - spoken_for", "self._idle(cached)", found_by=ADMISSION),
    Mutant("swap-in forgets the cached blocks it pins", MANAGER, "if wanted - len(cached) > self.pool.num_free - self._idle(cached):", "if wanted - len(cached) > self.pool.num_free:"),
    Mutant("swap-in has no room for the next token", MANAGER, "max(self.blocks_for(num_tokens) - table.slid, len(table.host_blocks))", "len(table.host_blocks)"),
    Mutant("swap-in moves the wrong host blocks", MANAGER, "moved = table.host_blocks[len(blocks) :]", "moved = table.host_blocks[: len(table.host_blocks) - len(blocks)]"),
    Mutant("host blocks are not given back on swap-in", MANAGER, "self.host.release(table.host_blocks, owner)\n            table.host_blocks.clear()", "table.host_blocks.clear()", True),
    Mutant("a fork shares one block too few", MANAGER, "end = self.blocks_for(computed)\n        shared", "end = computed // self.block_size\n        shared", True),
    Mutant("a fork takes no references", MANAGER, "for table in self._sequences[child].holding:\n            for block in table.held:", "for table in self._sequences[child].holding:\n            for block in ():"),
    Mutant("what is released still counts as published", TABLE, "self.num_published = 0\n        self.outdated", "self.outdated", found_by=KV),
    Mutant("nothing behind a hit is published", MANAGER, "sequence.num_published = hit.num_tokens // self.block_size", "sequence.num_published = 10**9", found_by=CACHE),
    # --- what comes from outside --------------------------------------------------------------------------------------
    Mutant("it is sent while a step under way still writes there", PLANNER, "draft.sendings.append(sending)", "sending.begin()", found_by=CONNECTOR),
    Mutant("it is sent to who has let go of its blocks", INFLIGHT, "if wanted.get(sending.request) is sending:", "if True:", found_by=CONNECTOR),
    Mutant("who was let down asks again", COMMIT, "request.let_down = True", "pass", found_by=CONNECTOR),
    # --- layer groups -----------------------------------------------------------------------------------------------
    Mutant("a block in the window's sight is given back", GROUP, "max(computed - self.window + 1, 0)", "max(computed - self.window + 1 + block_size, 0)", True),
    Mutant("a hit may have a hole in the window", GROUP, "run[length - 1] >= length - first", "run[length - 1] >= length - first - 1"),
    Mutant("groups find each other's blocks", GROUP, "return key + group.to_bytes(1, \"little\") if group else key", "return key"),
    Mutant("what slid out is not given back", MANAGER, "self.pool.release(gone, owner)", "pass"),
    Mutant("a fork goes on from where its window is gone", MANAGER, "return all(tables[g].slid <=", "return True or all(tables[g].slid <=", found_by=WINDOWS),
    Mutant("windows count on less room than they may take", GROUP, "// block_size) + 1)", "// block_size) - 1)"),
    Mutant("nobody is told what slid out", MANAGER, "if table.told < table.slid:", "if False:", found_by=WINDOWS),
    # --- planner ----------------------------------------------------------------------------------------------------
    Mutant("the budget is not kept", PLANNER, "return min(want, budget)", "return want", True),
    Mutant("an unfinished chunk is sampled from", PLANNER, "if beyond >= 0:", "if beyond >= -1:", True),
    Mutant("the last token is computed, too", DRAFT, "or known >= request.max_total or", "or known > request.max_total or"),
    Mutant("the short cut writes beyond the table", DRAFT, "known > request.capacity", "known > request.capacity + 1", True),
    Mutant("the short cut also serves what is to be forked", PLANNER, "extension.capacity if request.plain else 0", "extension.capacity"),
    Mutant("a table update starts one entry late", MANAGER, "TableUpdate(owner, begin, tuple", "TableUpdate(owner, begin + 1, tuple"),
    Mutant("the copy is not put into the plan", PLANNER, "draft.move(KVOpKind.COPY, extension.copies)", "pass"),
    Mutant("swapped requests come in though blocks were just taken", ORDERS, "turn.serve_running()\n        if turn.preempted:\n            return", "turn.serve_running()", found_by=ROLES),
    Mutant("the swap-in is not put into the plan", PLANNER, "draft.move(KVOpKind.SWAP_IN, pairs)", "pass", True),
    Mutant("moves ordered between steps are dropped", PLANNER, "turn.draft.move(KVOpKind.SWAP_OUT, moved.pairs)", "pass"),
    Mutant("the best request is evicted", PLANNER, "victim = self._book.victim", "victim = self._book.running.items[0]"),
    Mutant("room kept from running ahead is given to others", MANAGER, "- len(table.held), 0)", "- len(table.held), -9)", found_by=PIPELINE),
    Mutant("a gate's refusal is ignored", PLANNER, "if answer is Verdict.CLOSE:\n                return answer", "if answer is Verdict.CLOSE:\n                continue"),
    # --- book and commit --------------------------------------------------------------------------------------------
    Mutant("a row that was preempted is not retired", BOOK, "remove(request)\n        self._retire(request)\n        pairs =", "remove(request)\n        pairs =", True),
    Mutant("a parent goes on writing into the block it shares", BOOK, "parent.capacity = min(parent.capacity, parent.computed)", "pass", True),
    Mutant("a child writes into the block it shares", BOOK, "child.capacity = computed", "child.capacity = parent.capacity + self.kv.block_size"),
    Mutant("samples to come take no place", QUEUE, "self.num_places += request.width", "self.num_places += 1"),
    Mutant("an aborted request is moved out all the same", BOOK, "self._moving.pop(request, None)\n        self.sendings.pop(request, None)", "self.sendings.pop(request, None)", found_by=ENDINGS),
    Mutant("a reset wipes what is on its way to the host", BOOK, "if block not in moving)\n\n    def moving", "if True)\n\n    def moving"),
    Mutant("blocks of an ended request stay taken", BOOK, "self.kv.close(request.id)", "pass"),
    Mutant("a stale result counts", COMMIT, "good = request.awaits(flight.epochs[row], end)", "good = not request.finished", True),
    Mutant("a failed step's moves are believed", COMMIT, "for request in (*flight.requests, *flight.swapped_out):\n            self._book.distrust(request)", "pass"),
    Mutant("what moved after a failed step is believed", COMMIT, "for request in (*flight.requests, *flight.swapped_out):", "for request in flight.swapped_out:"),
    Mutant("a failed step publishes nothing, but ends nobody", COMMIT, "self._book.finish(request, Event.FAIL)", "pass", found_by=FAILURES),
    Mutant("a stop token is passed over", COMMIT, "if token in request.stop_ids and len(request.tokens) > request.stop_from:", "if False:"),
    Mutant("the short cut is taken for a request that left", COMMIT, "samples != 1 or request.epoch != epoch", "samples != 1"),
    Mutant("one token too many", COMMIT, "elif len(request.tokens) >= request.max_total:", "elif len(request.tokens) > request.max_total:"),
    Mutant("promises are not kept", COMMIT, "request.promised -= samples > 0", "request.promised = 0"),
    Mutant("samples get each other's tokens", COMMIT, "zip(children, sampled[1:], strict=True)", "zip(children, sampled[:0:-1], strict=True)"),
    # --- requests, preemption, forks, drafts --------------------------------------------------------------------------
    Mutant("a late result counts though the request came back", REQUEST, "waits = not self.finished and not self.resident", "waits = not self.finished", True),
    Mutant("nothing is disowned after a failure", REQUEST, '"""Nothing that is under way is to be accepted."""\n        self.epoch += 1', '"""Nothing that is under way is to be accepted."""', found_by=FAILURES),
    Mutant("a request runs ahead of its own fork", REQUEST, "(self.width > 1 or self.verifying", "(self.verifying"),
    Mutant("swap keeps a token that was never sampled", PREEMPTION, "request.computed = min(request.computed, len(request.tokens) - 1)", "pass"),
    Mutant("swap leaves the short cut open", PREEMPTION, "request.capacity = 0\n        request.settle_at = 0\n        request.leave", "request.settle_at = 0\n        request.leave"),
    Mutant("swapped requests keep their row", PREEMPTION, "request.leave_executor()", "request.promised = 0"),
    Mutant("a fork builds on what is under way", SCHEDULER, "landed = min(before, default=request.computed)", "landed = request.computed"),
    Mutant("a fork builds on a copy that is under way", INFLIGHT, "return min((start, *replaced))", "return start", found_by=FAILURES),
    Mutant("a fork builds on a request that has only entered", INFLIGHT, "return 0", "return start", found_by=FAILURES),
    Mutant("a fork takes a place that is not there", SCHEDULER, "self._book.num_places < self.config.max_running", "True"),
    Mutant("copies that depend on each other share a batch", DRAFT, "and not (kind is KVOpKind.COPY and _conflict(self._moves[-1][1], pairs))", "", found_by=SCHEDULING),
    Mutant("a prompt that does not fit is never computed", LIMITS, "if want <= budget or want > self.max_num_batched_tokens else 0", "if want <= budget else 0"),
    # --- drafts -----------------------------------------------------------------------------------------------------
    Mutant("rejected drafts count as computed", COMMIT, "request.computed -= len(drafts) - right", "pass"),
    Mutant("rejected drafts are published", COMMIT, "end -= len(drafts) - right", "pass"),
    Mutant("drafts go beyond the last token", REQUEST, "len(self.drafts), self.max_total - 1)", "len(self.drafts), self.max_total)"),
    # --- encoder inputs -----------------------------------------------------------------------------------------------
    Mutant("an input is let in though the cache has no room", ENCODER, "closed or units > room or compute > budget", "closed or compute > budget", True),
    Mutant("an input is let in though the budget is spent", ENCODER, "closed or units > room or compute > budget", "closed or units > room"),
    Mutant("the budget is not counted down", ENCODER, "self._budget -= span.cost", "pass"),
    Mutant("what was to be made is made again for the next", ENCODER, "cached = content in self.cache", "cached = False", found_by=ENCODER_TESTS),
    Mutant("an input is kept after its last position", ENCODER, "self._used_up_to(use.request, use.end)", "pass", found_by=ENCODER_TESTS),
    Mutant("an input is let go before its last position", ENCODER, "if media[at].end <= end]", "if media[at].offset <= end]", found_by=ENCODER_TESTS),
    Mutant("whoever had no row keeps its inputs", ENCODER, "if holding.step != self._number]", "if False]", found_by=ENCODER_TESTS),
    Mutant("a request that lost its row keeps its inputs", BOOK, "resource.give_back(request)", "pass"),
    Mutant("small inputs pass a big one", ENCODER, "closed = self._first_refused not in {None, request}", "closed = False", found_by=ENCODER_TESTS),
    Mutant("the executor is not told what to drop", ENCODER, "draft.encoder_drops.append(dropped)", "pass"),
    Mutant("a reset is not told to the executor", ENCODER, "self._dropped.append(content)", "pass"),
    Mutant("encodings of a failed step are believed", ENCODER, "return self._undo(step, made, later)", "return []"),
    Mutant("later plans that read what is not there are believed", ENCODER, "untrusted = [each.requests[row] for each in later for row in _rows_that_read(each, set(made))]", "untrusted: list[Request] = []", found_by=ENCODER_SOURCE),
    Mutant("a short cut leads past an input", ENCODER, "request.capacity = 0  # no short cut past an input", "pass", found_by=ENCODER_TESTS),
    Mutant("what is there may be given up for what is not", ENCODER, "for at in sorted(new, key=lambda at: media[at].content_id not in self.cache):", "for at in new:", found_by=ENCODER_TESTS),
    Mutant("an encoding in use counts as idle", KV_ENCODER, "elif not entry.refs:\n            del self._idle[content]", "elif not entry.refs:\n            pass"),
    Mutant("the most recently used encoding goes first", KV_ENCODER, "content = next(iter(self._idle))", "content = next(reversed(self._idle))", found_by="core/kv/test_encoder_cache.py"),
    Mutant("an input that is not to be split is split", SPLITTING, "return max(start, media[at].offset)", "return possible", found_by=ENCODER_TESTS),
    Mutant("a chunk is rounded down to nothing", LIMITS, "return aligned - start if aligned > start else want", "return aligned - start"),
    Mutant("a hit ends in an input that cannot be had", BOOK, "if begin < hit.num_tokens:", "if False:", found_by=ENCODER_TESTS),
    Mutant("nobody passes who waits for an encoding", PLANNER, "return any(resource.awaits(request) for resource in self._roles.resources)", "return False", found_by=ENCODER_SOURCE),
    Mutant("a key leaves out what the placeholders stand for", KV_MEDIA, "key = span.content_key", 'key = b""', found_by=MEDIA_PREFIX),
    Mutant("a key leaves out where the input lies", KV_MEDIA, "(span.offset - first, span.length, len(key))", "(0, span.length, len(key))", found_by="core/kv/test_media_keys.py"),
    Mutant("a content id is cut to 64 bits", MEDIA, "self.content_id.to_bytes(_ID_BYTES,", "(self.content_id % 2**64).to_bytes(_ID_BYTES,", found_by=MEDIA_PREFIX),
    Mutant("results planned ahead of a loss count", BOOK, "request.disown()  # what was planned ahead builds on what is lost", "pass", found_by=CONNECTOR),
    Mutant("a swapped request keeps what a loss has spoilt", COMMIT, "self._book.lose_tokens(request, num_good)\n        else:\n            self._book.distrust(request)", "self._book.lose_tokens(request, num_good)", found_by=ENCODER_SOURCE),
    # --- encoder-decoder ----------------------------------------------------------------------------------------------
    Mutant("cross blocks given back count as written", KV_TABLE, "BlockTable.clear(self)\n        self.written = False", "BlockTable.clear(self)", True),
    Mutant("a source is encoded whenever its row enters", MANAGER, "cross.written = True", "pass", found_by=CROSS),
    Mutant("admission forgets the source", PLANNER, "+ self._kv.apart(request.id)", ""),
    Mutant("swap-in forgets the source", MANAGER, "wanted += sequence.cross.num_blocks", "pass", found_by=CROSS),
    Mutant("a fork takes no references to the source", MANAGER, "for table in self._sequences[child].holding:", "for table in shared:"),
    Mutant("a fork has its shared source encoded again", KV_TABLE, "num_blocks=self.num_blocks, written=self.written", "num_blocks=self.num_blocks", found_by=CROSS),
    Mutant("a key leaves out the source", REQUEST, "if not self.source:", "if True:"),
    Mutant("the source is not swapped", MANAGER, "tables = self._sequences[owner].holding\n        if sum", "tables = self._sequences[owner].tables\n        if sum"),
    # --- policies: tokens stay right, so only a test that knows the policy can tell --------------------------------------
    Mutant("cached blocks are taken most recently used first", POOL, "popitem(last=False)", "popitem(last=True)", found_by=KV_POOL),
    Mutant("heads are evicted before tails", POOL, "for block in reversed(held):", "for block in held:", found_by=KV_POOL),
    Mutant("requests older than a reset go on publishing", MANAGER, "sequence.outdated = True", "sequence.outdated = False", found_by=CACHE),
    Mutant("a failed step's wiping is forgotten", COMMIT, "self._book.wipe_again(flight.plan.zeroes)", "pass", found_by=FAILURES),
    Mutant("a small request passes a big one that waits", PLANNER, "and not self._admit(request, turn):\n                return", "and not self._admit(request, turn):\n                continue", found_by=ADMISSION),
    Mutant("new requests start while one sits swapped out", ORDERS, "turn.serve_swapped()\n        if not turn.any_swapped:", "turn.serve_swapped()\n        if True:", found_by=PREEMPTION_TESTS),
    Mutant("swapped requests survive a reset that preempts", SCHEDULER, "(*book.running, *book.swapped, *book.loaded, *book.idle, *awaiting)", "(*book.running, *book.loaded, *book.idle, *awaiting)", found_by=CACHE),
    # --- other parties' roles: places and adapters in use, guards, patience ----------------------------------------------
    Mutant("places of samples stay taken when they are forked", BOOK, "self.running.num_places -= len(others)", "pass"),
    Mutant("an adapter that nobody runs on is in use", QUEUE, "if not self._adapters[adapter]:", "if False:"),
    Mutant("patience ends a moment too late", DEADLINE, "if now - began < self._seconds:", "if now - began <= self._seconds:", found_by=CONNECTORS),
    Mutant("who was given up is still sent for", DEADLINE, "self._source.cancel(request)\n                late", "late", found_by=CONNECTORS),
    Mutant("who waits for a connector keeps what is sent when all start over", SCHEDULER, "*book.idle, *awaiting)", "*book.idle)", found_by=CONNECTORS),
    Mutant("a plugin's failure ends nobody", SCHEDULER, "self._book.finish(request, Event.FAIL)\n", "pass\n", found_by=GUARDS),
    Mutant("a plugin's failure ends the step", GUARD, "except (Exception, SystemExit) as error:", "except ZeroDivisionError as error:", found_by=GUARDS),
    Mutant("a failure touches a namesake", BOOK, "request.spec.arrival == arrival", "True", found_by=CONNECTORS),
    Mutant("equal keys stay equal", GUARDED, "return (*mine, spec.arrival, spec.sample_index)", "return mine or (spec.arrival, spec.sample_index)", found_by=GUARDS),
    Mutant("any number will do", GUARD, "not isinstance(answer, int) or not least <= answer <= most", "not isinstance(answer, int)", found_by=GUARDS),
    Mutant("views can be written to", VIEWS, "value: object) -> None:\n        raise", "value: object) -> None:\n        return\n        raise", found_by=GUARDS),
    Mutant("an order serves twice", TURN, 'if kind in self._served:', "if False:", found_by=GUARDS),
    Mutant("an order lets in after blocks were taken", TURN, "if self._turn.preempted:", "if False:", found_by=GUARDS),
    Mutant("blocks that may be written to are used again", GUARDED_SOURCE, "self._out_of_hand.add(request)", "pass", found_by=CONNECTORS),
    Mutant("swap is taken when it costs more", PREEMPTION, "if move < again", "if move > again", found_by=ROLES),
    # --- prompts in pieces, pooling, clients --------------------------------------------------------------------------
    Mutant("an open prompt is sampled from", REQUEST, "if self.input_open:\n            return len(self.tokens) - 1", "if self.input_open:\n            return len(self.tokens)", True),
    Mutant("the executor is not told that a prompt grew", STREAMING, "if request.resident:\n            self._book", "if False:\n            self._book", True),
    Mutant("what was swapped out is taken for lost when its input comes", STREAMING, "return Event.INPUT_CAME_SWAPPED", "return Event.INPUT_CAME_PREEMPTED", found_by=STREAMED),
    Mutant("a prompt may grow beyond every limit", STREAMING, "self._config.check_prompt(length, request.spec.params.n)", "pass"),
    Mutant("samples forget what their prompt grew by", BOOK, "child.set_prompt(parent.num_prompt, parent.max_total)", "pass"),
    Mutant("the place of one that waits for input is given away", BOOK, "return self.running.num_places + sum(request.width for request in self.idle_holders)", "return self.running.num_places", found_by=STREAMED),
    Mutant("a prompt that waits has nothing left to compute after a hit", BOOK, "request.tokens[:-1] if request.input_open else request.tokens", "request.tokens", found_by=STREAMED),
    Mutant("those that run lose their blocks before those that wait", BOOK, "return holders[-1] if holders else", "return", found_by=STREAMED),
    Mutant("those that wait for input keep others from going on", PLANNER, "            if holders:\n                self._evict", "            if False:\n                self._evict", found_by=STREAMED),
    Mutant("a pooled value counts whoever computed it", COMMIT, "if request.epoch == epoch or request.awaits(epoch, request.num_prompt):", "if True:"),
    Mutant("a pooled value is published and forgotten", COMMIT, "request.pooled = result.pooled[row]", "pass"),
    Mutant("outputs go to another client", COMMIT, "parts.setdefault(request.spec.caller.client,", "parts.setdefault(0,", True),
    # --- a device out of order ----------------------------------------------------------------------------------------
    Mutant("blocks never rest", LIMBO, "if self._planned > self._landed:", "if False:", True),
    Mutant("blocks rest a step too short", LIMBO, "self._resting[block] = self._planned", "self._resting[block] = self._planned - 1"),
    Mutant("a fork shares what a late write may reach", SCHEDULER, "whole = landed - landed % self.kv.block_size", "whole = landed", found_by=DISORDER),
    Mutant("others are evicted for blocks that are on their way", PLANNER, "            if self._kv.pool.num_coming:\n                self._kept", "            if False:\n                self._kept", found_by=DISORDER),
    Mutant("blocks on their way go to the next in line", PLANNER, "turn.draft.preempted += self._kept_waiting.status is Status.RUNNING", "pass", found_by=DISORDER),
    # --- what is told -------------------------------------------------------------------------------------------------
    Mutant("an evicted block is not told of", KV_EVENTS, "self._events.append(BlocksRemoved((key,)))", "pass", True),
    Mutant("a stored block is told with the text behind it", KV_EVENTS, "tokens[begin * size :", "tokens[begin * size + 1 :"),
    Mutant("a row that goes still counts for the common prefix", COMMON, "self._drop(name, 0, len(self._tables[name]))", "pass", True),
    Mutant("a replaced entry stays common", COMMON, "self._common = min(self._common, first)", "pass", found_by=COMMON_TESTS),
    Mutant("blocks that are written to count as common", COMMON, "min(self._common, written_from)", "self._common"),
    Mutant("the end is told before the first token", EVENTS, "            self._note_first_token(request)\n            self._without", "            self._without", found_by=EVENT_TESTS),
    Mutant("idle time counts as a step", STATS, "self._began = now if num_rows else None", "self._began = now", found_by=FIGURES),
)  # fmt: skip


class _Changed(SourceFileLoader):
    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(mutant.module, path)
        self._mutant = mutant

    def get_code(self, fullname: str):  # always from the changed text, never from a cached file
        source = changed_source(self._mutant, Path(self.path).read_text(encoding="utf-8"))
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant, path: str) -> None:
        self._mutant, self._path = mutant, path

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        loader = _Changed(self._mutant, self._path)
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


def changed_source(mutant: Mutant, source: str) -> str:
    assert source.count(mutant.old) == 1, f"{mutant.module}: {mutant.old!r} occurs {source.count(mutant.old)} times"
    return source.replace(mutant.old, mutant.new)


def source_path(module: str) -> str:
    """Where a module's source is; imports its packages only."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return found.origin


def hunt(mutant: Mutant, episodes: int = EPISODES) -> str | None:
    """How the mutant gave itself away, or None."""
    path = source_path(mutant.module)
    for name in [name for name in sys.modules if name.startswith("baseboard.")]:
        del sys.modules[name]  # a package that was imported to find the source may have brought the source itself
    sys.meta_path.insert(0, _Finder(mutant, path))
    import pytest

    if mutant.found_by:
        failed = pytest.main(["-x", "-q", "-p", "no:cacheprovider", str(TESTS / mutant.found_by)])
        return f"{mutant.found_by} fails" if failed is pytest.ExitCode.TESTS_FAILED else None

    from core.simulation.episode import play
    from core.simulation.watch import watch_every_step

    watch_every_step(pytest.MonkeyPatch())
    for seed in range(episodes):
        rng = Random(seed)
        try:
            play(rng, rng.randint(1, 50))
        except Exception as failure:  # whatever it is, the mutant was noticed
            return f"episode {seed}: {type(failure).__name__}: {failure}"
    return None


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    fate = hunt(MUTANTS[int(sys.argv[1])])
    print(fate)
    sys.exit(1 if fate is None else 0)
