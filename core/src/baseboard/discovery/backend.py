"""Opening a backend: the one way from a user's choice to an object whose hooks can be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from types import MappingProxyType, TracebackType
from typing import Any, Final, cast

import pluggy

from baseboard.contract import (
    PROJECT,
    BackendHooks,
    BackendUnavailable,
    Capabilities,
    ContractError,
    DeviceInfo,
    Unsupported,
)
from baseboard.discovery.choose import AUTO, Choice, choose
from baseboard.discovery.doctor import examine_backends
from baseboard.discovery.hookcheck import OPTIONAL_HOOKS, check_complete, check_spelling, hook_names, register, specify
from baseboard.discovery.installation import Installation, read_installation
from baseboard.discovery.instruments import Instrument, select_instruments
from baseboard.discovery.isolation import Failure, attempt


class Backend:
    """An open backend. Whoever opened it closes it; as a context manager it closes itself.

    ``hook`` calls the backend through pluggy, with its instruments around it: keyword arguments only.
    """

    def __init__(self, choice: Choice, hook: BackendHooks, capabilities: Capabilities) -> None:
        self.name: Final[str] = choice.backend.name
        self.device: Final[DeviceInfo] = choice.device
        self.why: Final[str] = choice.why  #: why it was chosen, one sentence
        self.capabilities: Final[Capabilities] = capabilities  #: read once, at opening
        self.hook: Final[BackendHooks] = hook
        self._closed = False

    def close(self) -> None:
        """Release the device. Only the first call does anything."""
        if not self._closed:
            self._closed = True
            self.hook.close()

    def __enter__(self) -> Backend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Backend({self.name}, {self.device.device_type}:{self.device.index}, {self.device.name})"


def open_backend(
    choice: str = AUTO,
    options: Mapping[str, Any] | None = None,
    *,
    instruments: Sequence[object] = (),
    installation: Installation | None = None,
) -> Backend:
    """Open the backend that ``choice`` means (see :func:`baseboard.discovery.choose.choose`).

    ``options`` go to the plugin. ``instruments`` are names of installed ones or objects, in addition to those that
    the environment names; the first is the outermost. ``installation`` is by default that of this process.

    Nothing else is tried when the chosen backend does not open. Raises ``BackendUnavailable`` with the reason,
    ``ContractError`` when what the plugin opened breaks the contract, ``Unsupported`` for contradicting options.
    """
    here = read_installation() if installation is None else installation
    chosen = choose(examine_backends(here), choice)
    active = select_instruments(here, instruments)
    opened = _open(chosen, _merged(options or {}, chosen.options))
    manager = pluggy.PluginManager(PROJECT)
    try:
        _assemble(manager, chosen.backend.name, opened, active)
        capabilities = _capabilities(manager)
    except ContractError as error:
        _release(opened)
        raise ContractError(f"backend {chosen.backend.name!r} breaks the contract: {error}") from error
    return Backend(chosen, cast("BackendHooks", manager.hook), capabilities)


def _merged(options: Mapping[str, Any], asked: Mapping[str, str]) -> Mapping[str, Any]:
    twice = [name for name, value in asked.items() if options.get(name, value) != value]
    if twice:
        raise Unsupported(
            [f"{n} is {options[n]!r} in the options but {asked[n]!r} in the backend's name: say it once" for n in twice]
        )
    return MappingProxyType({**options, **asked})


def _open(choice: Choice, options: Mapping[str, Any]) -> object:
    """What the plugin opens. Raises ``BackendUnavailable``: the plugin's own, or one that stands for its error."""
    hooks = choice.backend.plugin.hooks
    assert hooks is not None, "choose() takes loaded backends only"
    opened = attempt(lambda: hooks.open_backend(device=choice.device, options=options))
    if not isinstance(opened, Failure):
        return opened
    if isinstance(opened.error, BackendUnavailable):
        raise opened.error
    raise BackendUnavailable(f"backend {choice.backend.name!r} did not open: {opened.reason}") from opened.error


def _assemble(manager: pluggy.PluginManager, name: str, opened: object, instruments: tuple[Instrument, ...]) -> None:
    """Put backend and instruments together. Raises ``ContractError`` when the backend's hooks are not in order."""
    specify(manager, BackendHooks)
    register(manager, opened, f"what open_backend of {name!r} gave")
    check_spelling(manager, BackendHooks)
    check_complete(manager, (hook for hook in hook_names(BackendHooks) if hook not in OPTIONAL_HOOKS))
    # Of several wrappers pluggy puts the one registered last outermost.
    for instrument in reversed(instruments):
        register(manager, instrument.plugin, instrument.name)


def _capabilities(manager: pluggy.PluginManager) -> Capabilities:
    hook = cast("BackendHooks", manager.hook)
    answer = attempt(cast("Callable[[], object]", hook.capabilities))
    if isinstance(answer, Failure):
        raise ContractError(f"capabilities failed: {answer.reason}") from answer.error
    if not isinstance(answer, Capabilities):
        raise ContractError(f"capabilities gave {answer!r}, not Capabilities")
    return answer


def _release(opened: object) -> None:
    """Close what cannot be used, if it knows how; the reason why it cannot be used is what the user must see."""
    attempt(partial(methodcaller("close"), opened))
