"""``vitshap export``: its options, and what it prints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vitshap.errors import user_errors


class Format(StrEnum):
    """What is written."""

    onnx = "onnx"
    web = "web"


class PrecisionName(StrEnum):
    """Of the weights."""

    float32 = "float32"
    float16 = "float16"
    int8 = "int8"


@dataclass(frozen=True)
class Options:
    """Write an explainer as ONNX graphs to deploy without torch, or as a page that runs it in the browser."""

    bundle: Annotated[str, typer.Argument(help="Stored explainer: shipped name, folder, or hub id.")]
    format: Annotated[
        Format, typer.Option(help="onnx: two graphs and a script; web: a static folder, the whole game in the browser.")
    ]
    out: Annotated[Path, typer.Option(help="New folder.")]
    precision: Annotated[
        PrecisionName | None, typer.Option(help="Of the weights; default: float32 for onnx, float16 for web.")
    ] = None
    onnxruntime_web: Annotated[
        Path | None,
        typer.Option(help="For web: folder of the npm package onnxruntime-web; default: it is fetched with npm."),
    ] = None


def run(options: Options) -> int:
    """Export a bundle; return the exit code."""
    with user_errors(resumes=False):
        from vitshap.explainers import Explainer
        from vitshap.explaining.terminal import Terminal, working
        from vitshap.exporting.export import check_free, export_onnx, total_bytes
        from vitshap.exporting.graphs import require_packages
        from vitshap.exporting.web import export_web

        if options.onnxruntime_web is not None and options.format != Format.web:
            raise ValueError("--onnxruntime-web belongs to --format web")
        require_packages()
        check_free(options.out)  # before any work
        terminal = Terminal(results_on_stdout=True)
        with working(terminal, f"exporting {options.bundle}"):
            explainer = Explainer.from_pretrained(options.bundle, device="cpu").float()
            name = Path(options.bundle).name
            if options.format == Format.web:
                web = options.precision or PrecisionName.float16
                found = export_web(
                    explainer, options.out, precision=web.value, name=name, runtime=options.onnxruntime_web
                )
            else:
                plain = options.precision or PrecisionName.float32
                found = export_onnx(explainer, options.out, precision=plain.value, name=name)
        print(f"{options.out}: {total_bytes(options.out) / 1e6:.1f} MB")
        print(
            f"compared with torch on {found.images} photos: values differ by at most {found.values:.1e}, "
            f"predictions by {found.predictions:.1e}; correlation of values {found.correlation:.4f}"
        )
        start = "python -m http.server --bind 127.0.0.1 --directory" if options.format == Format.web else "python"
        what = options.out if options.format == Format.web else f"{options.out / 'explain.py'} PHOTO"
        print(f"try it: {start} {what}")
    return 0
