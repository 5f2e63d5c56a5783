"""Text to token ids and back, and the chat template of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from baseboard.contract import ModelLoadError, RequestRejected
from baseboard.runtime.model_quiet import quiet_transformers
from baseboard.runtime.sources import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: A folder with none of these has no tokenizer: its model then takes token ids only.
_FILES: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


class Tokenizer:
    """The model's tokenizer. Thread-safe as long as nobody changes the wrapped one."""

    def __init__(self, wrapped: PreTrainedTokenizerBase) -> None:
        self._wrapped = wrapped
        # How long a prompt may be is the engine's to say, not a warning of the tokenizer's.
        wrapped.model_max_length = 1 << 62

    @property
    def vocab_size(self) -> int:
        """Number of tokens, the added ones included; the model's logits may have more rows."""
        return len(self._wrapped)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        eos = self._wrapped.eos_token_id
        return frozenset({eos} if isinstance(eos, int) else ())

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, with the special tokens that the model expects around a prompt."""
        return list(self._wrapped(text)["input_ids"])

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids, with every space where the tokens have it; bytes that are no character become U+FFFD."""
        text = self._wrapped.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text if isinstance(text, str) else "".join(text)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt that asks for the assistant's next message, as text with its special tokens.

        Raises ``RequestRejected`` when the model has no chat template or the template refuses the messages.
        """
        if not self._wrapped.chat_template:
            raise RequestRejected("this model has no chat template; give the prompt to generate() instead of chat()")
        from jinja2 import TemplateError

        try:
            conversation = [dict(message) for message in messages]
            rendered = self._wrapped.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise RequestRejected(f"the model's chat template refuses these messages: {error}") from error
        return str(rendered)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids of ``render_chat``; the template has put the special tokens in, no others are added."""
        return list(self._wrapped(self.render_chat(messages), add_special_tokens=False)["input_ids"])


def load_tokenizer(source: ModelSource) -> Tokenizer | None:
    """The tokenizer that comes with the model; None when none does. Raises ``ModelLoadError`` for a broken one."""
    if source.gguf_file is None and not any((source.path / name).is_file() for name in _FILES):
        return None
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        with quiet_transformers():
            if source.gguf_file is None:
                wrapped = AutoTokenizer.from_pretrained(source.path, local_files_only=True, trust_remote_code=False)
            else:
                # Not AutoTokenizer: it would read the whole file again only to learn that it is a fast tokenizer.
                wrapped = PreTrainedTokenizerFast.from_pretrained(source.path, gguf_file=source.gguf_file)
    except Exception as error:  # tokenizer files are untrusted input to several parsers, each with its own errors
        raise ModelLoadError(
            f"the tokenizer of {source.display_name!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
    return Tokenizer(wrapped)
