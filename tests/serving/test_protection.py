"""Who may ask: names of the server, pages of other sites, the bearer token; headers of every answer."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tests.serving.running import photo, server
from vitshap.cli import app
from vitshap.serving.command import Options, allowed_hosts, model_choices, read_token
from vitshap.serving.protection import Protection, is_loopback

TOKEN = "a-token-of-some-length"
FORM = {"image": photo()}


def _status(client: httpx.Client, **headers: str) -> int:
    return client.post("/v1/explanations", files=FORM, headers=headers).status_code


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[", "10.0.0.1"]
)
def test_other_names_of_the_server_are_refused(client: httpx.Client, host: str) -> None:
    assert _status(client, Host=host) == 403
    assert client.get("/healthz", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:80", "[::1]:9"])
def test_names_of_the_loopback_are_allowed(client: httpx.Client, host: str) -> None:
    assert client.get("/v1/models", headers={"Host": host}).status_code == 200


def test_pages_of_other_sites_are_refused(client: httpx.Client) -> None:
    own = f"http://{client.base_url.host}:{client.base_url.port}"
    assert _status(client, Origin=own) == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", own + ".evil.example", "file://", "http://["):
        assert _status(client, Origin=origin) == 403


def test_nothing_allows_other_sites_to_read_answers(client: httpx.Client) -> None:
    answers = [
        client.get("/healthz"),
        client.get("/v1/models"),
        client.options("/v1/models", headers={"Access-Control-Request-Method": "POST"}),
        client.get("/nowhere"),
        client.post("/v1/explanations", content=b"x"),
        client.get("/", headers={"Host": "evil.example"}),
    ]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers
        assert answer.headers["cache-control"] in ("no-store", "no-cache")


def test_the_token_is_required(bundle: Path) -> None:
    with server(bundle, token=TOKEN) as (client, _):
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            refused = client.get(path)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
        for wrong in ("Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"):
            assert _status(client, Authorization=wrong) == 401
        assert client.get("/v1/models", headers={b"Authorization": b"Bearer \xff\xfe"}).status_code == 401
        assert _status(client, Authorization=f"Bearer {TOKEN}") == 200
        document = client.get("/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"}).json()
        explaining, alive = document["paths"]["/v1/explanations"]["post"], document["paths"]["/healthz"]["get"]
        assert "401" in explaining["responses"]
        assert (explaining["security"], alive["security"]) == ([{"token": []}], [])


def test_ip_addresses_are_allowed_where_other_machines_reach_the_server() -> None:
    protection = Protection(None, addresses=True, hosts=["photos.example"])
    for host in ("10.1.2.3:8000", "[2001:db8::1]:80", "photos.example", "Photos.Example:443"):
        assert protection._known(host)
    for host in ("evil.example", "10.1.2.3.evil.example", "300.1.1.1", "a:b:c"):
        assert not protection._known(host)


def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VITSHAP_TOKEN", raising=False)
    assert read_token(Options()) is None
    with pytest.raises(ValueError, match=r"other machines can reach 0\.0\.0\.0: give a token"):
        read_token(Options(host="0.0.0.0"))
    monkeypatch.setenv("VITSHAP_TOKEN", TOKEN)
    assert read_token(Options(host="0.0.0.0")) == TOKEN
    (tmp_path / "token").write_text("another-token-in-a-file\n")
    assert read_token(Options(token_file=tmp_path / "token")) == "another-token-in-a-file"
    for text, why in {"": "is empty", "short": "at least 16", "with\nlines-that-are-long": "printable"}.items():
        (tmp_path / "token").write_text(text)
        with pytest.raises(ValueError, match=why):
            read_token(Options(token_file=tmp_path / "token"))
    assert allowed_hosts(Options(allow_host=["a.example"])) == (["a.example", "127.0.0.1"], False)
    assert allowed_hosts(Options(host="0.0.0.0"))[1]
    assert is_loopback("::1")
    assert not is_loopback("192.168.1.1")
    names = [one.name for one in model_choices(Options(bundle=["a/x", "b/x/"], model=["x", "owner/y"]))]
    assert names == ["x", "x-2", "x-3", "y"]
    with pytest.raises(ValueError, match="--weights are those of one model"):
        model_choices(Options(weights="w.safetensors"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--host", "0.0.0.0"], "give a token"),
        (["--bundle", "nowhere"], "nowhere"),
        (["--model", "no_such_model"], "no_such_model"),
    ],
)
def test_wrong_options_end_the_command_with_one_line(
    arguments: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VITSHAP_TOKEN", raising=False)
    result = CliRunner().invoke(app, ["serve", "--port", "0", *arguments])
    assert result.exit_code == 2, result.output
    assert result.output.count("error: ") == 1
    assert result.output.splitlines()[-1].startswith("error: ")
    assert why in result.output
