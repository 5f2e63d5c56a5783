from __future__ import annotations

import types

import numpy as np
import pytest

from baseboard.contract import BackendFault, BackendUnavailable, ContractError, hookimpl
from baseboard.discovery import Installation, examine, open_backend
from core.discovery.fakes import FakeBackend, FakePlugin, device, installation, source

PAIRS = np.array([[1, 2]], dtype=np.int64)


class Recorder:
    """Sees every call of two hooks, and what came of it."""

    def __init__(self, seen=None, mark=""):
        self.seen = [] if seen is None else seen
        self.mark = mark

    @hookimpl(wrapper=True)
    def swap_blocks(self, source, pairs):
        self.seen.append((f"{self.mark}swap", source, pairs.tolist()))
        result = yield
        self.seen.append((f"{self.mark}swapped", result))
        return result

    @hookimpl(wrapper=True)
    def attention_kernel(self, attention):
        kernel = yield
        self.seen.append((f"{self.mark}kernel", attention))
        return ("wrapped", kernel)


def here(instruments=None, active=(), inner=None):
    chip = FakePlugin([device("chip")], opens=inner)
    return installation(chip=chip, instruments=instruments, active=active)


def test_an_instrument_sees_every_call_and_may_change_the_result():
    recorder, inner = Recorder(), FakeBackend()
    backend = open_backend(instruments=[recorder], installation=here(inner=inner))
    for source_cache in (10, 20):
        backend.hook.swap_blocks(source=source_cache, destination=0, pairs=PAIRS)
    assert [backend.hook.attention_kernel(attention=layer, kv=None) for layer in range(3)] == [
        ("wrapped", ("kernel", layer)) for layer in range(3)
    ]
    transfer = ("transfer", [[1, 2]])
    assert recorder.seen == [
        ("swap", 10, [[1, 2]]),
        ("swapped", transfer),
        ("swap", 20, [[1, 2]]),
        ("swapped", transfer),
        ("kernel", 0),
        ("kernel", 1),
        ("kernel", 2),
    ]
    assert inner.log == ["capabilities", "swap_blocks", "swap_blocks", *["attention_kernel"] * 3]


def test_an_instrument_can_inject_a_fault():
    class Saboteur:
        @hookimpl(wrapper=True)
        def swap_blocks(self):
            raise BackendFault("injected")
            yield

    inner = FakeBackend()
    backend = open_backend(instruments=[Saboteur()], installation=here(inner=inner))
    with pytest.raises(BackendFault, match="injected"):
        backend.hook.swap_blocks(source=0, destination=1, pairs=PAIRS)
    assert "swap_blocks" not in inner.log


def test_an_installed_instrument_is_not_active_unless_it_is_named():
    recorder = Recorder()
    backend = open_backend(installation=here({"trace": recorder}))
    backend.hook.swap_blocks(source=0, destination=1, pairs=PAIRS)
    assert recorder.seen == []


@pytest.mark.parametrize("how", ["environment", "caller", "both"])
def test_a_name_activates_it_once(how):
    recorder = Recorder()
    active = ("trace",) if how != "caller" else ()
    named = ["trace"] if how != "environment" else []
    backend = open_backend(instruments=named, installation=here({"trace": recorder}, active))
    backend.hook.attention_kernel(attention="a", kv=None)
    assert recorder.seen == [("kernel", "a")]


def test_the_first_named_is_the_outermost():
    seen = []
    instruments = {"inner": Recorder(seen, "inner "), "outer": Recorder(seen, "outer ")}
    backend = open_backend(installation=here(instruments, ("outer", "inner")))
    backend.hook.swap_blocks(source=0, destination=1, pairs=PAIRS)
    assert [entry[0] for entry in seen] == ["outer swap", "inner swap", "inner swapped", "outer swapped"]


def test_a_class_or_function_makes_one_instrument_for_each_backend():
    made = []

    class Counted(Recorder):
        def __init__(self):
            super().__init__()
            made.append(self)

    def factory():
        return Counted()

    for value in (Counted, factory):
        made.clear()
        installed = here({"trace": value}, ("trace",))
        first, _second = open_backend(installation=installed), open_backend(installation=installed)
        first.hook.attention_kernel(attention="a", kv=None)
        assert [recorder.seen for recorder in made] == [[("kernel", "a")], []]


def test_a_module_is_an_instrument():
    module = types.ModuleType("trace")
    seen = []

    @hookimpl(wrapper=True)
    def synchronize():
        seen.append("synchronize")
        return (yield)

    module.synchronize = synchronize
    backend = open_backend(installation=here({"trace": module}, ("trace",)))
    backend.hook.synchronize()
    assert seen == ["synchronize"]


class Misspelt:
    @hookimpl(wrapper=True)
    def swap_block(self):
        return (yield)


class Usurper:
    @hookimpl
    def copy_blocks(self):
        return None


class NoGenerator:
    @hookimpl(wrapper=True)
    def copy_blocks(self):
        return None


def nothing():
    return None


BROKEN = [
    (Misspelt, "it implements 'swap_block', which is no hook; did you mean"),
    (Usurper, "an instrument may only wrap hooks, but it answers copy_blocks: mark them @hookimpl(wrapper=True)"),
    (NoGenerator, "function is not a generator function"),
    (nothing, "trace is None"),
    (ImportError("no tracer"), "ImportError: no tracer"),
    (SystemExit(2), "SystemExit: 2"),
]


@pytest.mark.parametrize(("value", "reason"), BROKEN)
def test_a_broken_instrument_is_a_warning_unless_it_is_named(value, reason):
    installed = here({"trace": value, "good": Recorder()})
    report = examine(installed)
    assert report.choice.backend.name == "chip"
    good, trace = report.instruments
    assert good.reason is None
    assert reason in trace.reason
    assert report.warnings == (f"instrument 'trace' cannot be used: {trace.reason}",)
    open_backend(installation=installed)
    with pytest.raises(BackendUnavailable, match="instrument 'trace' cannot be used: ") as error:
        open_backend(instruments=["trace"], installation=installed)
    assert reason in str(error.value)
    with pytest.raises(BackendUnavailable, match="instrument 'trace' cannot be used: "):
        open_backend(installation=here({"trace": value}, ("trace",)))


def test_a_broken_instrument_keeps_the_device_closed():
    chip = FakePlugin([device("chip")])
    with pytest.raises(ContractError, match="'swap_block', which is no hook"):
        open_backend(instruments=[Misspelt()], installation=installation(chip=chip))
    assert chip.calls == []


def test_the_same_object_twice_is_an_error():
    recorder = Recorder()
    with pytest.raises(ContractError, match="already registered"):
        open_backend(instruments=[recorder, recorder], installation=here())


def test_an_unknown_name_lists_the_installed():
    with pytest.raises(BackendUnavailable, match="instrument 'trase' is not installed; installed are: trace"):
        open_backend(instruments=["trase"], installation=here({"trace": Recorder()}))
    assert examine(here({"trace": Recorder()}, ("trase",))).warnings == ("instrument 'trase' is not installed",)


def test_two_instruments_with_one_name_are_both_unusable():
    clash = Installation(
        backends=(source("chip", FakePlugin([device("chip")])),),
        instruments=(source("trace", Recorder(), distribution="a"), source("trace", Recorder(), distribution="b")),
    )
    (trace,) = examine(clash).instruments
    assert trace.reason.startswith("2 plugins have the name 'trace': a 0.3.0 (trace.plugin) and b 0.3.0")
    with pytest.raises(BackendUnavailable, match="uninstall all but one"):
        open_backend(instruments=["trace"], installation=clash)


def test_the_report_of_an_instrument_is_plain_data():
    (plain,) = examine(here({"trace": Recorder()}, ("trace",))).as_dict()["instruments"]
    origin = {"distribution": "baseboard-trace", "version": "0.3.0", "entry_point": "trace.plugin"}
    assert plain == {"name": "trace", "active": True, "reason": None, "sources": [origin]}
