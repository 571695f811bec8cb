"""``vitshap demo``: all there is, on the embedded digits and two photos, in minutes on a CPU.

With 4 x 4 = 16 patches all 65,536 coalitions of a digit can be asked about, so its Shapley values are exact: what the
explainer learned is compared with the truth, and so is what Theorem 1 says of it.
"""

from vitshap.demo.command import main, run

__all__ = ["main", "run"]
