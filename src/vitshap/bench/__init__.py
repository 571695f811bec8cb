"""Measurements behind ``vitshap bench``."""
