"""What `serve` prints and who can read it, where the gateway answers, and the page that its address opens."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.gateway import GatewayProcess, coterie, running
from tests.support.terminal import in_terminal

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "src" / "coterie" / "api" / "page"
SCRIPT = """
const fs = require('fs');
const [file, url, token] = process.argv.slice(1);
const parts = {};
const part = id => parts[id] ??= {
  hidden: true, textContent: id === 'curl' ? 'curl http://127.0.0.1:18790/v1' : '', value: '',
  placeholder: 'what time is it', addEventListener(name, run) { this[name] = run; },
  replaceChildren(...children) { this.children = children; this.value = (children.find(c => c.chosen) || {}).value; },
};
globalThis.document = {getElementById: part};
globalThis.location = {hash: '#token=' + token, pathname: '/', origin: url};
globalThis.address = null;
globalThis.history = {replaceState(a, b, path) { globalThis.address = path; }};
const kept = {};
globalThis.sessionStorage = {getItem: name => kept[name] ?? null, setItem(name, value) { kept[name] = value; }};
globalThis.Option = class { constructor(text, value, b, chosen) { Object.assign(this, {text, value, chosen}); } };
const asked = [];
const real = globalThis.fetch;
globalThis.fetch = (path, options) => { asked.push(path); return real(url + path, options); };
(async () => {
  eval(fs.readFileSync(file, 'utf8').replace('\\nenter();', '\\nglobalThis.entered = enter();'));
  await globalThis.entered;
  if (!part('inside').hidden) await part('say').submit({preventDefault() {}});
  console.log(JSON.stringify({
    address, asked, kept, inside: !part('inside').hidden, ask: !part('ask').hidden, curl: part('curl').textContent,
    agents: (part('agent').children || []).map(one => one.value), answer: part('answer').textContent,
  }));
})();
"""


# What is printed


@pytest.mark.parametrize("given", [None, "cot_owner_from-the-environment"], ids=["own token", "given token"])
def test_a_token_is_shown_to_a_person_and_to_nobody_else(home: Path, given: str | None) -> None:
    env: dict[str, Any] = {} if given is None else {"COTERIE_TOKEN": given}
    with running(home, **env) as piped:
        printed = piped.log.read_text()
        assert f"Coterie is at {piped.url}" in printed and "#token" not in printed
        if given is None:
            assert piped.token not in printed and f"(its token is in {home / 'token'})" in printed
        else:
            assert given not in printed and "(its token is the one in COTERIE_TOKEN)" in printed
    with in_terminal(home, "serve", "--port", "0", columns=200, **env) as pane:
        seen = pane.wait("Open http://")
        if given is None:
            assert re.search(rf"Open http://127\.0\.0\.1:\d+/#token={re.escape(piped.token)}\s", seen)
        else:
            assert given not in seen and "COTERIE_TOKEN" in seen


# Where it answers


def own_addresses() -> list[str]:
    found = [a for addresses in psutil.net_if_addrs().values() for a in addresses]
    here = [a.address for a in found if a.family == socket.AF_INET and not a.address.startswith("127.")]
    return [
        *here,
        *(
            f"[{a.address}]"
            for a in found
            if a.family == socket.AF_INET6 and "%" not in a.address and a.address != "::1"
        ),
    ]


def test_every_address_that_it_listens_on_is_printed_and_answers(home: Path) -> None:
    """curl comes from outside of the tests, and a machine's own address does not lead off the machine."""
    with running(home, "--host", "0.0.0.0", COTERIE_TOKEN="a-long-token-of-the-owner") as gateway:
        port = gateway.url.rpartition(":")[2]
        printed = gateway.log.read_text()
        assert f"Coterie is at http://127.0.0.1:{port} " in printed
        own = [address for address in own_addresses() if "[" not in address]
        if not own:
            assert "From other machines" not in printed
        for address in own:
            url = f"http://{address}:{port}"
            assert url in printed
            assert curl(f"{url}/healthz") == '{"status":"ok"}'
            page = curl(f"{url}/api/agents", "-H", "Authorization: Bearer a-long-token-of-the-owner")
            assert json.loads(page)["defaultId"] == "main"
            # The name of somebody else is no better at that address.
            refused = json.loads(curl(f"{url}/healthz", "-H", f"Host: evil.example:{port}"))["error"]
            assert refused["code"] == "FORBIDDEN"
            refused = json.loads(curl(f"http://127.0.0.1:{port}/healthz", "-H", f"Host: {address}:{port}"))
            assert refused["error"]["code"] == "FORBIDDEN", "it did not arrive there"


def curl(*words: str) -> str:
    if shutil.which("curl") is None:
        assert os.environ.get("CI") != "true", "curl is missing"
        pytest.skip("curl is missing: the machine's own addresses are not tried")
    return subprocess.run(["curl", "--silent", *words], capture_output=True, text=True, timeout=30).stdout


def test_a_name_that_is_refused_says_what_to_set(home: Path) -> None:
    home.mkdir()
    (home / "agent.yaml").write_text("gateway: {public_url: 'https://Home.Example.org:8443/'}\n")
    with running(home) as gateway:

        def get(host: str) -> httpx.Response:
            return httpx.get(f"{gateway.url}/healthz", headers={"host": host})

        for name in ("home.example.org", "home.example.org:8443", socket.gethostname(), "localhost"):
            assert get(name).status_code == 200, name
        for name in ("other.example.org", "home.example.org.evil.example", "192.0.2.99", "xhome.example.org"):
            refused = get(name)
            assert refused.status_code == 403
            said = refused.json()["error"]["message"]
            assert name in said and "gateway.public_url" in said and "gateway.allowed_hosts" in said


def test_a_public_url_that_is_none_is_refused(home: Path) -> None:
    coterie(home, "agent", "list")
    for wrong in ("home.example.org", "ftp://x", "https://user:secret@x.example", "https://x/y?z=1"):
        (home / "agent.yaml").write_text(f"gateway: {{public_url: '{wrong}'}}\n")
        assert "gateway.public_url" in coterie(home, "agent", "list").stderr


# The page


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running(tmp_path_factory.mktemp("page") / "home") as gateway:
        yield gateway


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_needs_nobody_else(house: GatewayProcess, path: str) -> None:
    page = httpx.get(f"{house.url}{path}")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy and "form-action 'none'" in policy
    assert page.headers["referrer-policy"] == "no-referrer"
    assert house.token not in page.text
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", page.text), "the policy forbids it"
    loaded = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
    assert loaded and all(address.startswith("/") and not address.startswith("//") for address in loaded)
    for address in loaded:
        assert httpx.get(f"{house.url}{address}").status_code == 200, address
        if address.endswith((".js", ".css")):
            text = httpx.get(f"{house.url}{address}").text
            assert not re.search(r"https?://(?!127\.0\.0\.1)|@import|url\(", text), (
                "nothing comes from elsewhere"
            )


def visit(house: GatewayProcess, script: str, token: str) -> dict[str, object]:
    if shutil.which("node") is None:
        assert os.environ.get("CI") != "true", "node is missing"
        pytest.skip("node is missing: the page's script is not run")
    command = ["node", "-e", SCRIPT, "--", str(PAGES / script), house.url, token]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen: dict[str, object] = json.loads(done.stdout)
    return seen


def test_the_page_takes_the_token_out_of_the_address_and_can_be_tried(house: GatewayProcess) -> None:
    seen = visit(house, "home.js", house.token)
    assert seen["address"] == "/" and seen["kept"] == {"coterie-token": house.token}
    assert seen["inside"] and not seen["ask"]
    assert seen["agents"] == ["main"]
    assert seen["asked"] == ["/api/agents", "/v1/chat/completions"]
    assert "system_time answered: " in str(seen["answer"])
    assert seen["curl"] == f"curl {house.url}/v1"


def test_a_wrong_token_is_asked_for_again(house: GatewayProcess) -> None:
    seen = visit(house, "home.js", "wrong")
    assert seen["ask"] and not seen["inside"] and seen["asked"] == ["/api/agents"]
