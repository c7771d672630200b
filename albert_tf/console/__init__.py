"""How a script starts and ends: settings, quiet imports, errors in a line, and its figures."""
