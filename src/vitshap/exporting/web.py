"""``export_web``: a static folder in which the whole game runs in the browser.

It is the viewer's page with another backend: the graphs, in float16 by default, and onnxruntime-web, whose files are pinned
by version and SHA-256. They are not part of this package: they come from a folder, or npm fetches them at the export. A
service worker keeps every file, so that the page needs no network after the first visit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from importlib.resources import files
from pathlib import Path

from vitshap._version import __version__
from vitshap.errors import CommandError, first_line
from vitshap.explainers import Explainer
from vitshap.exporting.export import Agreement, new_folder, sha256, write_description, write_graphs
from vitshap.exporting.graphs import Precision, require_packages
from vitshap.models.preprocess import Preprocess
from vitshap.viewer.page import module_names, static_text

RUNTIME = "onnxruntime-web"
RUNTIME_VERSION = "1.30.0"
MODULE, BINARY = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
RUNTIME_FILES = {
    MODULE: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    BINARY: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
"""SHA-256 of the files of onnxruntime-web's plain WebAssembly build."""
FETCH_SECONDS = 300
SAMPLE_FILES = ("temple.jpg", "flower.jpg", "portrait.jpg", "README.txt")
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'"
)
"""Content security policy of the page: it can load nothing from elsewhere and send nothing anywhere else."""
_PAGE_CHANGES = {
    '<link rel="icon"': f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<link rel="icon"',
    "static/live.js": "static/web.js",
    ' accept="image/*,.dcm,application/dicom"': ' accept="image/*"',
    "Photos are not stored.": "The model runs in this browser: your photo never leaves it, and after the first visit "
    "no network is needed.",
    "The models are being loaded &hellip;": "The model is being loaded &hellip;",
}
"""What differs from the page of ``vitshap serve``."""
_README = """{name} in the browser, exported by vitshap {version}.

Put this folder on any static host, or try it here:

    python -m http.server --bind 127.0.0.1

and open http://127.0.0.1:8000. Browsers do not run it from a file: address. Offline use needs https, or this machine.
onnxruntime-web {runtime} is by Microsoft, under the MIT licence.
"""


def export_web(
    explainer: Explainer,
    folder: str | os.PathLike[str],
    /,
    *,
    precision: Precision = "float16",
    name: str = "explainer",
    runtime: str | os.PathLike[str] | None = None,
) -> Agreement:
    """Write a new folder with a page that explains photos and plays the game without a server.

    Args:
        explainer: in float32, on the CPU.
        precision: of the weights; the graphs compute in float32 unless it is "int8".
        name: of the bundle, for people.
        runtime: folder with the files of onnxruntime-web; None: npm fetches the package.
    """
    require_packages()
    if not isinstance(explainer.surrogate.preprocess, Preprocess):
        raise ValueError(
            "--format web needs to know how the model wants photos, and this bundle does not say it: wrap the model with "
            "preprocess=vitshap.models.Preprocess(...) and save it again, or use --format onnx"
        )
    with new_folder(folder) as partial:
        (partial / RUNTIME).mkdir()
        copy_runtime(partial / RUNTIME, runtime)  # first: it is what may be missing
        model = partial / "model"
        model.mkdir()
        agreement = write_graphs(explainer, model, precision, one_graph=False)
        loaded = [partial / RUNTIME / BINARY, *sorted(model.glob("*.onnx*"))]
        write_description(
            explainer,
            model,
            precision,
            name,
            agreement,
            runtime={"version": RUNTIME_VERSION, "module": MODULE, "binary": BINARY},
            bytes={path.name: path.stat().st_size for path in loaded},
        )
        _write_page(partial, name)
    return agreement


def copy_runtime(target: Path, given: str | os.PathLike[str] | None) -> None:
    """Copy the files of onnxruntime-web after checking their hashes: from a folder, or as npm fetches them."""
    if given is None:
        with tempfile.TemporaryDirectory() as folder:
            _fetch_runtime(Path(folder))
            _copy_checked(Path(folder), target, f"{RUNTIME} {RUNTIME_VERSION} as npm fetched it")
        return
    source = Path(os.path.expanduser(given))
    places = [place for place in (source, source / "dist", source / "package" / "dist") if (place / BINARY).is_file()]
    if not places:
        raise ValueError(
            f"{source} does not hold {BINARY}: --onnxruntime-web is the folder of the npm package {RUNTIME} "
            f"{RUNTIME_VERSION}, or its dist folder"
        )
    _copy_checked(places[0], target, str(places[0]))


def _copy_checked(source: Path, target: Path, what: str) -> None:
    for name, expected in RUNTIME_FILES.items():
        data = (source / name).read_bytes() if (source / name).is_file() else b""
        found = hashlib.sha256(data).hexdigest()
        if found != expected:
            problem = f"{name} has the SHA-256 {found[:12]}..., expected {expected[:12]}..." if data else f"no {name}"
            raise ValueError(f"{what}: {problem}; the page is made for version {RUNTIME_VERSION} alone")
        (target / name).write_bytes(data)


def _fetch_runtime(folder: Path) -> None:
    """Fetch the package with npm, which knows this machine's registry and proxy, and unpack the two files."""
    package = f"{RUNTIME}@{RUNTIME_VERSION}"
    instead = f"fetch the package {package} elsewhere, and give its folder with --onnxruntime-web"
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError(f"--format web fetches {package} with npm, which is not installed; {instead}")
    try:
        subprocess.run(
            [npm, "pack", "--silent", package], cwd=folder, check=True, capture_output=True, text=True,
            timeout=FETCH_SECONDS,
        )  # fmt: skip
        with tarfile.open(next(folder.glob("*.tgz"))) as archive:
            for name in RUNTIME_FILES:
                member = archive.extractfile(f"package/dist/{name}")
                (folder / name).write_bytes(b"" if member is None else member.read())
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", None) or first_line(error)
        raise CommandError(f"{package} could not be fetched with npm ({said.strip()[:200]}); {instead}") from error
    except (StopIteration, KeyError, tarfile.TarError) as error:
        raise CommandError(f"{package} as npm fetched it holds no {', '.join(RUNTIME_FILES)}; {instead}") from error


def _write_page(folder: Path, name: str) -> None:
    """Write the viewer's page, its modules and the service worker, which knows every file of the page."""
    static = folder / "static"
    (static / "samples").mkdir(parents=True)
    for module in (*module_names("web.js", "onnx-worker.js", "report.js"), "style.css"):
        (static / module).write_text(static_text(module), encoding="utf-8")
    for sample in SAMPLE_FILES:
        data = (files("vitshap.viewer") / "static" / "samples" / sample).read_bytes()
        (static / "samples" / sample).write_bytes(data)
    page = static_text("index.html")
    for old, new in _PAGE_CHANGES.items():
        if page.count(old) != 1:
            raise AssertionError(f"index.html has {page.count(old)} times {old!r}")
        page = page.replace(old, new)
    (folder / "index.html").write_text(page, encoding="utf-8")
    text = _README.format(name=name, version=__version__, runtime=RUNTIME_VERSION)
    (folder / "README.txt").write_text(text, encoding="utf-8")
    parts = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    hashes = "".join(sha256(path) for path in parts)
    version = f"vitshap {hashlib.sha256(hashes.encode()).hexdigest()[:16]}"
    large = (".onnx", ".data", ".wasm")  # kept when the page loads them: not twice
    kept = ["./", *(path.relative_to(folder).as_posix() for path in parts if path.suffix not in large)]
    kept = [path for path in kept if path not in ("index.html", "README.txt", "static/samples/README.txt")]
    worker = static_text("service-worker.js")
    for constant, value in (("VERSION", version), ("PAGE", kept)):
        worker, count = re.subn(
            rf"^const {constant} = .*;$", f"const {constant} = {json.dumps(value)};", worker, flags=re.M
        )
        assert count == 1, constant
    (folder / "service-worker.js").write_text(worker, encoding="utf-8")
