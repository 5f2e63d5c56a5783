from __future__ import annotations

import pytest

from baseboard.contract import BackendUnavailable
from baseboard.discovery import choose, examine
from baseboard.discovery.doctor import examine_backends
from core.discovery.fakes import FakePlugin, device, installation


def reports(**devices):
    return examine_backends(installation(**{name: FakePlugin(found) for name, found in devices.items()}))


def test_auto_takes_the_highest_priority_among_the_available():
    here = reports(
        slow=[device("slow", priority=1)],
        fast=[device("fast", 0, priority=5), device("fast", 1, priority=7)],
        best=[device("best", priority=100, reason="no driver")],
    )
    choice = choose(here)
    assert (choice.backend.name, choice.device.index) == ("fast", 1)
    assert choice.why == "fast has the highest priority, 7, of 2 available backends"
    assert choice.options == {}


def test_equal_priorities_are_resolved_by_name_then_index_whatever_the_order():
    here = reports(
        zeta=[device("zeta", priority=5)], alpha=[device("alpha", 1, priority=5), device("alpha", priority=5)]
    )
    for order in (here, here[::-1]):
        choice = choose(order)
        assert (choice.backend.name, choice.device.index) == ("alpha", 0)
        assert choice.why == "alpha is the first by name of those with the highest priority, 5"


def test_the_only_one_available_is_said_to_be_that():
    choice = choose(reports(chip=[device("chip", priority=-3)], dead=[]))
    assert choice.why == "chip is the only backend available"


def test_auto_with_nothing_available_gives_every_reason():
    with pytest.raises(BackendUnavailable) as error:
        choose(reports(a=[], b=[device("b", reason="no driver")]))
    assert str(error.value) == "no backend is available: a: its probe found no device; b: no driver"
    with pytest.raises(BackendUnavailable, match="no backend is available: none is installed"):
        choose(())


def test_a_name_never_falls_back():
    here = reports(chip=[device("chip", reason="no driver")], other=[device("other")], third=[device("third")])
    with pytest.raises(BackendUnavailable) as error:
        choose(here, "chip")
    assert str(error.value) == "backend 'chip' cannot be used: no driver; available are: other, third"


def test_an_unknown_name_gives_what_is_installed_and_what_was_meant():
    here = reports(cuda=[device("cuda")], reference=[device("reference")])
    with pytest.raises(BackendUnavailable) as error:
        choose(here, "cdua")
    assert str(error.value) == "backend 'cdua' is not installed; did you mean cuda? installed are: cuda, reference"
    with pytest.raises(BackendUnavailable, match="backend '' is not installed; installed are: cuda, reference"):
        choose(here, "")


def test_an_index_picks_that_device():
    here = reports(chip=[device("chip", 0, priority=9), device("chip", 1), device("chip", 2, reason="in use")])
    assert choose(here, "chip").device.index == 0
    choice = choose(here, "chip:1")
    assert (choice.device.index, choice.why, choice.options) == (1, "chip:1 was asked for", {})
    with pytest.raises(BackendUnavailable, match="device 2 of backend 'chip' cannot be used: in use; available are: 0"):
        choose(here, "chip:2")
    for index in ("7", "-1"):
        with pytest.raises(BackendUnavailable, match=rf"no device {index}; it has: 0 \(chip chip 0\), 1"):
            choose(here, f"chip:{index}")


def test_any_other_suffix_is_the_plugins_to_understand():
    here = reports(reference=[device("reference")])
    choice = choose(here, "reference:cuda:0")
    assert choice.device.index == 0
    assert choice.options == {"device": "cuda:0"}


@pytest.mark.parametrize("wanted", ["auto:1", "auto:", "chip:"])
def test_half_a_choice_is_refused(wanted):
    with pytest.raises(BackendUnavailable, match="write auto, NAME, NAME:INDEX or NAME:DEVICE"):
        choose(reports(chip=[device("chip")]), wanted)


def test_the_doctor_says_what_auto_takes_or_why_nothing():
    report = examine(installation(chip=FakePlugin([device("chip")]), broken=ImportError("gone")))
    assert [b.name for b in report.backends] == ["broken", "chip"]
    assert report.choice.backend is report.backends[1]
    assert report.why == "chip is the only backend available"
    plain = report.as_dict()
    assert plain["contract_version"] == "1.0"
    assert plain["chosen"]["backend"] == "chip"
    assert plain["chosen"]["device"]["name"] == "chip chip 0"

    nothing = examine(installation(broken=ImportError("gone")))
    assert nothing.choice is None
    assert nothing.as_dict()["chosen"] is None
    assert nothing.why == "no backend is available: broken: import of broken.plugin failed: ImportError: gone"
