"""Stands for a script that makes a directory's files in a moment."""
