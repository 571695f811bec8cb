"""Explainers to and from a hub: a real HTTP server in its place, and the real client in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.explaining import made
from tests.hub_server import TOKEN, Hub, running_hub
from vitshap.explainers import bundle

ROUND_TRIP = """
import json, sys
import torch
import vitshap
from vitshap.explainers.bundle import BundleError

made = vitshap.Explainer.from_pretrained(sys.argv[1])
image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
found = {"commits": [], "errors": []}
found["commits"].append(made.push_to_hub("someone/insects", private=True, include_classifier=made.surrogate))
found["commits"].append(made.push_to_hub("someone/insects", half=False, message="again"))
loaded = vitshap.Explainer.from_pretrained("someone/insects")
found["difference"] = float((loaded(image).values - made(image).values).abs().max())
found["names"] = loaded.surrogate.class_names
for name, options in (("insects", {}), ("someone/other", {"token": "hf_wrong"})):
    try:
        made.push_to_hub(name, **options)
    except (BundleError, OSError) as error:
        found["errors"].append(str(error))
try:
    vitshap.Explainer.from_pretrained("someone/absent")
except BundleError as error:
    found["errors"].append(str(error))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


def _python(hub: Hub, home: Path, *arguments: object) -> str:
    """Run Python with the hub at the address of the stand-in, which has no Xet storage."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HF_", "TRITON")) and "proxy" not in key.lower()
    }
    own = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**kept, **own, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_explainer_goes_to_the_hub_and_back(hub: Hub, tmp_path: Path) -> None:
    folder = made.bundle(tmp_path / "insects")
    found: dict[str, Any] = json.loads(_python(hub, tmp_path / "home", "-c", ROUND_TRIP, folder).splitlines()[-1])
    repository = hub.repositories["someone/insects"]
    assert repository.private
    assert [address.rpartition("/")[2] for address in found["commits"]] == [one for one, _ in repository.commits[1:]]
    first, second = (set(files) for _, files in repository.commits[1:])
    assert first - second == {"classifier.safetensors"}, "what the second bundle has not is removed"
    assert second == {".gitattributes", "README.md", "config.json", "explainer.safetensors", "surrogate.safetensors"}
    assert repository.commits[-1][1]["explainer.safetensors"] == (folder / "explainer.safetensors").read_bytes()
    assert found["difference"] == 0
    assert found["names"] == made.NAMES
    named, refused, absent = found["errors"]
    assert named == "a repository of the Hugging Face hub is named owner/name, got 'insects'"
    assert refused.startswith("someone/other could not be uploaded to the Hugging Face hub: ")
    assert "401" in refused
    assert "\n" not in refused
    assert "'someone/absent' is neither a folder here nor a shipped bundle" in absent
    assert "someone/other" not in hub.repositories
    assert any(request.startswith("POST /api/models/someone/insects/commit") for request in hub.requests)


@pytest.mark.long
def test_the_command_takes_a_hub_id(hub: Hub, tmp_path: Path) -> None:
    folder = made.bundle(tmp_path / "bees")
    _python(hub, tmp_path / "home", "-c", ROUND_TRIP.replace("insects", "bees"), folder)
    [photo] = made.photos(tmp_path / "photos", 1)
    said = _python(
        hub, tmp_path / "home", "-m", "vitshap", "explain", photo, "--bundle", "someone/bees", "--out", tmp_path / "out"
    )
    assert "bundle someone/bees" in said


def test_a_name_that_is_no_hub_id_is_refused_before_any_work() -> None:
    with pytest.raises(bundle.BundleError, match="named owner/name, got 'a/b/c'"):
        made.explainer().push_to_hub("a/b/c")
