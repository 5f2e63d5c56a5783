"""A second plugin with the name ``neighbour``. Were it imported, its mark on stderr would show it."""

from __future__ import annotations

import sys

sys.stderr.write("same_name was imported\n")
