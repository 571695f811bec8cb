"""The routes of ``vitshap serve``."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, StreamingResponse
from pydantic.json_schema import SkipJsonSchema
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from vitshap._version import __version__
from vitshap.errors import first_line
from vitshap.serving import answers, schemas, uploads
from vitshap.serving.models import LongJob, PredictJob, ServedModel, offered_methods
from vitshap.serving.protection import OPEN_PATHS, Protection
from vitshap.serving.schemas import NDJSON, ApiError, encode, json_response
from vitshap.serving.state import Serving
from vitshap.serving.worker import Cancelled, Job

STATIC = Path(__file__).parents[1] / "viewer" / "static"
"""The viewer's page and its files."""
FORM_BYTES = 1 << 16
"""Bytes of a form besides the photo."""
_LOG = logging.getLogger(__name__)
_POST_ERRORS = (400, 401, 404, 408, 413, 415, 422, 429, 503)


def create_app(
    serving: Serving, *, token: str | None = None, hosts: Sequence[str] = (), addresses: bool = False
) -> FastAPI:
    """Return the application; its models are loaded in a thread once it starts. See ``Protection`` for the options."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        threading.Thread(target=serving.load, name="vitshap-load", daemon=True).start()
        yield
        await asyncio.get_running_loop().run_in_executor(None, serving.close)

    app = FastAPI(
        title="vitshap",
        version=__version__,
        description="Which patches of a photo drive a vision transformer's prediction, as Shapley values.",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.serving = serving
    _add_status_routes(app, serving, token is not None)
    _add_model_routes(app, serving, token is not None)
    _add_pages(app)
    _add_error_handlers(app)
    if token is not None:
        _document_token(app)
    app.add_middleware(
        Protection, token=token, hosts=hosts, addresses=addresses, observe=serving.measured.observe_response
    )
    return app


def _document_token(app: FastAPI) -> None:
    """Say in the OpenAPI document that requests need the bearer token."""
    generate = app.openapi

    def document() -> dict[str, Any]:
        found = generate()
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in found["paths"].items():
            for operation in operations.values():
                operation["security"] = [] if path in OPEN_PATHS else [{"token": []}]
        return found

    app.openapi = document  # type: ignore[method-assign]


def _errors(secured: bool, *statuses: int) -> dict[int | str, dict[str, Any]]:
    return schemas.error_responses(*(status for status in statuses if status != 401 or secured))


def _add_status_routes(app: FastAPI, serving: Serving, secured: bool) -> None:
    @app.get("/healthz", response_model=schemas.Status, responses=_errors(secured), tags=["server"])
    async def healthz() -> Response:
        """Answer as long as the server is alive."""
        return json_response({"status": "alive"})

    @app.get("/readyz", response_model=schemas.Status, responses=_errors(secured, 503), tags=["server"])
    async def readyz() -> Response:
        """Answer 200 once the models are loaded, and 503 before and while the server is stopping."""
        serving.require_ready()
        return json_response({"status": "ready"})

    text = {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.get("/metrics", response_class=Response, responses={200: text, **_errors(secured, 401)}, tags=["server"])
    async def metrics() -> Response:
        """Return counters and timings for Prometheus."""
        return Response(serving.measured.exposition(), media_type=serving.measured.content_type)


def _add_model_routes(app: FastAPI, serving: Serving, secured: bool) -> None:
    name = Query(description="A name of /v1/models.", json_schema_extra={"enum": serving.names})
    method = Query(
        max_length=60,
        description="A name of the model's methods; default: its first.",
        json_schema_extra={"enum": offered_methods()},
    )
    target = Query(
        min_length=1,
        max_length=500,
        description="Classes to explain: predicted, top-K, all, or names or numbers separated by commas.",
        examples=["predicted", "top-5"],
    )
    budget = Query(ge=2, le=serving.limits.budget, description="Evaluations of a sampling method.")

    @app.get("/v1/models", response_model=schemas.ModelList, responses=_errors(secured, 401, 503), tags=["photos"])
    async def models() -> Response:
        """List the models, the default first, with their classes and methods."""
        serving.require_ready()
        found = [answers.model_info(model, index == 0) for index, model in enumerate(serving.models.values())]
        return json_response({"models": found})

    @app.post(
        "/v1/explanations",
        response_model=schemas.ExplanationResponse,
        responses={200: schemas.EXPLANATION, **_errors(secured, *_POST_ERRORS)},
        openapi_extra={"requestBody": schemas.photo_body(uploads.ACCEPTED)},
        tags=["photos"],
    )
    async def explanations(
        request: Request,
        model: Annotated[str, name] = serving.names[0],
        method: Annotated[str | SkipJsonSchema[None], method] = None,
        target: Annotated[str, target] = "predicted",
        budget: Annotated[int | SkipJsonSchema[None], budget] = None,
    ) -> Response:
        """Explain a photo. With ``Accept: application/x-ndjson`` lines of JSON report the progress of a sampling method."""
        return await _explain(serving, request, model, method, target, budget)

    @app.post(
        "/v1/predictions",
        response_model=schemas.PredictionsResponse,
        responses=_errors(secured, *_POST_ERRORS),
        openapi_extra={"requestBody": schemas.coalitions_body(uploads.ACCEPTED, uploads.MOST_COALITIONS)},
        tags=["photos"],
    )
    async def predictions(request: Request, model: Annotated[str, name] = serving.names[0]) -> Response:
        """Predict a photo of which only some patches are shown, for up to 512 coalitions of patches."""
        return await _predict(serving, request, model)


async def _predict(serving: Serving, request: Request, name: str) -> Response:
    served = serving.model(name)
    players, kind = served.model.num_players, request.headers.get("content-type", "")
    with serving.admission("quick"):
        async with _deadline(serving):
            extra = 2 * uploads.MOST_COALITIONS * (players + 8)
            async with uploads.received_body(request, serving.received, extra=extra) as body:
                content, coalitions = await serving.in_decoder(uploads.photo_and_coalitions, body, kind, players)
                photo = await serving.photo(served, content)
            del body, content
            job = PredictJob(photo=photo, coalitions=coalitions)
            served.quick.submit(job)
            outputs = await _result(job, request)
            return json_response(await serving.in_decoder(answers.predictions, served, *outputs))


async def _explain(
    serving: Serving, request: Request, name: str, method: str | None, words: str, budget: int | None
) -> Response:
    served = serving.model(name)
    source = served.method_source(method, budget)
    target = served.target(words, source)
    quick = served.is_quick(source)
    streams = NDJSON in request.headers.get("accept", "")
    with serving.admission("quick" if quick else "long"):
        async with _deadline(serving):
            async with uploads.received_body(request, serving.received, extra=FORM_BYTES) as body:
                content = await serving.in_decoder(uploads.photo_content, body, request.headers.get("content-type", ""))
                photo = await serving.photo(served, content)
            del body, content
            if quick or not streams:
                entry = await _result(served.start_explanation(photo, target, source), request)
                content = await serving.in_decoder(
                    lambda: encode(answers.explanation(served, entry, source, photo.picture))
                )
                if not streams:
                    return Response(content, media_type="application/json")
                return Response(b'{"type":"result",' + content[1:] + b"\n", media_type=NDJSON)
    lines = _progress_lines(serving, served, request, LongJob(photo=photo, target=target, source=source))
    return StreamingResponse(lines, media_type=NDJSON)


async def _progress_lines(
    serving: Serving, served: ServedModel, request: Request, job: LongJob
) -> AsyncIterator[bytes]:
    """Yield a line for every partial estimate, then the result or an error; a closed connection cancels the work."""
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue[Any]()
    until = loop.time() + serving.limits.seconds

    def tell(line: dict[str, Any] | None) -> None:
        loop.call_soon_threadsafe(waiting.put_nowait, line)

    gone = asyncio.ensure_future(_disconnected(request))
    gone.add_done_callback(lambda _: waiting.put_nowait(None))
    job.progress = lambda estimate: tell(answers.progress(estimate, job.source.budget))
    job.result.add_done_callback(lambda _: tell(None))
    try:
        with serving.admission("long"):
            served.long.submit(job)
            try:
                while (line := await asyncio.wait_for(waiting.get(), until - loop.time())) is not None:
                    yield encode(line) + b"\n"
            except TimeoutError:
                raise serving.over_time() from None
            if not gone.done():
                found = await serving.in_decoder(
                    answers.explanation, served, await _result(job), job.source, job.photo.picture
                )
                yield encode({"type": "result", **found}) + b"\n"
    except ApiError as error:
        yield encode({"type": "error", **error.content()}) + b"\n"
    except Exception:  # the response has begun: no other handler can answer any more
        _LOG.exception("Error while streaming an explanation")
        yield encode({"type": "error", **_internal().content()}) + b"\n"
    finally:
        job.cancel()
        gone.cancel()


@asynccontextmanager
async def _deadline(serving: Serving) -> AsyncIterator[None]:
    """Raise the error 503 if the time limit of a request is exceeded."""
    try:
        async with asyncio.timeout(serving.limits.seconds):
            yield
    except TimeoutError:
        raise serving.over_time() from None


async def _result(job: Job, request: Request | None = None) -> Any:
    """Wait for the result of a job; cancel it if the client has gone or the request is over."""
    result = asyncio.wrap_future(job.result)
    gone = None if request is None else asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([one for one in (result, gone) if one is not None], return_when="FIRST_COMPLETED")
        if not result.done():
            raise ApiError(400, "disconnected", "the client has gone")
        return result.result()
    except ApiError:
        raise
    except (Cancelled, asyncio.CancelledError):
        raise
    except (ValueError, TypeError, NotImplementedError) as error:  # the method does not suit the model or the budget
        raise ApiError(422, "not_explained", f"not explained: {first_line(error)}") from None
    finally:
        job.cancel()
        if gone is not None:
            gone.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_pages(app: FastAPI) -> None:
    """Serve the viewer, where it is installed."""
    if not STATIC.is_dir():
        return

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC))


def _add_error_handlers(app: FastAPI) -> None:
    def handler(convert: Callable[[Any], ApiError]) -> Callable[[Request, Any], Awaitable[Response]]:
        async def handle(request: Request, error: Any) -> Response:
            return convert(error).response()

        return handle

    app.add_exception_handler(ApiError, handler(lambda error: error))
    app.add_exception_handler(RequestValidationError, handler(_invalid_parameter))
    app.add_exception_handler(HTTPException, handler(_http_error))
    app.add_exception_handler(Exception, handler(lambda _: _internal()))


def _internal() -> ApiError:
    """Return the error of an unexpected exception, after which uvicorn closes the connection."""
    return ApiError(500, "internal", "an error of the server", {"Connection": "close"})


def _invalid_parameter(error: RequestValidationError) -> ApiError:
    """Return which parameter is wrong and why, without its value."""
    said: dict[str, str] = {}
    for one in error.errors():  # of a parameter that may be absent, the first: others say that it is not
        said.setdefault(str(one["loc"][1]), one["msg"])
    return ApiError(422, "invalid_parameter", "; ".join(f"{name}: {why}" for name, why in said.items())[:500])


def _http_error(error: HTTPException) -> ApiError:
    codes = {404: "not_found", 405: "method_not_allowed"}
    message = {404: "there is nothing at this address", 405: "this address has no such method"}
    known = error.status_code in codes
    return ApiError(
        error.status_code,
        codes.get(error.status_code, "bad_request"),
        message[error.status_code] if known else str(error.detail)[:200],
        error.headers,
    )
