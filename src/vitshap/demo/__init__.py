"""``vitshap demo``: photos explained in seconds, then a training on the embedded digits, in minutes on a CPU.

With 4 x 4 = 16 patches, all 65,536 coalitions of a digit can be evaluated, so its Shapley values are exact: the trained
explainer and every other method are compared with them, and Theorem 1 is checked.
"""

from vitshap.demo.command import main, run

__all__ = ["main", "run"]
