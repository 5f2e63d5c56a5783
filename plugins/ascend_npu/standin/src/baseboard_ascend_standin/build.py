"""Compiles the stand-in for CANN's C library. Needs gcc, nm and strings.

The symbols that the stand-in must have are read off the installed torch_npu, so nothing here is tied to one version.
What ``csrc`` does not define is generated: it counts its calls and answers success.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

SOURCES: Final = Path(__file__).parent / "csrc"

#: The library that everything is in.
FIRST: Final = "libascendcl.so"
#: CANN's libraries that torch_npu is linked against or loads by name; each only leads to the first.
_OTHERS: Final = (
    "libhccl", "libacl_op_compiler", "libge_runner", "libgraph", "libacl_tdt_channel", "libatb",
    "libfmk_parser", "libascend_protobuf", "libopapi", "libruntime",
)  # fmt: skip
_LINKED: Final = re.compile(
    r"^(acl|Hccl|rt[A-Z]|Msprof|_ZNK?2ge|_ZNK?3atb|_Z[A-Z0-9]*N?2ge|_ZTI(?!N10)|_ZTV(?!N10)|[a-z]+_s$)"
)
_LOOKED_UP: Final = re.compile(
    r"^(aclrt|aclmdl|aclop|aclprof|aclsys|aclGet|aclSet|aclCreate|aclDestroy|Hccl|rt[A-Z])\w+$"
)
#: Optional, and answering success to these promises what is not there.
_ABSENT: Final = frozenset({"aclrtGetStreamResLimit", "aclrtGetDeviceResLimit"})
_COMPILE: Final = ("gcc", "-w", "-O1", "-fPIC", "-fno-builtin", "-shared")


def build(cache: Path) -> Path:
    """The folder in ``cache`` that holds the libraries; made only when sources or torch_npu have changed.

    Several processes may ask at once: each makes its own, and the first to be done is everybody's.
    """
    texts = [path.read_bytes() for path in (*sorted(SOURCES.iterdir()), Path(__file__))]
    digest = hashlib.sha256(b"".join([*texts, version("torch_npu").encode()])).hexdigest()[:16]
    folder = cache / f"ascend-standin-{digest}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=cache) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            _compile(made)
            with suppress(OSError):  # somebody else's is there
                made.rename(folder)
    return folder


def libraries(folder: Path) -> list[Path]:
    """The libraries, in an order in which they can be loaded."""
    return [folder / FIRST, *(folder / f"{name}.so" for name in _OTHERS)]


def _compile(folder: Path) -> None:
    defined = set(re.findall(r"\b(acl\w+|Hccl\w+|rt[A-Z]\w+)\(", "".join(p.read_text() for p in SOURCES.iterdir())))
    names = sorted(set(_needed()) - defined - _ABSENT)
    functions = [f'long {name}() {{ return standin_count("{name}"); }}' for name in names]
    rest = folder / "rest.c"
    rest.write_text("\n".join(["long standin_count(const char*);", *functions]))
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    first = str(folder / FIRST)
    _run(*_COMPILE, f"-Wl,-soname,{FIRST}", "-o", first, *sources, str(rest))
    for name in _OTHERS:
        target = str(folder / f"{name}.so")
        nothing = ("-x", "c", "/dev/null", "-x", "none")
        _run(*_COMPILE, f"-Wl,-soname,{name}.so", "-Wl,--no-as-needed", "-o", target, *nothing, first)


def _needed() -> Iterator[str]:
    """Symbols that the wheel's libraries are linked against, and those that they look up by name."""
    spec = find_spec("torch_npu")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    for library in package.rglob("*.so"):
        for line in _run("nm", "-D", "--undefined-only", str(library)).splitlines():
            name = line.split()[-1].partition("@")[0]
            if _LINKED.match(name) and name.isidentifier():
                yield name
    for line in _run("strings", "-n", "6", str(package / "lib" / "libtorch_npu.so")).splitlines():
        if _LOOKED_UP.match(line) and not line.startswith("aclnn"):
            yield line


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
