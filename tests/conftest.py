"""What all tests share."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from vitshap.compat import make_torchvision_importable

make_torchvision_importable()
