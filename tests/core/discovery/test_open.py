from __future__ import annotations

import numpy as np
import pytest

from baseboard.contract import BackendFault, BackendHooks, BackendUnavailable, ContractError, Unsupported, hookimpl
from baseboard.discovery import Backend, open_backend
from baseboard.discovery.hookcheck import OPTIONAL_HOOKS, hook_names
from core.discovery.fakes import CAPABILITIES, FakeBackend, FakePlugin, device, installation


def plugin(opens=None):
    return FakePlugin([device("chip"), device("chip", 1)], opens=opens)


def test_an_open_backend_says_what_it_is_and_calls_its_hooks():
    chip = plugin()
    backend = open_backend("chip:1", {"threads": 4}, installation=installation(chip=chip))
    assert backend.name == "chip"
    assert backend.device == device("chip", 1)
    assert backend.why == "chip:1 was asked for"
    assert backend.capabilities is CAPABILITIES
    assert chip.calls == [(device("chip", 1), {"threads": 4})]
    pairs = np.array([[1, 2]], dtype=np.int64)
    assert backend.hook.swap_blocks(source=0, destination=1, pairs=pairs) == ("transfer", [[1, 2]])
    assert backend.hook.copy_blocks(cache=0, pairs=pairs) is None
    assert backend.hook.operator_kernel(name="rms_norm", spec={}) is None
    assert chip.opens.log == ["capabilities", "swap_blocks", "copy_blocks"]
    assert "chip" in repr(backend)


def test_auto_opens_the_chosen_one_and_says_why():
    fast = FakePlugin([device("fast", priority=2)])
    backend = open_backend(installation=installation(chip=plugin(), fast=fast))
    assert backend.name == "fast"
    assert backend.why == "fast has the highest priority, 2, of 2 available backends"


def test_close_releases_once():
    inner = FakeBackend()
    with open_backend(installation=installation(chip=plugin(inner))) as backend:
        assert isinstance(backend, Backend)
        assert "close" not in inner.log
    backend.close()
    assert inner.log.count("close") == 1


def test_the_device_in_the_choice_reaches_the_plugin_and_may_not_contradict_the_options():
    chip = plugin()
    here = installation(chip=chip)
    open_backend("chip:npu:3", {"threads": 4}, installation=here)
    open_backend("chip:npu:3", {"device": "npu:3"}, installation=here)
    assert [options for _, options in chip.calls] == [{"threads": 4, "device": "npu:3"}, {"device": "npu:3"}]
    with pytest.raises(Unsupported, match="device is 'cpu' in the options but 'npu:3' in the backend's name"):
        open_backend("chip:npu:3", {"device": "cpu"}, installation=here)
    assert len(chip.calls) == 2


def test_options_cannot_be_changed_by_the_plugin():
    class Greedy(FakePlugin):
        @hookimpl
        def open_backend(self, device, options):
            options["threads"] = 0
            return FakeBackend()

    mine = {"threads": 4}
    with pytest.raises(BackendUnavailable, match="TypeError"):
        open_backend("chip", mine, installation=installation(chip=Greedy([device("chip")])))
    assert mine == {"threads": 4}


def test_a_plugins_own_refusal_reaches_the_caller_as_it_is():
    refusal = BackendUnavailable("the device is used by process 4711")
    with pytest.raises(BackendUnavailable) as error:
        open_backend("chip", installation=installation(chip=plugin(refusal)))
    assert error.value is refusal


@pytest.mark.parametrize("raised", [RuntimeError("error 803"), SystemExit("error 803"), BackendFault("error 803")])
def test_any_other_error_becomes_a_refusal_with_the_error_behind_it(raised):
    with pytest.raises(BackendUnavailable, match=r"backend 'chip' did not open: .*error 803") as error:
        open_backend("chip", installation=installation(chip=plugin(raised)))
    assert error.value.__cause__ is raised


def test_auto_does_not_hide_a_failure_behind_the_next_best():
    best = FakePlugin([device("best", priority=9)], opens=RuntimeError("error 803"))
    spare = plugin()
    with pytest.raises(BackendUnavailable, match="'best' did not open"):
        open_backend(installation=installation(best=best, chip=spare))
    assert spare.calls == []


@pytest.mark.parametrize("name", sorted(set(hook_names(BackendHooks)) - OPTIONAL_HOOKS))
def test_every_required_hook_is_missed_when_it_is_absent(name):
    inner = type("Incomplete", (FakeBackend,), {name: None})()
    with pytest.raises(ContractError, match=rf"'chip' breaks the contract: .* not implemented: {name}$"):
        open_backend(installation=installation(chip=plugin(inner)))


def test_what_may_be_left_out():
    assert {"operator_kernel", "graph_runner"} == OPTIONAL_HOOKS


def test_a_misspelt_backend_hook_is_an_error_and_what_was_opened_is_closed():
    class Misspelt(FakeBackend):
        @hookimpl
        def operator_kernels(self, name, spec):
            return None

    inner = Misspelt()
    with pytest.raises(ContractError, match="'operator_kernels', which is no hook; did you mean 'operator_kernel'"):
        open_backend(installation=installation(chip=plugin(inner)))
    assert inner.log == ["close"]


def test_a_wrong_argument_is_an_error():
    class Wrong(FakeBackend):
        @hookimpl
        def copy_blocks(self, cache, mapping):
            return None

    with pytest.raises(ContractError, match="mapping"):
        open_backend(installation=installation(chip=plugin(Wrong())))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"dtypes": ("float32",)}, "capabilities gave {'dtypes': ('float32',)}, not Capabilities"),
        (None, "capabilities gave None, not Capabilities"),
        (RuntimeError("not ready"), "capabilities failed: RuntimeError: not ready"),
    ],
)
def test_capabilities_of_the_wrong_kind_are_an_error_and_what_was_opened_is_closed(answer, reason):
    inner = FakeBackend(answer)
    with pytest.raises(ContractError) as error:
        open_backend(installation=installation(chip=plugin(inner)))
    assert str(error.value) == f"backend 'chip' breaks the contract: {reason}"
    assert inner.log == ["capabilities", "close"]


def test_a_plugin_that_opens_nothing_breaks_the_contract():
    class Empty(FakePlugin):
        @hookimpl
        def open_backend(self, device, options):
            return None

    with pytest.raises(ContractError, match="what open_backend of 'chip' gave is None"):
        open_backend(installation=installation(chip=Empty([device("chip")])))


def test_a_broken_close_does_not_hide_why_the_backend_was_closed():
    class Stuck(FakeBackend):
        @hookimpl
        def close(self):
            raise RuntimeError("stuck")

    with pytest.raises(ContractError, match="gave None, not Capabilities"):
        open_backend(installation=installation(chip=plugin(Stuck(capabilities=None))))


def test_two_open_backends_do_not_answer_for_each_other():
    one, two = FakeBackend(), FakeBackend()
    first = open_backend(installation=installation(chip=plugin(one)))
    open_backend(installation=installation(chip=plugin(two)))
    first.hook.synchronize()
    assert one.log == ["capabilities", "synchronize"]
    assert two.log == ["capabilities"]
