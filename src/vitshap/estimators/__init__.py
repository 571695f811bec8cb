"""Shapley values from evaluations of a game: exact, by regression (KernelSHAP) and by permutations, with errors."""
