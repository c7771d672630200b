"""Stands for the project's: a directory's file in a moment."""
