"""What all tests share."""

from vitshap.compat import make_torchvision_importable

make_torchvision_importable()
