"""`make campaign`: kills, damaged files, full disks, lost workers. See __main__.py."""

from __future__ import annotations

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The generator's modules import each other by bare name, as scripts do.
sys.path.append(str(ROOT / "data"))
