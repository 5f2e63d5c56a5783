"""``LLM``: a model, a backend and an engine behind two methods. Torch is imported when the first one is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from baseboard.contract import RequestRejected, SamplingParams
from baseboard.discovery import examine_backends, read_installation
from baseboard.engine.config import EngineConfig
from baseboard.engine.engine import Prompt, StepOutput, Terms
from baseboard.engine.interrupts import interrupts_held
from baseboard.engine.progress import Progress, SilentProgress
from baseboard.engine.results import RequestOutput, TextDelta
from baseboard.engine.stream import Stream
from baseboard.request.admission import check_terms

if TYPE_CHECKING:
    from baseboard.engine.build import Built
    from baseboard.runtime.model_loaded import LoadedModel

#: A text, or ``{"prompt": text}``, or ``{"prompt_token_ids": ids}``.
PromptLike: TypeAlias = "str | Mapping[str, Any]"
Message: TypeAlias = Mapping[str, Any]

_T = TypeVar("_T")


class LLM:
    """See the README. Close it, or use it as a context manager, to give the device back."""

    def __init__(  # noqa: PLR0913 - the public surface; everything after the model is by keyword
        self,
        model: str | Path | LoadedModel = "smollm2",
        *,
        backend: str = "auto",
        dtype: str = "bfloat16",
        block_size: int | None = None,
        num_kv_blocks: int | None = None,
        num_host_blocks: int = 0,
        memory_fraction: float = 0.9,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        enable_prefix_caching: bool = True,
        enable_chunked_prefill: bool = True,
        enable_graphs: bool = True,
        preemption: str = "auto",
        policy: str = "fcfs",
        extensions: Sequence[str] = (),
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Raises ``BackendUnavailable``, ``ModelLoadError``, ``Unsupported`` or ``MemoryShortage``."""
        config = EngineConfig(
            model=model,
            backend=backend,
            dtype=dtype,  # pyright: ignore[reportArgumentType]  checked there
            block_size=block_size,
            num_kv_blocks=num_kv_blocks,
            num_host_blocks=num_host_blocks,
            memory_fraction=memory_fraction,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
            enable_chunked_prefill=enable_chunked_prefill,
            enable_graphs=enable_graphs,
            preemption=preemption,
            policy=policy,
            extensions=tuple(_listed("extensions", extensions)),
            seed=seed,
        )
        self.progress: Final = progress or SilentProgress()
        with self.progress.loading() as say:
            say("starting")  # the libraries take seconds to import
            # Torch imports other packages by itself, and fails where one of them does: torch_npu without CANN, for
            # instance. A plugin whose package would fail switches that off when it looks for devices: so look first.
            examine_backends(read_installation())
            from baseboard.engine.build import build, build_from

            self._built: Final[Built] = (
                build(config, say) if isinstance(model, str | os.PathLike) else build_from(config, model, say)
            )
        self._engine: Final = self._built.engine
        self._streams: Final[dict[str, Stream]] = {}

    @property
    def built(self) -> Built:
        """Backend, model, memory report: what came of the settings."""
        return self._built

    # --- asking -----------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        tenant: str | Sequence[str | None] | None = None,
    ) -> list[RequestOutput]:
        """One output a prompt, in order.

        ``sampling_params``, ``priority`` (the lower, the sooner, where the policy looks at it) and ``tenant`` (on
        whose behalf) are one for all, or one for each. All prompts are checked before any is run: one that can
        never run raises ``RequestRejected`` naming it. When interrupted, everything begun here is ended.
        """
        several = [prompts] if isinstance(prompts, str | Mapping) else _listed("prompts", prompts)
        checked = _for_each(self._prompt, several)
        return self._run(checked, sampling_params, _terms(priority, tenant, len(checked)))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        tenant: str | Sequence[str | None] | None = None,
    ) -> list[RequestOutput]:
        """The assistant's next message in one conversation, or in several; otherwise as :meth:`generate`."""
        several: Any = _listed("messages", messages)
        conversations = [several] if not several or isinstance(several[0], Mapping) else several
        checked = _for_each(self._chat_prompt, conversations)
        return self._run(checked, sampling_params, _terms(priority, tenant, len(checked)))

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Iterator[TextDelta]:
        """The assistant's next message piece by piece; closing the iterator ends the request."""
        prompt, ids = self._chat_prompt(messages), list[str]()
        with self._until_done(ids):
            with interrupts_held():
                ids.append(self._engine.add(prompt, sampling_params or SamplingParams()))
                stream = self._streams[ids[0]] = Stream()
            while stream.deltas or not stream.finished:
                if stream.deltas:
                    yield stream.deltas.popleft()
                else:
                    self._step()

    # --- the rest ---------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Counters since the start, and gauges of now."""
        figures, kv = self._engine.scheduler.snapshot(), self._engine.scheduler.kv
        named = {field.name: getattr(figures, field.name) for field in fields(figures)}
        return {name: value for name, value in named.items() if isinstance(value, int)} | {
            "num_replayed_steps": 0 if self._built.graphs is None else self._built.graphs.num_replays,
            "num_kv_blocks": kv.pool.num_blocks,
            "num_free_kv_blocks": kv.pool.num_free,
            "num_host_blocks": kv.host.num_blocks,
            "num_free_host_blocks": kv.host.num_free,
        }

    def reset_prefix_cache(self) -> None:
        """Later prompts hit nothing that is cached now; the device wipes it with the next step."""
        self._engine.reset_prefix_cache()

    def close(self) -> None:
        """Give the device back. Calling it twice is harmless."""
        self._engine.close()
        self._built.backend.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside -----------------------------------------------------------------------------------------------

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        terms: Sequence[Terms],
    ) -> list[RequestOutput]:
        params = _one_each(sampling_params, len(prompts))
        wishes = list(zip(prompts, params, strict=True))
        _for_each(lambda wish: self._engine.check_request(*wish), wishes)
        ids: list[str] = []
        outputs: dict[str, RequestOutput] = {}
        with self._until_done(ids), self.progress.generating(len(prompts)) as report:
            with interrupts_held():
                for (prompt, wish), term in zip(wishes, terms, strict=True):
                    ids.append(self._engine.add(prompt, wish, terms=term))
            own = frozenset(ids)
            while len(outputs) < len(own):
                finished = self._step().finished
                outputs.update((output.request_id, output) for output in finished if output.request_id in own)
                report.step(len(outputs), self.stats())
        return [outputs[request_id] for request_id in ids]

    def _step(self) -> StepOutput:
        """One step; what it gave to streams waits there for their readers."""
        with interrupts_held():
            step = self._engine.step()
            for delta in step.deltas:
                if (stream := self._streams.get(delta.request_id)) is not None:
                    stream.deltas.append(delta)
            for output in step.finished:
                if (stream := self._streams.get(output.request_id)) is not None:
                    stream.finished = True
        return step

    @contextmanager
    def _until_done(self, ids: Sequence[str]) -> Iterator[None]:
        """Whatever happens inside, none of these requests goes on afterwards."""
        try:
            yield
        finally:
            with interrupts_held():
                for request_id in ids:
                    self._engine.abort(request_id)
                    self._streams.pop(request_id, None)
        if not self._engine.has_unfinished:
            self._engine.scheduler.check()

    def _prompt(self, prompt: PromptLike) -> Prompt:
        if isinstance(prompt, str):
            return self._encoded(prompt)
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return Prompt(tuple(_listed("prompt_token_ids", prompt["prompt_token_ids"])), prompt.get("prompt"))
            if isinstance(prompt.get("prompt"), str):
                return self._encoded(prompt["prompt"])
        raise RequestRejected(
            f"{prompt!r} is no prompt: give a text, {{'prompt': text}} or {{'prompt_token_ids': ids}}"
        )

    def _encoded(self, text: str) -> Prompt:
        if not text:
            raise RequestRejected("the prompt is empty: give at least one character")
        _check_encodable(text)
        return Prompt(tuple(self._tokenizer().encode(text)), text)

    def _chat_prompt(self, messages: Sequence[Message]) -> Prompt:
        if not messages:
            raise RequestRejected("the conversation is empty: give at least one message")
        tokenizer = self._tokenizer()
        text = tokenizer.render_chat(messages)
        _check_encodable(text)
        return Prompt(tuple(tokenizer.encode_chat(messages)), text)

    def _tokenizer(self) -> Any:
        tokenizer = self._built.model.tokenizer
        if tokenizer is None:
            raise RequestRejected(f"{self._built.model.name} has no tokenizer: give prompt_token_ids")
        return tokenizer


def _one_each(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams]:
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params or SamplingParams()] * count
    each = _listed("sampling_params", sampling_params)
    for wish in each:
        if not isinstance(wish, SamplingParams):
            raise RequestRejected(f"sampling_params holds {wish!r}: give SamplingParams")
    if len(each) != count:
        raise RequestRejected(f"{len(each)} sampling_params for {count} prompts: give one, or one for each")
    return each


def _terms(priority: int | Sequence[int], tenant: str | Sequence[str | None] | None, count: int) -> list[Terms]:
    """Raises ``RequestRejected`` for terms on which nothing can be served."""
    priorities = [priority] * count if isinstance(priority, int) else _listed("priority", priority)
    tenants = [tenant] * count if tenant is None or isinstance(tenant, str) else _listed("tenant", tenant)
    for name, given in (("priority", priorities), ("tenant", tenants)):
        if len(given) != count:
            raise RequestRejected(f"{len(given)} values of {name} for {count} prompts: give one, or one for each")
    terms = [Terms(*each) for each in zip(priorities, tenants, strict=True)]
    for term in terms:
        check_terms(term.priority, term.tenant)
    return terms


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = text[error.start]
        raise RequestRejected(f"the text cannot be encoded: {bad!r} at {error.start} is half a character") from error


def _listed(name: str, given: Any) -> list[Any]:
    """What the caller gave as a list; arrays and tensors as plain numbers."""
    plain = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(plain, str | bytes | Mapping) or not isinstance(plain, Iterable):
        raise RequestRejected(f"{name}={given!r} is not allowed: give a list")
    return list(plain)


def _for_each(act: Callable[[Any], _T], prompts: Sequence[Any]) -> list[_T]:
    """What ``act`` gives for each; a refusal names the prompt by its index where there are several."""
    made: list[_T] = []
    for at, prompt in enumerate(prompts):
        try:
            made.append(act(prompt))
        except RequestRejected as refusal:
            raise RequestRejected(f"prompt {at}: {refusal}" if len(prompts) > 1 else str(refusal)) from None
    return made
