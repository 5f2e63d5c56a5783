"""docs/hooks.md has a section for every hook, with exactly its arguments, and no section for anything else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from baseboard.contract import BackendHooks, DiscoveryHooks
from baseboard.discovery.hookcheck import OPTIONAL_HOOKS, hook_names
from baseboard.scheduling import SchedulingHooks

DOCUMENT = Path(__file__).parents[2] / "docs" / "hooks.md"
CHAPTERS = {"Discovery hooks": DiscoveryHooks, "Backend hooks": BackendHooks, "Scheduling hooks": SchedulingHooks}
HOOKS = [(chapter, name) for chapter, hooks in CHAPTERS.items() for name in hook_names(hooks)]


def split(text, level):
    """Title to body of each part of ``text`` with a heading of this level."""
    parts = re.split(rf"^{'#' * level} (.+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def sections(chapter):
    return split(split(DOCUMENT.read_text(encoding="utf-8"), 2)[chapter], 3)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_sections_are_the_hooks(chapter):
    assert set(sections(chapter)) == set(hook_names(CHAPTERS[chapter]))


@pytest.mark.parametrize(("chapter", "name"), HOOKS)
def test_a_section_gives_the_exact_signature_and_says_when_and_what(chapter, name):
    signature = inspect.signature(getattr(CHAPTERS[chapter], name))
    arguments = [f"{p.name}: {p.annotation}" for p in signature.parameters.values() if p.name != "self"]
    section = sections(chapter)[name]
    assert section.splitlines()[2] == f"`{name}({', '.join(arguments)}) -> {signature.return_annotation}`"
    assert "* **When:** " in section
    assert "* **Guarantee:** " in section


@pytest.mark.parametrize(("chapter", "name"), HOOKS)
def test_a_section_says_whether_the_hook_is_optional(chapter, name):
    assert ("\n  Optional.\n" in sections(chapter)[name]) == (name in OPTIONAL_HOOKS)
