"""Certificates: how good a stored explainer is on images that it has not seen, in numbers and in plain words."""

from vitshap.certifying.certificate import Certificate, Settings, certify
from vitshap.certifying.verdict import Verdict, judge

__all__ = ["Certificate", "Settings", "Verdict", "certify", "judge"]
