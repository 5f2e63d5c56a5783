"""Loads a model: weights from safetensors, GGUF or the hub, its tokenizer, and the facts of its attention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from baseboard.contract import DType, ModelLoadError, Unsupported
from baseboard.runtime.model_gguf import GGUFHeader
from baseboard.runtime.model_gguf_llama import can_read, read_llama
from baseboard.runtime.model_loaded import LoadedModel
from baseboard.runtime.model_quiet import quiet_transformers
from baseboard.runtime.model_refusals import config_refusals
from baseboard.runtime.model_selfcheck import check_reproduces
from baseboard.runtime.probe import probe
from baseboard.runtime.sources import ModelSource, Progress, no_progress
from baseboard.runtime.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

#: ``run`` compares the packed forward pass with the model's own; ``skip`` saves its time and memory, at your risk.
SelfCheck: TypeAlias = Literal["run", "skip"]


def load_model(
    source: ModelSource,
    dtype: DType,
    device: torch.device | str,
    progress: Progress = no_progress,
    self_check: SelfCheck = "run",
) -> LoadedModel:
    """Read the model and its tokenizer, put the weights on ``device`` in ``dtype``.

    Raises ``ModelLoadError`` for files that cannot be read, ``Unsupported`` for a model that cannot be run
    faithfully, ``torch.OutOfMemoryError`` when the weights don't fit.
    """
    import torch

    progress(f"loading tokenizer of {source.display_name}")
    tokenizer = load_tokenizer(source)
    progress(f"loading weights of {source.display_name}")
    try:
        with quiet_transformers():
            model = _read_weights(source, getattr(torch, dtype)).to(cast("Any", device))
    except (torch.OutOfMemoryError, ModelLoadError, Unsupported):
        raise
    except Exception as error:  # model files are untrusted input to several parsers, each with its own errors
        raise ModelLoadError(f"{source.display_name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    progress("checking attention")
    return _ready(model, tokenizer, source.display_name, self_check)


def wrap_model(
    model: PreTrainedModel, tokenizer: Tokenizer | None = None, self_check: SelfCheck = "run"
) -> LoadedModel:
    """Make a model that was built by other means ready to run; it keeps its dtype and device.

    From then on the model belongs to the result: its attention is ours and its weights take no gradients. Raises
    ``Unsupported`` as ``load_model`` does.
    """
    return _ready(model, tokenizer, model.config.name_or_path or model.config.model_type, self_check)


def _ready(model: PreTrainedModel, tokenizer: Tokenizer | None, name: str, self_check: SelfCheck) -> LoadedModel:
    model.eval().requires_grad_(requires_grad=False)
    layers = probe(model)
    if self_check == "run":
        check_reproduces(model, layers)
    return LoadedModel(model, layers, tokenizer, name)


def _read_weights(source: ModelSource, dtype: torch.dtype) -> PreTrainedModel:
    if source.gguf_file is None:
        return _read_folder(source, dtype)
    header = GGUFHeader.read(source.path / source.gguf_file)
    return _read_llama_gguf(header, dtype) if can_read(header) else _read_any_gguf(source, header, dtype)


def _read_folder(source: ModelSource, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    # Never code from a model's folder: a model that needs it is not one that transformers knows.
    config = AutoConfig.from_pretrained(source.path, local_files_only=True, trust_remote_code=False)
    _refuse_early(config)
    options = {"config": config, "local_files_only": True, "trust_remote_code": False}
    return _complete(AutoModelForCausalLM, source.path, source.display_name, {"dtype": dtype, **options})


def _read_llama_gguf(header: GGUFHeader, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import LlamaForCausalLM

    weights = read_llama(header, dtype)
    options = {"config": weights.config, "state_dict": weights.state, "dtype": dtype}
    model = _complete(LlamaForCausalLM, None, str(header.path), options)
    if weights.rope_divisors is not None:
        cast("LlamaForCausalLM", model).model.rotary_emb.inv_freq.div_(weights.rope_divisors)
    return model


def _read_any_gguf(source: ModelSource, header: GGUFHeader, dtype: torch.dtype) -> PreTrainedModel:
    import transformers

    if any(tensor.name.startswith("rope_") for tensor in header.tensors):
        name = f"{source.display_name}: {header.architecture}"
        raise Unsupported([f"{name}: the file scales its rotary embeddings by a tensor; use the safetensors files"])
    options: dict[str, Any] = {"gguf_file": source.gguf_file, "dtype": dtype}
    # Releases that can keep weights packed do so unless told otherwise; earlier ones know neither.
    unpack = getattr(transformers, "GgufConfig", None)
    if unpack is not None:
        options["quantization_config"] = unpack(dequantize=True)
    return _complete(transformers.AutoModelForCausalLM, source.path, source.display_name, options)


def _complete(loader: Any, path: Path | None, name: str, options: dict[str, Any]) -> PreTrainedModel:
    """``loader.from_pretrained``, refusing what it lets pass: it fills weights it doesn't find with random numbers."""
    model, report = loader.from_pretrained(path, output_loading_info=True, **options)
    missing = sorted(report["missing_keys"])
    if missing:
        shown = ", ".join(missing[:5])
        raise ModelLoadError(f"{name}: {len(missing)} weights are missing from its files, among them {shown}")
    return model


def _refuse_early(config: PreTrainedConfig) -> None:
    """Refuse by the configuration alone, before any weight is read."""
    from transformers import AutoModelForCausalLM

    reasons = list(config_refusals(config))
    if type(config) not in AutoModelForCausalLM._model_mapping:  # noqa: SLF001  transformers has no public list
        reasons.append(f"{config.model_type}: transformers has no causal language model of this type")
    if reasons:
        raise Unsupported(reasons)
