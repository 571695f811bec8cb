"""What all tests share."""

from hypothesis import settings

from vitshap.compat import make_torchvision_importable

make_torchvision_importable()
# `make test` tries the same cases every time, so that a red run means a change; `make test-long` looks for new ones.
settings.register_profile("repeatable", derandomize=True)
