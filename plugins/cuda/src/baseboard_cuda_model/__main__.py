"""``python -m baseboard_cuda_model``."""

from __future__ import annotations

from baseboard_cuda_model import main

raise SystemExit(main())
