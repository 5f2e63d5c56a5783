"""Checks of a plugin's hook implementations against the hook specifications."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import pluggy

from baseboard.contract import PROJECT, ContractError
from baseboard.discovery.isolation import one_line

#: Hooks that a backend may leave out: the core has a way of its own.
OPTIONAL_HOOKS = frozenset({"operator_kernel", "graph_runner"})


def hook_names(hooks: type) -> tuple[str, ...]:
    """Names of the hooks that a specification class declares, sorted."""
    manager = pluggy.PluginManager(PROJECT)
    return tuple(name for name in dir(hooks) if manager.parse_hookspec_opts(hooks, name) is not None)


def register(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    """Register ``plugin``; what pluggy finds wrong with it becomes a ``ContractError``."""
    if plugin is None:
        raise ContractError(f"{name} is None: it must be an object or a module with hook implementations")
    try:
        manager.register(plugin, name)
    except (pluggy.PluginValidationError, ValueError) as error:  # ValueError: it is registered already
        raise ContractError(one_line(error)) from error


def specify(manager: pluggy.PluginManager, hooks: type) -> None:
    """Declare the hooks; plugins registered before are checked against them now. Raises ``ContractError``."""
    try:
        manager.add_hookspecs(hooks)
    except pluggy.PluginValidationError as error:
        raise ContractError(one_line(error)) from error


def check_spelling(manager: pluggy.PluginManager, hooks: type) -> None:
    """Raises ``ContractError`` when a plugin implements a hook that does not exist, with the names close to it."""
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        known = hook_names(hooks)
        callers = [c for plugin in manager.get_plugins() for c in manager.get_hookcallers(plugin) or ()]
        unknown = sorted({caller.name for caller in callers if not caller.has_spec()})
        raise ContractError("; ".join(_misspelt(name, known) for name in unknown)) from error


def check_complete(manager: pluggy.PluginManager, required: Iterable[str]) -> None:
    """Raises ``ContractError`` naming every required hook without an implementation; a wrapper is none."""
    missing = [name for name in required if not _implementations(manager, name)]
    if missing:
        raise ContractError(f"required hooks are not implemented: {', '.join(missing)}")


def check_only_wrappers(manager: pluggy.PluginManager, name: str) -> None:
    """Raises ``ContractError`` when plugin ``name`` would answer a hook in place of the backend."""
    plugin = manager.get_plugin(name)
    callers = manager.get_hookcallers(plugin) or ()
    answers = [c.name for c in callers if any(impl.plugin is plugin for impl in _implementations(manager, c.name))]
    if answers:
        raise ContractError(
            f"an instrument may only wrap hooks, but it answers {', '.join(sorted(answers))}: "
            "mark them @hookimpl(wrapper=True)"
        )


def _implementations(manager: pluggy.PluginManager, hook: str) -> list[pluggy.HookImpl]:
    caller: pluggy.HookCaller = getattr(manager.hook, hook)
    return [impl for impl in caller.get_hookimpls() if not (impl.wrapper or impl.hookwrapper)]


def _misspelt(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known)
    hint = f"did you mean {_quoted(near, ' or ')}?" if near else f"the hooks are {_quoted(known, ', ')}"
    return f"it implements {name!r}, which is no hook; {hint}"


def _quoted(names: Iterable[str], between: str) -> str:
    return between.join(repr(name) for name in names)
