from __future__ import annotations

import pytest

from baseboard.contract import ContractError
from baseboard.discovery.handshake import ContractVersion, check_version


@pytest.mark.parametrize(
    ("plugin", "core", "accepted"),
    [
        ("1.0", "1.0", True),
        ("1.1", "1.0", False),
        ("1.0", "1.1", True),
        ("1.1", "1.1", True),
        ("1.0", "1.2", False),
        ("1.9", "1.10", True),
        ("1.10", "1.9", False),
        ("1.9", "2.0", False),
        ("2.0", "1.9", False),
        ("0.9", "1.0", False),
    ],
)
def test_a_core_accepts_its_own_minor_and_the_one_before(plugin, core, accepted):
    def check():
        check_version(ContractVersion.parse(plugin), ContractVersion.parse(core), "baseboard-chip")

    if accepted:
        check()
    else:
        with pytest.raises(ContractError):
            check()


@pytest.mark.parametrize(("plugin", "core", "who"), [("2.0", "1.1", "baseboard"), ("1.0", "1.2", "baseboard-chip")])
def test_a_mismatch_names_both_sides_and_whom_to_upgrade(plugin, core, who):
    with pytest.raises(ContractError) as error:
        check_version(ContractVersion.parse(plugin), ContractVersion.parse(core), "baseboard-chip")
    assert f"baseboard-chip is written for contract {plugin}" in str(error.value)
    assert f"this core has contract {core}" in str(error.value)
    assert str(error.value).endswith(f"upgrade {who}")


@pytest.mark.parametrize("text", ["1", "1.0.0", "v1.0", "", " 1.0", "1.0\n", "\uff11.\uff10", None, 1.0, ("1", "0")])
def test_anything_but_major_dot_minor_is_refused(text):
    with pytest.raises(ContractError, match=r"not text such as '1\.0'"):
        ContractVersion.parse(text)
