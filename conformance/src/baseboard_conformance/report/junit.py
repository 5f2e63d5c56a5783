"""JUnit XML, for the systems that read nothing else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from baseboard_conformance.outcome import Outcome
from baseboard_conformance.report.document import Document

#: Characters that XML 1.0 cannot hold: a backend may have printed them.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(document: Document) -> str:
    results = document.results
    bad = [r for r in results if r.outcome.bad or r.outcome is Outcome.XPASS]
    suite = ET.Element(
        "testsuite",
        name=f"baseboard-conformance {document.plain['spec']} {document.plain['profile']}",
        tests=str(len(results)),
        failures=str(len(bad)),
        errors=str(sum(r.outcome is Outcome.ERROR for r in results)),
        skipped=str(sum(r.outcome in {Outcome.NOT_CLAIMED, Outcome.WAIVED} for r in results)),
        time=f"{document.plain['duration']:.3f}",
        timestamp=str(document.plain["started"]),
    )
    for result in results:
        group, _, rest = result.case.partition("/")
        case = ET.SubElement(suite, "testcase", classname=group, name=rest, time=f"{result.duration:.3f}")
        text = _NOT_XML.sub("\ufffd", result.message)
        first = text.partition("\n")[0]
        if result.outcome in {Outcome.NOT_CLAIMED, Outcome.WAIVED}:
            ET.SubElement(case, "skipped", message=f"{result.outcome.value}: {result.waiver or first}")
        elif result.outcome is Outcome.ERROR:
            ET.SubElement(case, "error", message=first).text = text
        elif result.outcome is not Outcome.PASS:
            ET.SubElement(case, "failure", type=result.outcome.value, message=first).text = text
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"
