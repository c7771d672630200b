"""Shared by all commands: flags from settings, logs, errors in one line, TF_CONFIG, figures."""
