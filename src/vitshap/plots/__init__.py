"""Draw maps and curves: matplotlib figures for documents and files, PIL images for a report's many small pictures.

Figures are built directly, never through pyplot, so that drawing in a server or a loop leaves no open figure
behind, and are measured in inches before anything is placed, so that no text is cut off. matplotlib and seaborn
are imported only when they are needed.
"""

from vitshap.plots.charts import CurvePoints, curves_figure, training_curves
from vitshap.plots.colours import DEFAULT, LEVEL, UNIT_LABELS, Base, Look, Style, common_limit, symmetric_limit
from vitshap.plots.comparisons import (
    Band,
    Panel,
    average_curves,
    comparison_figure,
    error_curves,
    interval_figure,
    removal_curves,
    roar_curves,
    sensitivity_curves,
)
from vitshap.plots.figures import FORMATS, SOFTWARE, save
from vitshap.plots.maps import class_row, heatmap, method_grid
from vitshap.plots.pictures import Box, Picture, as_pixels, colour_scale_png, colours_png, overlay_png, thumbnail

__all__ = [
    "DEFAULT",
    "FORMATS",
    "LEVEL",
    "SOFTWARE",
    "UNIT_LABELS",
    "Band",
    "Base",
    "Box",
    "CurvePoints",
    "Look",
    "Panel",
    "Picture",
    "Style",
    "as_pixels",
    "average_curves",
    "class_row",
    "colour_scale_png",
    "colours_png",
    "common_limit",
    "comparison_figure",
    "curves_figure",
    "error_curves",
    "heatmap",
    "interval_figure",
    "method_grid",
    "overlay_png",
    "removal_curves",
    "roar_curves",
    "save",
    "sensitivity_curves",
    "symmetric_limit",
    "thumbnail",
    "training_curves",
]
