"""From photos to explanations, the work behind ``vitshap explain``: photos, source, stream, entries, sinks.

``photos`` finds and reads files, ``source`` loads what explains them, ``stream`` explains them (``explain_prepared`` one
batch; ``curves`` the output while patches are removed), ``entries`` are the results, and sinks write them: ``report``
(with ``html``, and ``dataset`` for a folder as a whole), ``sinks`` (JSON, Parquet, heatmaps) and ``terminal``.
``batch`` has the callable for data frameworks, which returns columns instead of entries; ``shards`` explains data sets of
any size with it.
"""

from vitshap.explaining.batch import BatchExplainer
from vitshap.explaining.dataset import DataSet, DataSetSummary, disagreements, read_run
from vitshap.explaining.entries import Explained, Failed, Patch, Summary, patches
from vitshap.explaining.one_photo import explain
from vitshap.explaining.photos import Found, find_photos, read_photo
from vitshap.explaining.report import ReportWriter, Section
from vitshap.explaining.source import Source, open_bundle, open_model
from vitshap.explaining.stream import CannotExplain, explain_photos, explain_prepared, prepare_photo

__all__ = [
    "BatchExplainer",
    "CannotExplain",
    "DataSet",
    "DataSetSummary",
    "Explained",
    "Failed",
    "Found",
    "Patch",
    "ReportWriter",
    "Section",
    "Source",
    "Summary",
    "disagreements",
    "explain",
    "explain_photos",
    "explain_prepared",
    "find_photos",
    "open_bundle",
    "open_model",
    "patches",
    "prepare_photo",
    "read_photo",
    "read_run",
]
