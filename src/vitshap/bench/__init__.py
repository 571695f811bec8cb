"""Measurements as commands: ratios within one run, with the limits of the machine beside them."""
