"""Extras with dependencies of their own: Apache Beam, plots, the demo's text."""
