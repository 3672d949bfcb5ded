"""The pages of a service, its probes, and who may ask for them."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pluto_edge.errors import ConfigError, MissingExtraError
from pluto_edge.observe.server import Server
from pluto_edge.service import overview, prometheus
from pluto_edge.service.service import Service
from pluto_edge.service.web import Web
from tests.observe.conftest import Answer, ask, own
from tests.service.conftest import Scripted, Write, camera, frames, wait_for

TOKEN = "sixteen-characters-or-more"


@pytest.fixture
def shown(write: Write, script: Scripted, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Web]]:
    """Starts a service with its pages."""
    monkeypatch.setattr(overview, "REFRESH", 0.0)
    opened: list[Web | Service] = []

    def start(*cameras: str, **settings: object) -> Web:
        service = Service(write(*(cameras or (camera("gate"), camera("yard"))), **settings), script)
        web = Web(service)
        opened.append(web)
        service.start()
        opened.append(service)
        return web

    yield start
    for each in reversed(opened):
        each.close()


def service_of(web: Web) -> Service:
    return web._service


def post(server: Server, path: str, page: str = "/") -> Answer:
    csrf = re.search(r'data-csrf="([^"]+)"', ask(server, page).text).group(1)
    return ask(server, path, "POST", Origin=f"http://{own(server)}", X_Pluto_CSRF=csrf)


def told(web: Web, query: str = "") -> dict:
    return json.loads(ask(web.server, f"/cameras{query}").body)


def test_the_page_of_all_cameras(shown: Callable[..., Web], script: Scripted) -> None:
    script.dead.add("yard")
    web = shown(camera("gate"), camera("yard"), camera("attic"))
    wait_for(lambda: frames(service_of(web), "gate") > 1 and frames(service_of(web), "attic") > 1)
    wait_for(lambda: service_of(web).cameras["yard"].source.state == "lost")
    page = ask(web.server)
    assert page.status == 200 and "{{" not in page.text
    assert "script-src 'nonce-" in page.headers["Content-Security-Policy"]
    said = told(web)
    assert [c["name"] for c in said["cameras"]] == ["yard", "attic", "gate"]  # trouble first, then by name
    assert said["status"] == "2 of 3 cameras deliver frames"
    lost, fine = said["cameras"][0], said["cameras"][2]
    assert lost["trouble"] == "lost" and lost["picture"] is None
    assert fine["picture"].startswith("data:image/png;base64,")
    assert fine["label"] in service_of(web).runtime.classes and 0 < fine["confidence"] <= 1
    assert fine["module"] in service_of(web).runtime.modules
    assert {h["kind"] for h in said["happened"]} >= {"lost", "live"}


def test_pictures_come_once(shown: Callable[..., Web], script: Scripted) -> None:
    web = shown(camera("gate"))
    wait_for(lambda: frames(service_of(web), "gate") > 1)
    script.hung.add("gate")
    wait_for(lambda: told(web)["cameras"][0]["number"] == told(web)["cameras"][0]["number"] > 0)
    number = told(web)["cameras"][0]["number"]
    wait_for(lambda: told(web, f"?have=gate:{told(web)['cameras'][0]['number']}")["cameras"][0]["picture"] is None)
    assert told(web, f"?have=gate:{number + 99999}")["cameras"][0]["picture"] is not None
    assert told(web, "?have=,,:,x:,%00")["cameras"][0]["name"] == "gate"


def test_each_camera_has_its_page(shown: Callable[..., Web]) -> None:
    web = shown()
    page = ask(web.server, "/camera/gate/")
    assert "gate · pluto-edge" in page.text and 'href="../../"' in page.text
    wait_for(lambda: json.loads(ask(web.server, "/camera/gate/state").body)["frame"] > 1)
    assert post(web.server, "/camera/gate/freeze").status == 200
    cameras = service_of(web).cameras
    assert cameras["gate"].stream.frozen and not cameras["yard"].stream.frozen
    assert json.loads(post(web.server, "/camera/gate/save").text)["done"].endswith("state/gate.safetensors.")
    assert ask(web.server, "/camera/nobody/").status == 404
    assert ask(web.server, "/camera/gate").status == 404


def test_reload_by_the_page(shown: Callable[..., Web], write: Write) -> None:
    web = shown()
    write(camera("gate"), camera("roof"))
    assert json.loads(post(web.server, "/reload").text) == {
        "done": "Reloaded: 1 cameras as before, 0 changed, 1 new, 1 gone."
    }
    assert ask(web.server, "/camera/roof/").status == 200
    assert ask(web.server, "/camera/yard/").status == 404
    write(camera("gate"), budget=9)
    refused = post(web.server, "/reload")
    assert refused.status == 500 and "budget: want 0.001 to 1" in json.loads(refused.text)["error"]
    assert ask(web.server, "/reload").status == 405
    assert ask(web.server, "/reload", "POST", Origin=f"http://{own(web.server)}").status == 403  # no token


def test_another_bundle_has_pages_of_its_own(shown: Callable[..., Web], write: Write, make_bundle) -> None:
    web = shown(camera("gate"))
    before = json.loads(ask(web.server, "/camera/gate/state").body)["server"]
    write(camera("gate"), bundle=str(make_bundle(modules=2)))
    service_of(web).reload()
    assert json.loads(ask(web.server, "/camera/gate/state").body)["server"] != before  # it loads itself anew


# Probes


def test_probes(shown: Callable[..., Web], script: Scripted) -> None:
    script.dead.add("gate")
    web = shown(camera("gate"))
    wait_for(lambda: service_of(web).cameras["gate"].source.state == "lost")
    assert (ask(web.server, "/healthz").status, ask(web.server, "/healthz").text) == (200, "ok\n")
    answer = ask(web.server, "/readyz")
    assert answer.status == 503 and answer.text.startswith("gate: lost: the cable is out")
    script.dead.clear()
    wait_for(lambda: ask(web.server, "/readyz").status == 200)
    assert ask(web.server, "/healthz", "POST").status == 405
    service_of(web).cameras["gate"].close()
    answer = ask(web.server, "/healthz")
    assert (answer.status, answer.text) == (503, "gate: its thread has ended\n")


def test_before_the_start_it_is_alive_and_not_ready(write: Write, script: Scripted) -> None:
    with Web(Service(write(camera("gate")), script)) as web:
        assert ask(web.server, "/healthz").status == 200
        assert (ask(web.server, "/readyz").status, ask(web.server, "/readyz").text) == (503, "no bundle is open\n")
        assert ask(web.server, "/metrics").status == 200


def test_with_a_token_probes_are_for_this_machine(shown: Callable[..., Web]) -> None:
    web = shown(camera("gate"), token=TOKEN)
    for path in ("/healthz", "/readyz", "/metrics"):
        assert ask(web.server, path).status in (200, 503)
        for proxy in ({"X_Forwarded_For": "192.0.2.7"}, {"Forwarded": "for=192.0.2.7"}, {"Via": "1.1 proxy"}):
            assert ask(web.server, path, **proxy).status == 403
    for path in ("/", "/cameras", "/camera/gate/", "/camera/gate/state"):
        assert ask(web.server, path).status == 403
    assert TOKEN not in web.url and TOKEN in web.server.url


def test_a_listener_of_their_own(shown: Callable[..., Web]) -> None:
    """Open to everyone who reaches it, and nothing else is there."""
    web = shown(camera("gate"), metrics="0.0.0.0:0", token=TOKEN)
    assert web.probes is not web.server and not web.probes.loopback
    for path in ("/healthz", "/metrics"):
        assert ask(web.probes, path, host="edge.example:9100", X_Forwarded_For="192.0.2.7").status == 200
    for path in ("/", "/cameras", "/camera/gate/"):
        assert ask(web.probes, path).status == 404
    assert ask(web.probes, "/reload", "POST").status == 404


def test_an_address_that_is_taken_is_an_error_that_leaves_nothing(
    shown: Callable[..., Web], script: Scripted, tmp_path: Path, make_bundle
) -> None:
    web = shown(camera("gate"))
    other = tmp_path / "other.toml"
    top = f'bundle = "{make_bundle()}"\nstate = "other"\npage = "127.0.0.1:0"\n'
    other.write_text(f'{top}metrics = "127.0.0.1:{web.server.port}"\n' + camera("gate"))
    with pytest.raises(ConfigError, match="cannot listen on"):
        Web(Service(other, script))


def test_without_the_extra(shown: Callable[..., Web], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    assert not prometheus.installed()
    web = shown(camera("gate"))
    answer = ask(web.server, "/metrics")
    assert answer.status == 501 and 'pip install "pluto-edge[metrics]"' in answer.text
    with pytest.raises(MissingExtraError):
        shown(camera("gate"), metrics="127.0.0.1:0")
