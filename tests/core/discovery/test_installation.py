from __future__ import annotations

import importlib_metadata
import pytest

from baseboard.discovery import read_installation


def distribution(folder, name, entry_points, version="1.0"):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    return importlib_metadata.PathDistribution(info)


CUDA = (
    "[baseboard.backends]\ncuda = chip_cuda.plugin\n[baseboard.instruments]\ntrace = chip_cuda:Trace\n[other]\na = b\n"
)


def test_entry_points_are_read_with_the_distribution_that_brought_them(tmp_path):
    here = read_installation([distribution(tmp_path, "chip", CUDA)], {})
    (backend,) = here.backends
    assert backend.origin == "chip 1.0 (chip_cuda.plugin)"
    assert (backend.name, backend.value) == ("cuda", "chip_cuda.plugin")
    (instrument,) = here.instruments
    assert (instrument.name, instrument.value) == ("trace", "chip_cuda:Trace")
    with pytest.raises(ModuleNotFoundError, match="chip_cuda"):
        backend.load()


def test_a_distribution_with_malformed_entry_points_hides_no_other(tmp_path):
    malformed = distribution(tmp_path, "malformed", "[some.group]\nno equals sign\n")
    here = read_installation([malformed, distribution(tmp_path, "chip", CUDA)], {})
    assert [backend.name for backend in here.backends] == ["cuda"]
    (note,) = here.notes
    assert note.startswith("the entry points of malformed cannot be read: ")


def test_a_distribution_without_metadata_is_named_by_its_place(tmp_path):
    bare = distribution(tmp_path, "bare", CUDA)
    (tmp_path / "bare-1.0.dist-info" / "METADATA").unlink()
    (backend,) = read_installation([bare], {}).backends
    assert backend.name == "cuda"
    assert str(tmp_path) in backend.origin


def test_of_two_versions_on_the_path_the_first_counts(tmp_path):
    new = distribution(tmp_path / "new", "chip", CUDA, "2.0")
    old = distribution(tmp_path / "old", "chip", CUDA, "1.0")
    (backend,) = read_installation([new, old], {}).backends
    assert backend.version == "2.0"


@pytest.mark.parametrize(
    ("variables", "only", "active"),
    [
        ({}, None, ()),
        ({"BASEBOARD_BACKENDS": " ", "BASEBOARD_INSTRUMENTS": ","}, None, ()),
        ({"BASEBOARD_BACKENDS": "b, a,,b", "BASEBOARD_INSTRUMENTS": "t"}, ("b", "a"), ("t",)),
    ],
)
def test_the_environment_is_read_once_and_blank_is_unset(variables, only, active):
    here = read_installation([], variables)
    assert here.only_backends == only
    assert here.active_instruments == active


def test_the_built_in_backend_is_found_through_its_entry_point():
    found = {backend.name: backend for backend in read_installation(variables={}).backends}
    assert found["reference"].distribution == "baseboard"
    assert found["reference"].value == "baseboard.backends.reference"
