from __future__ import annotations

import dataclasses
import json

import pytest

from baseboard.discovery import BackendState
from baseboard.discovery.doctor import examine_backends
from core.discovery.fakes import FakePlugin, device, installation


def probed(devices):
    (report,) = examine_backends(installation(chip=FakePlugin(devices)))
    return report


def test_a_device_that_can_be_opened_makes_the_backend_available():
    report = probed([device("chip", reason="in use"), device("chip", 1)])
    assert report.state is BackendState.AVAILABLE
    assert report.reason is None
    assert [d.index for d in report.devices] == [0, 1]


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ([], "its probe found no device"),
        ([device("chip", reason="no driver:\n  libchip.so")], "no driver: libchip.so"),
        ([device("chip", reason="no driver"), device("chip", 1, reason="no driver")], "no driver"),
        ([device("chip", reason="in use"), device("chip", 1, reason="too old")], "cpu:0: in use; cpu:1: too old"),
    ],
)
def test_without_such_a_device_the_reasons_of_the_devices_are_the_reason(devices, reason):
    report = probed(devices)
    assert report.state is BackendState.LOADED
    assert report.reason == reason


def wrong(**changes):
    return [dataclasses.replace(device("chip"), **changes)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RuntimeError("error 803"), "RuntimeError: error 803"),
        (SystemExit(1), "SystemExit: 1"),
        (None, "it gave None, not a list of DeviceInfo"),
        ({"cpu": 0}, "it gave {'cpu': 0}, not a list of DeviceInfo"),
        (["cpu:0"], "it gave 'cpu:0' in place of a DeviceInfo"),
        (wrong(priority="high"), "DeviceInfo.priority is 'high', not int"),
        (wrong(priority=True), "DeviceInfo.priority is True, not int"),
        (wrong(available=None), "DeviceInfo.available is None, not bool"),
        (wrong(details=None), "DeviceInfo.details is None, not Mapping"),
        (wrong(backend="chop"), "DeviceInfo.backend is 'chop', but the entry point has the name 'chip'"),
        (wrong(available=False), "device cpu:0 is not available, and its reason is None"),
    ],
)
def test_a_probe_that_raises_or_answers_nonsense_is_a_reason(answer, reason):
    report = probed(answer)
    assert report.state is BackendState.LOADED
    assert report.devices == ()
    assert report.reason == f"probe_devices failed: {reason}"


def test_a_plugin_that_did_not_load_is_only_found():
    (report,) = examine_backends(installation(chip=ImportError("gone")))
    assert report.state is BackendState.FOUND
    assert report.reason == "import of chip.plugin failed: ImportError: gone"


def test_a_report_is_plain_data():
    odd = dataclasses.replace(device("chip"), details={"driver": 570, 3: None})
    assert json.loads(json.dumps(probed([odd]).as_dict())) == {
        "name": "chip",
        "found": True,
        "loaded": True,
        "available": True,
        "reason": None,
        "contract_version": "1.0",
        "sources": [{"distribution": "baseboard-chip", "version": "0.3.0", "entry_point": "chip.plugin"}],
        "devices": [
            {
                "backend": "chip",
                "device_type": "cpu",
                "index": 0,
                "name": "chip chip 0",
                "arch": "v1",
                "total_memory": 1073741824,
                "available": True,
                "reason": None,
                "priority": 0,
                "details": {"driver": "570", "3": "None"},
            }
        ],
    }
