"""Rivals of Shapley values: each is one file, found by its name in ``vitshap.methods``."""
