"""Explainers as ONNX graphs: a folder to deploy without torch, and a page that needs no server."""

from vitshap.exporting.export import Agreement, export_onnx
from vitshap.exporting.graphs import CannotExport
from vitshap.exporting.web import export_web

__all__ = ["Agreement", "CannotExport", "export_onnx", "export_web"]
