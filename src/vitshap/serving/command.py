"""``vitshap serve``: its options, and the server that it runs. What the server needs is imported when it starts."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitshap.errors import user_errors

if TYPE_CHECKING:
    from vitshap.serving.models import ModelChoice

TOKEN_VARIABLE = "VITSHAP_TOKEN"
SHORTEST_TOKEN = 16
KEEP_ALIVE = 60
"""Seconds after which an idle connection is closed: more than the longest Retry-After."""


@dataclass(frozen=True)
class Options:
    """Serve a page to explore explanations of photos, and an HTTP interface to call."""

    bundle: Annotated[
        list[str] | None,
        typer.Option(
            help="Stored explainer: shipped name, folder, or hub id; may be repeated. The first is the default."
        ),
    ] = None
    model: Annotated[
        list[str] | None,
        typer.Option(help="Any model: timm name, or hub id or folder of transformers; may be repeated."),
    ] = None
    weights: Annotated[str | None, typer.Option(help="Safetensors file with the weights of a timm model.")] = None
    host: Annotated[str, typer.Option(help="Address to bind to; other machines reach 0.0.0.0, with a token.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0: any free one.")] = 8000
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name by which the server is reached (Host); may be repeated.")
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the bearer token; default: the variable {TOKEN_VARIABLE}.")
    ] = None
    max_mebibytes: Annotated[float, typer.Option(min=0.01, max=1024, help="Largest photo in MiB.")] = 20.0
    max_megapixels: Annotated[float, typer.Option(min=0.01, max=178, help="Largest photo in megapixels.")] = 40.0
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds after which a request is given up.")] = 60.0
    waiting: Annotated[int, typer.Option(min=1, help="Most requests in the server at the same time.")] = 256
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto"


def run(options: Options) -> int:
    """Serve until SIGINT or SIGTERM, finish what is under way, and return the exit code."""
    with user_errors(resumes=False):
        try:
            from vitshap.serving.app import create_app
            from vitshap.serving.state import Serving
            from vitshap.serving.uploads import Limits
        except ImportError as error:
            missing = f"vitshap serve needs packages that are not installed ({error.name})"
            raise ValueError(f'{missing}: pip install "vitshap[serve]"') from error
        from vitshap.models.base import resolve_device

        token, choices = read_token(options), model_choices(options)
        limits = Limits(
            upload_bytes=int(options.max_mebibytes * 2**20),
            pixels=int(options.max_megapixels * 1e6),
            seconds=options.time_limit,
            waiting=options.waiting,
        )
        serving = Serving(choices, limits, str(resolve_device(options.device)))
        hosts, addresses = allowed_hosts(options)
        app = create_app(serving, token=token, hosts=hosts, addresses=addresses)
    return serve(server_config(app, options.host, options.port, options.time_limit), serving)


def server_config(app: Any, host: str, port: int, time_limit: float) -> Any:
    """Return uvicorn's configuration; requests are not logged, since their addresses and headers may hold secrets."""
    import uvicorn

    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(time_limit) + 1,
    )


def serve(config: Any, serving: Any) -> int:
    """Run uvicorn with this configuration; return the exit code."""
    import uvicorn

    class Server(uvicorn.Server):
        """Stops when the models cannot be loaded, and on a signal once no request is being computed."""

        announced = False

        def handle_exit(self, sig: int, frame: Any) -> None:
            if serving.stopping:  # the second signal ends it at once
                self.force_exit = self.should_exit = True
            serving.stopping = True

        async def on_tick(self, counter: int) -> bool:
            if not self.announced and serving.ready:
                self.announced = True
                print(f"ready: http://{_address(self)} ({', '.join(serving.names)})", file=sys.stderr, flush=True)
            if serving.failure is not None or (serving.stopping and serving.idle):
                self.should_exit = True
            return await super().on_tick(counter)

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", module="PIL|pydicom"
        )  # about photos, whose errors are answered; they quote tags
        server = Server(config)
        print(f"loading {', '.join(serving.names)}", file=sys.stderr, flush=True)
        try:
            server.run()
        except KeyboardInterrupt:
            return 130
        except SystemExit as end:  # the address is taken, for example; uvicorn has said so
            return 2 if end.code else 0
    if serving.failure is not None:
        with user_errors(resumes=False):
            raise serving.failure
    return 0 if server.started else 2


def model_choices(options: Options) -> list[ModelChoice]:
    """Return what is served, under different names; without any option, the explainer that is shipped."""
    from vitshap.explainers import bundle
    from vitshap.serving.models import ModelChoice

    given: list[tuple[Any, str, str | None]] = [
        *(("bundle", name, None) for name in options.bundle or ()),
        *(("model", name, options.weights) for name in options.model or ()),
    ]
    if options.weights is not None and len(options.model or ()) != 1:
        raise ValueError("--weights are those of one model: name it with --model")
    if not given:
        if not bundle.shipped():
            raise ValueError("no explainer is shipped with this installation: give --bundle FOLDER or --model NAME")
        given = [("bundle", bundle.shipped()[0], None)]
    choices: list[ModelChoice] = []
    for kind, place, weights in given:
        name = base = os.path.basename(os.path.normpath(place)) or place
        count = 1
        while name in {choice.name for choice in choices}:
            count += 1
            name = f"{base}-{count}"
        choices.append(ModelChoice(kind, place, name, weights))
    return choices


def read_token(options: Options) -> str | None:
    """Return the bearer token; None if none is given, which is an error unless only this machine can reach the server."""
    from vitshap.serving.protection import is_loopback

    token = os.environ.get(TOKEN_VARIABLE, "").strip() or None
    if options.token_file is not None:
        token = options.token_file.read_text(encoding="utf-8").strip() or None
        if token is None:
            raise ValueError(f"--token-file {options.token_file} is empty")
    if token is None and not is_loopback(options.host):
        raise ValueError(
            f"other machines can reach {options.host}: give a token with --token-file or in {TOKEN_VARIABLE}, or bind to "
            "127.0.0.1"
        )
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise ValueError(f"the token must have at least {SHORTEST_TOKEN} characters, all of them printable ASCII")
    return token


def allowed_hosts(options: Options) -> tuple[Sequence[str], bool]:
    """Return the names that requests may call this server, and whether they may call it by any IP address."""
    from vitshap.serving.protection import is_loopback

    return [*(options.allow_host or ()), options.host], not is_loopback(options.host)


def _address(server: Any) -> str:
    """Return host and port that the server listens at."""
    found = server.servers[0].sockets[0].getsockname()
    return f"[{found[0]}]:{found[1]}" if ":" in found[0] else f"{found[0]}:{found[1]}"
