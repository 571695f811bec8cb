"""Baselines that Shapley values are compared with; ``vitshap.methods.registry`` lists them by name."""
