"""The scheduler's numbers, resolved once."""

from __future__ import annotations

from dataclasses import dataclass

from baseboard.contract.errors import RequestRejected


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of a request; ``ValueError`` for numbers that leave nothing to schedule."""

    max_num_batched_tokens: int  #: tokens computed in one step
    max_num_seqs: int  #: rows that the executor holds
    max_model_len: int  #: tokens of a request, prompt and outputs
    pool_tokens: int  #: tokens that the whole device pool holds
    chunked_prefill: bool = True
    max_num_active_seqs: int | None = None  #: requests running at once, where that is to be fewer
    max_num_scheduled_tokens: int | None = None  #: tokens given out in one step, where that is to be fewer
    adapters: frozenset[str] | None = None  #: LoRA adapters that there are; None: whatever is asked for is taken
    block_size: int = 1  #: what comes from outside comes in whole blocks of so many tokens
    load_timeout: float | None = None  #: seconds to wait for keys and values from outside; None: for ever

    def __post_init__(self) -> None:
        for name in (
            "max_num_batched_tokens",
            "max_num_seqs",
            "block_size",
            "pool_tokens",
            "max_num_active_seqs",
            "max_num_scheduled_tokens",
        ):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        self._check_within("max_num_active_seqs", "max_num_seqs")
        self._check_within("max_num_scheduled_tokens", "max_num_batched_tokens")
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len={self.max_model_len} must be at least 2: one token in, one out")

    def _check_within(self, name: str, whole: str) -> None:
        own, most = getattr(self, name), getattr(self, whole)
        if own is not None and own > most:
            raise ValueError(f"{name}={own} is more than {whole}={most}: lower it, or leave it out")

    @property
    def max_running(self) -> int:
        """Requests that may run at once."""
        return self.max_num_active_seqs or self.max_num_seqs

    @property
    def scheduled_tokens(self) -> int:
        """Tokens that one step may give out."""
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def max_prompt(self) -> int:
        """The longest prompt that can be served."""
        longest = min(self.max_model_len - 1, self.pool_tokens)
        return longest if self.chunked_prefill else min(longest, self.scheduled_tokens)

    def max_total(self, num_prompt: int, max_tokens: int | None) -> int:
        """Tokens at which a request ends: the last one's keys and values are never needed."""
        ceiling = min(self.max_model_len, self.pool_tokens + 1)
        return ceiling if max_tokens is None else min(num_prompt + max_tokens, ceiling)

    def check_adapter(self, adapter: str | None) -> None:
        """Raise ``RequestRejected`` for an adapter that there is not."""
        if adapter is not None and self.adapters is not None and adapter not in self.adapters:
            known = ", ".join(sorted(self.adapters)) or "none"
            raise RequestRejected(f"adapter {adapter!r} is unknown; known are: {known}")

    def check_prompt(self, num_prompt: int, n: int) -> None:
        """Raise ``RequestRejected`` for what can never run, naming the limit and the way out."""
        if num_prompt < 1:
            raise RequestRejected("the prompt is empty: give at least one token")
        if n > self.max_running:
            name = "max_num_seqs" if self.max_running == self.max_num_seqs else "max_num_active_seqs"
            raise RequestRejected(f"n={n} samples need as many places, but {name}={self.max_running}; raise it")
        if num_prompt <= self.max_prompt:
            return
        if num_prompt > self.max_model_len - 1:
            raise RequestRejected(
                f"the prompt has {num_prompt} tokens, but max_model_len={self.max_model_len} leaves room for "
                f"{self.max_model_len - 1} and one output; shorten it or raise max_model_len"
            )
        if num_prompt > self.pool_tokens:
            raise RequestRejected(
                f"the prompt has {num_prompt} tokens, but the whole KV pool holds {self.pool_tokens}; "
                f"shorten it or raise num_kv_blocks"
            )
        name = "max_num_batched_tokens" if self.max_num_scheduled_tokens is None else "max_num_scheduled_tokens"
        raise RequestRejected(
            f"the prompt has {num_prompt} tokens, but without chunked prefill a step takes "
            f"{name}={self.scheduled_tokens}; raise it or enable chunked prefill"
        )
