"""Networks that output Shapley values in one forward pass."""
