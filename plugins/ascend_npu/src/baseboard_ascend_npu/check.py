"""``python -m baseboard_ascend_npu.check``: asks a real NPU what the documents leave open, and tries every way once.

Exits with 0 when the ways that the backend uses agree with attention computed in float32 from torch's operators, with 1
when one does not, and with 2 where there is no NPU to ask.
"""

from __future__ import annotations

import sys

import baseboard_ascend_npu as plugin


def main() -> int:
    """Print what was found; the exit code."""
    devices = plugin.probe_devices()
    usable = [device for device in devices if device.available]
    if not usable:
        print(f"no NPU to ask: {devices[0].reason}")
        return 2
    backend = plugin.open_backend(usable[0], {})
    from baseboard_ascend_npu.backend import AscendBackend
    from baseboard_ascend_npu.findings import findings

    assert isinstance(backend, AscendBackend)
    failed = False
    for finding in findings(backend):
        failed = failed or finding.failed
        print(f"{'FAILED  ' if finding.failed else ''}{finding.question}: {finding.answer}")
    backend.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
