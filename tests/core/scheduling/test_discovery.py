"""Scheduling plugins: one that is broken is recorded with its reason and harms nobody; names mean what is installed."""

from __future__ import annotations

import pytest

from baseboard.contract.errors import ContractError, Unsupported
from baseboard.discovery import Installation, examine_scheduling
from baseboard.scheduling import SCHEDULING_VERSION, ExtensionParts, PolicyParts, hookimpl
from baseboard.testing import Simulation
from core.discovery.fakes import source
from core.scheduling.plugins import (
    Arrivals,
    ConnectorPlugin,
    ExtensionPlugin,
    PolicyPlugin,
    PreemptionPlugin,
    installed,
    registry,
)


class Misspelt(PolicyPlugin):
    @hookimpl
    def polisy(self) -> None: ...


class FromTheFuture(PolicyPlugin):
    @hookimpl
    def scheduling_version(self) -> str:
        return "2.0"

    @hookimpl
    def policy(self, settings, a_new_argument) -> None: ...


class OddVersion(PolicyPlugin):
    @hookimpl
    def scheduling_version(self) -> float:
        return 1.0


class Nothing:
    @hookimpl
    def scheduling_version(self) -> str:
        return "1.0"


class Unversioned:
    @hookimpl
    def policy(self) -> PolicyParts:
        return PolicyParts(Arrivals())


BROKEN = {
    "no_import": (
        ModuleNotFoundError("No module named 'solver'"),
        "import of no_import.plugin failed: ModuleNotFoundError: No module named 'solver'",
    ),
    "misspelt": (Misspelt(), "it implements 'polisy', which is no hook; did you mean 'policy'?"),
    "future": (
        FromTheFuture(),
        "baseboard-future is written for scheduling hooks 2.0, this core has scheduling hooks 1.0 and accepts 1.0: "
        "upgrade baseboard",
    ),
    "odd": (OddVersion(), "scheduling_version() gave 1.0, not text such as '1.0'"),
    "nothing": (Nothing(), "it implements none of extension, policy, preemption, prefix_source"),
    "unversioned": (Unversioned(), "required hooks are not implemented: scheduling_version"),
    "fcfs": (
        PolicyPlugin(),
        "'fcfs' is the core's own name, and baseboard-fcfs 0.3.0 (fcfs.plugin) claims it: it needs another",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_plugin_is_its_reason(name: str) -> None:
    plugin, reason = BROKEN[name]
    reports = {
        report.name: report for report in examine_scheduling(installed(**{name: plugin, "sound": PolicyPlugin()}))
    }
    assert reports[name].reason == reason
    assert reports[name].plugin is None
    assert reports["sound"].reason is None
    assert (
        Simulation(8, 4, policy="sound", registry=registry(**{name: plugin, "sound": PolicyPlugin()})).step().ids == ()
    )


def test_two_plugins_with_one_name_are_both_named() -> None:
    twice = (source("fair", PolicyPlugin(), distribution="left"), source("fair", PolicyPlugin(), distribution="right"))
    (report,) = examine_scheduling(Installation(scheduling=twice))
    assert report.reason == (
        "2 plugins have the name 'fair': left 0.3.0 (fair.plugin) and right 0.3.0 (fair.plugin); uninstall all but one"
    )


def test_a_sound_plugin_says_what_it_offers() -> None:
    class Both(PolicyPlugin, PreemptionPlugin):
        pass

    (report,) = examine_scheduling(installed(both=Both()))
    assert (report.offers, report.version) == (("policy", "preemption"), SCHEDULING_VERSION)
    assert report.as_dict() == {
        "name": "both",
        "offers": ["policy", "preemption"],
        "scheduling_version": "1.0",
        "reason": None,
        "sources": [{"distribution": "baseboard-both", "version": "0.3.0", "entry_point": "both.plugin"}],
    }


PLUGINS = {
    "broken": ImportError("no"),
    "quiet_hours": ExtensionPlugin(),
    "fair": PolicyPlugin(),
    "lazy": PreemptionPlugin(None),
    "far": ConnectorPlugin(None),
}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"policy": "fare"}, "policy='fare' is unknown; known are aging, fair, fcfs, prefill_first, priority"),
        ({"policy": "quiet_hours"}, "policy='quiet_hours' is unknown; known are aging, fair, fcfs"),
        ({"preemption": "lasy"}, "preemption='lasy' is unknown; known are auto, lazy, recompute, swap"),
        ({"extensions": ["fair"]}, "extension='fair' is unknown; known are quiet_hours"),
        ({"connector": "near"}, "connector='near' is unknown; known are far"),
    ],
)
def test_an_unknown_name_says_which_are_known_and_what_failed(asked: dict[str, str], said: str) -> None:
    with pytest.raises(Unsupported) as refused:
        Simulation(8, 4, registry=registry(**PLUGINS), **asked)
    assert said in str(refused.value)
    assert "; broken cannot be used: import of broken.plugin failed: ImportError: no" in str(refused.value)


def test_the_name_of_a_broken_plugin_says_why() -> None:
    with pytest.raises(Unsupported, match=r"^policy='broken' cannot be used: import of broken.plugin failed"):
        Simulation(8, 4, policy="broken", registry=registry(**PLUGINS))


def test_all_unknown_names_are_named_at_once() -> None:
    with pytest.raises(Unsupported) as refused:
        Simulation(8, 4, policy="a", preemption="b", registry=registry())
    assert [reason.split(" is ")[0] for reason in refused.value.reasons] == ["policy='a'", "preemption='b'"]


class Raising(PolicyPlugin):
    @hookimpl
    def policy(self) -> PolicyParts:
        raise KeyError("tariff")


@pytest.mark.parametrize(
    ("plugin", "asked", "said"),
    [
        (Raising(), {"policy": "x"}, r"scheduling plugin 'x': policy\(\) cannot be used: KeyError: 'tariff'"),
        (PolicyPlugin(object()), {"policy": "x"}, r"policy\(\) cannot be used: <object.*> has no method key"),
        (PolicyPlugin(order=3), {"policy": "x"}, "3 has no method serve"),
        (PolicyPlugin(limits=[3]), {"policy": "x"}, "3 has no method clip"),
        (ExtensionPlugin(gates=[3]), {"extensions": ["x"]}, "3 has no method check"),
        (ExtensionPlugin(observers=[3]), {"extensions": ["x"]}, "3 has no method begin_step and no method admitted"),
        (ExtensionPlugin(stops=[3]), {"extensions": ["x"]}, "3 has no method check"),
        (PreemptionPlugin(None), {"preemption": "x"}, "None has no method choose"),
        (ConnectorPlugin(3), {"connector": "x"}, "3 has no method find and no method begin"),
    ],
)
def test_a_hook_that_gives_no_such_part_is_refused_when_it_is_asked_for(
    plugin: object, asked: dict[str, str], said: str
) -> None:
    with pytest.raises(ContractError, match=said):
        Simulation(8, 4, registry=registry(x=plugin), **asked)


def test_a_policy_that_gives_an_extension_is_told_so() -> None:
    class Confused(PolicyPlugin):
        @hookimpl
        def policy(self) -> ExtensionParts:
            return ExtensionParts()

    with pytest.raises(ContractError, match=r"it gave ExtensionParts\(.*\), not PolicyParts"):
        Simulation(8, 4, policy="x", registry=registry(x=Confused()))


def test_parts_are_made_for_the_scheduler_they_serve() -> None:
    """Each scheduler asks anew, and tells its limits and costs."""
    seen = []

    class Asking(PolicyPlugin):
        @hookimpl
        def policy(self, settings) -> PolicyParts:
            seen.append((settings.config.max_num_seqs, settings.config.block_size, settings.costs.seconds_per_token))
            return PolicyParts(Arrivals())

    found = registry(x=Asking())
    assert seen == []
    for places in (3, 5):
        Simulation(8, 4, policy="x", max_num_seqs=places, registry=found)
    assert seen == [(3, 4, 1e-4), (5, 4, 1e-4)]
