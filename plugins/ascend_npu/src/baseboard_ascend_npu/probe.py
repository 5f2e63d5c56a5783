"""The light probe: what keeps NPUs from being used here, or which there are."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from types import ModuleType
from typing import Final, cast

from baseboard.contract import DeviceInfo
from baseboard_ascend_npu.chips import chip
from baseboard_ascend_npu.driver import LIBRARY, Driver, DriverMissing, ask_driver
from baseboard_ascend_npu.installation import Installation, read_installation

#: Above the reference backend and CPU kernels; a machine has no two kinds of accelerator that one torch could drive.
PRIORITY: Final = 100
#: torch's switch for importing torch_npu by itself, when torch is imported.
AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
VISIBLE: Final = "ASCEND_RT_VISIBLE_DEVICES"


def find_npus(environment: MutableMapping[str, str] | None = None) -> list[DeviceInfo]:
    """One entry for each NPU, or one that says what is missing.

    Where torch_npu is installed but cannot be loaded, others that import it where they find it would fail, for every
    backend: torch by itself, and transformers. So torch is told not to, in this process and its children, and in this
    process torch_npu is not found any more.
    """
    variables = os.environ if environment is None else environment
    installation = read_installation(variables)
    obstacle = next(installation.obstacles(), None)
    driver = None
    if obstacle is None:
        try:
            driver = ask_driver()
        except DriverMissing as error:
            obstacle = f"CANN is not installed or not on the library path: {error}; source CANN's set_env.sh"
    if driver is not None:
        return _devices(installation, driver, variables)
    if installation.torch_npu is not None:
        variables[AUTOLOAD] = "0"
        _hide("torch_npu")
    return [_unavailable(installation, "NPU", "", obstacle or f"{LIBRARY} gave no answer")]


def _hide(package: str) -> None:
    """Let a package that is not imported yet be one that is not installed, for whoever looks for it."""
    cast("dict[str, ModuleType | None]", sys.modules).setdefault(package, None)


def _devices(installation: Installation, driver: Driver, variables: MutableMapping[str, str]) -> list[DeviceInfo]:
    if driver.num_devices == 0:
        return [_unavailable(installation, driver.soc, driver.soc, _why_none(variables.get(VISIBLE)))]
    found = chip(driver.soc)
    return [
        DeviceInfo(
            backend="ascend_npu",
            device_type="npu",
            index=index,
            name=f"{found.soc} ({found.family})",
            arch=found.soc,
            total_memory=0,  # only an opened device tells
            available=found.obstacle is None,
            reason=found.obstacle,
            priority=PRIORITY,
            details=_details(installation),
        )
        for index in range(driver.num_devices)
    ]


def _why_none(visible: str | None) -> str:
    if visible is None:
        return "the driver sees no NPU: check the driver with npu-smi info"
    if not visible.strip():
        return f"{VISIBLE} is empty, which hides all NPUs: unset it, or name some, as 0,1"
    return f"{VISIBLE}={visible} lets no NPU through: unset it, or name some that npu-smi info lists, as 0,1"


def _unavailable(installation: Installation, name: str, arch: str, reason: str) -> DeviceInfo:
    return DeviceInfo(
        backend="ascend_npu",
        device_type="npu",
        index=0,
        name=name,
        arch=arch,
        total_memory=0,
        available=False,
        reason=reason,
        details=_details(installation),
    )


def _details(installation: Installation) -> dict[str, str]:
    return {
        "torch": installation.torch or "not installed",
        "torch_npu": installation.torch_npu or "not installed",
        "CANN": installation.cann or "version not known: ASCEND_HOME_PATH leads to no record of it",
        "proof": "run against torch_npu 2.13 on emulated CANN; not yet run on hardware",
    }
