from __future__ import annotations

import dataclasses
import functools
import types

import pytest

from baseboard.contract import BackendUnavailable, DiscoveryHooks, hookimpl
from baseboard.discovery import Installation
from baseboard.discovery.hookcheck import hook_names
from baseboard.discovery.plugins import load_plugins
from core.discovery.fakes import FakePlugin, installation, source


def only(plugin, **more):
    """The record of ``plugin``, loaded beside a sound neighbour that must stay sound."""
    records = {record.name: record for record in load_plugins(installation(chip=plugin, sound=FakePlugin(), **more))}
    assert records["sound"].hooks is not None
    assert records["sound"].reason is None
    return records["chip"]


def test_a_sound_plugin_is_loaded_and_its_hooks_can_be_called():
    record = only(FakePlugin([]))
    assert record.reason is None
    assert record.contract_version == "1.0"
    assert record.hooks.probe_devices() == []


def test_a_module_is_a_plugin():
    module = types.ModuleType("chip")

    @hookimpl
    def contract_version():
        return "1.0"

    @hookimpl
    def probe_devices():
        return []

    @hookimpl
    def open_backend(device):  # an implementation may take fewer arguments than the hook has
        return ("opened", device)

    for function in (contract_version, probe_devices, open_backend):
        setattr(module, function.__name__, function)
    record = only(module)
    assert record.reason is None
    assert record.hooks.open_backend(device="d", options={}) == ("opened", "d")


class RustPanic(BaseException):
    """PyO3 raises panics as such."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'torch_chip'"), "ModuleNotFoundError: No module named 'torch_chip'"),
        (OSError("libchip.so: undefined symbol: chipInit"), "OSError: libchip.so: undefined symbol: chipInit"),
        (SystemExit(3), "SystemExit: 3"),
        (RustPanic("index out of bounds"), "RustPanic: index out of bounds"),
        (RuntimeError("first line\n  second line"), "RuntimeError: first line second line"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_whatever_an_import_raises_is_a_reason_on_one_line(error, reason):
    record = only(error)
    assert record.hooks is None
    assert record.reason == f"import of chip.plugin failed: {reason}"


def test_ctrl_c_during_an_import_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        load_plugins(installation(chip=KeyboardInterrupt()))


def test_a_misspelt_hook_is_named_with_the_hook_that_was_meant():
    class Misspelt(FakePlugin):
        probe_devices = None

        @hookimpl
        def probe_device(self):
            return []

    record = only(Misspelt())
    assert record.reason == "it implements 'probe_device', which is no hook; did you mean 'probe_devices'?"
    assert record.contract_version == "1.0"
    assert record.hooks is None


def test_a_misspelt_contract_version_is_named_rather_than_called_missing():
    class Misspelt(FakePlugin):
        contract_version = None

        @hookimpl
        def contract_verison(self):
            return "1.0"

    assert "'contract_verison', which is no hook; did you mean 'contract_version'" in only(Misspelt()).reason


def test_a_hook_like_no_other_is_named_with_all_that_exist():
    class Strange(FakePlugin):
        @hookimpl
        def xyzzy(self):
            return None

    assert only(Strange()).reason == (
        "it implements 'xyzzy', which is no hook; the hooks are 'contract_version', 'open_backend', 'probe_devices'"
    )


def test_missing_hooks_are_named():
    class Half:
        @hookimpl
        def contract_version(self):
            return "1.0"

    assert only(Half()).reason == "required hooks are not implemented: open_backend, probe_devices"
    assert only(object()).reason == (
        "required hooks are not implemented: contract_version, open_backend, probe_devices"
    )
    assert hook_names(DiscoveryHooks) == ("contract_version", "open_backend", "probe_devices")


def test_a_wrapper_alone_does_not_implement_a_hook():
    class Wrapped(FakePlugin):
        @hookimpl(wrapper=True)
        def probe_devices(self):
            return (yield)

    assert only(Wrapped()).reason == "required hooks are not implemented: probe_devices"


def test_an_argument_that_the_hook_does_not_have_is_named():
    class Wrong(FakePlugin):
        @hookimpl
        def open_backend(self, device, settings):
            return object()

    reason = only(Wrong()).reason
    assert "open_backend" in reason
    assert "settings" in reason
    assert "\n" not in reason


def test_another_version_is_said_to_be_that_even_when_its_hooks_differ_too():
    class Future(FakePlugin):
        @hookimpl
        def open_backend(self, device, options, mesh):
            return object()

        @hookimpl
        def new_hook(self):
            return None

    record = only(Future(version="2.0"))
    assert record.contract_version == "2.0"
    assert "baseboard-chip is written for contract 2.0, this core has contract 1.0 and accepts 1.0" in record.reason


@pytest.mark.parametrize("version", [None, 1, "one", RuntimeError("no version file")])
def test_a_version_that_cannot_be_understood_is_a_reason(version):
    record = only(FakePlugin(version=version))
    assert record.hooks is None
    assert record.contract_version is None
    assert ("no version file" if isinstance(version, RuntimeError) else f"gave {version!r}") in record.reason


def test_none_in_place_of_a_plugin_is_a_reason():
    assert only(None).reason == "chip.plugin is None: it must be an object or a module with hook implementations"


def test_two_plugins_with_one_name_are_both_unusable_and_neither_is_imported():
    clash = Installation(
        backends=(
            source("chip", AssertionError("imported"), distribution="baseboard-b"),
            source("chip", AssertionError("imported"), distribution="baseboard-a"),
            source("sound", FakePlugin()),
        )
    )
    chip, sound = load_plugins(clash)
    assert chip.hooks is None
    assert chip.reason == (
        "2 plugins have the name 'chip': baseboard-a 0.3.0 (chip.plugin) and baseboard-b 0.3.0 (chip.plugin); "
        "uninstall all but one"
    )
    assert [s.distribution for s in chip.sources] == ["baseboard-a", "baseboard-b"]
    assert sound.reason is None


def test_a_restriction_keeps_other_plugins_from_being_imported():
    imported = []

    def load(name):
        imported.append(name)
        return FakePlugin()

    backends = tuple(
        dataclasses.replace(source(name, None), load=functools.partial(load, name)) for name in ("a", "b", "c")
    )
    a, b, c = load_plugins(Installation(backends=backends, only_backends=("c", "a")))
    assert imported == ["a", "c"]
    assert a.reason is None
    assert c.reason is None
    assert b.reason == "not loaded: left out by BASEBOARD_BACKENDS=c,a"


def test_a_restriction_to_an_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(BackendUnavailable) as error:
        load_plugins(installation(chip=FakePlugin(), sound=FakePlugin(), only=("chip", "chp")))
    assert str(error.value) == "BASEBOARD_BACKENDS names chp, which is not installed; installed are: chip, sound"
