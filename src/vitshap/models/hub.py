"""The Hugging Face hub: check that it can be reached, download and upload files, explain errors."""

from __future__ import annotations

import os
import re
import socket
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from vitshap.errors import first_line

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_SECONDS = 3.0
"""Timeout of the connection attempt before only local files are used; the hub's own client tries for a minute."""


@contextmanager
def reachable_hub(name: str | None) -> Iterator[None]:
    """Use only local files for the duration of the context if the hub cannot be reached, without repeated attempts.

    ``name`` is what may have to be downloaded, None for nothing. Behind a proxy reachability is unknown: then nothing is
    changed.
    """
    from huggingface_hub import constants

    local = name is None or Path(os.path.expanduser(name)).exists()
    if local or constants.HF_HUB_OFFLINE or urllib.request.getproxies() or _answers(constants.ENDPOINT):
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False


def fetch(name: str, files: Sequence[str]) -> Path:
    """Download these files of a repository of the hub; return their folder."""
    from huggingface_hub import snapshot_download

    with reachable_hub(name):
        return Path(snapshot_download(name, allow_patterns=list(files)))


def upload(
    folder: Path, name: str, *, replaces: Sequence[str], message: str, private: bool = False, token: str | None = None
) -> str:
    """Upload a folder as one commit to a repository of the hub, which is made if need be; return the commit's address.

    Files of these patterns (``replaces``) that were there before are removed unless the folder has them too.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        api.create_repo(name, private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=name, folder_path=folder, commit_message=message, delete_patterns=list(replaces)
        )
    except Exception as error:  # the hub's client raises its own errors, its HTTP library's and the system's
        raise OSError(f"{name} could not be uploaded to the Hugging Face hub: {reason(error)}") from error
    return str(done.commit_url)


def reason(error: BaseException) -> str:
    """Return why something could not be loaded, in plain words if the hub is unreachable or remote code is needed."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, LocalEntryNotFoundError | OfflineModeIsEnabled):
            return "it is not stored on this machine, and the Hugging Face hub cannot be reached from here"
        cause = cause.__cause__ or cause.__context__
    if "trust_remote_code" in str(error):
        return "it needs Python code of its own, which is never run"
    return first_line(error)


def _answers(address: str) -> bool:
    parts = urlsplit(address)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=HUB_SECONDS).close()
    except OSError:
        return False
    return True
