"""Experiments: how good explainers and estimates are, reported as tables."""
