"""From explained images to one self-contained page: ``ReportWriter``, and what it is given."""

from vitshap.report.entries import Explained, Failed, Summary
from vitshap.report.patches import Patch, patches
from vitshap.report.writer import ReportWriter

__all__ = ["Explained", "Failed", "Patch", "ReportWriter", "Summary", "patches"]
