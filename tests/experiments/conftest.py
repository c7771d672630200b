"""Studies are TOML files, which Python reads from 3.11 on: before, there is nothing to test."""

import sys

collect_ignore_glob = ["test_*.py"] if sys.version_info < (3, 11) else []
