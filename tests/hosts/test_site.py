"""`pluto web`: what it writes, what it refuses, and where onnxruntime-web comes from. No browser, no npm."""

import json
import os
import re
import subprocess
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from pluto_edge.cli import main
from pluto_edge.errors import BundleError, ConfigError
from pluto_edge.manifest import Bundle
from pluto_edge.observe import site as site_module
from pluto_edge.observe.site import ORT_FILES, SCRIPTS, make_site
from tests.hosts.conftest import DIGITS

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def ort(tmp_path: Path) -> Path:
    """A folder as npm makes it, with files that only have the right names."""
    folder = tmp_path / "npm/node_modules/onnxruntime-web/dist"
    folder.mkdir(parents=True)
    for name in ORT_FILES:
        (folder / name).write_text(f"this stands for {name}")
    return tmp_path / "npm"


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No onnxruntime-web is installed, and no npm."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setattr(site_module, "HERE", tmp_path / "empty/observe")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_a_site_has_what_the_page_needs_and_no_more(ort: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "site"
    assert main(["web", str(DIGITS / "bundle"), "--out", str(out), "--ort", str(ort), "--name", "A <b>"]) == 0
    assert f"next: python -m http.server --directory {out} 8000" in capsys.readouterr().out
    files = {f.relative_to(out).as_posix() for f in out.rglob("*") if f.is_file()}
    names = set(Bundle(DIGITS / "bundle").manifest.files) - {"seen.safetensors", "layernorm.safetensors"}
    ours = {"index.html", "web.js", "web-worker.js", "ort/ort.js", "ort/glue.js", "ort/ort.wasm"}
    assert files == ours | {"bundle/manifest.json"} | {f"bundle/{name}" for name in names}
    page = (out / "index.html").read_text("utf-8")
    assert "<title>A &lt;b&gt; · pluto-edge</title>" in page and "{{" not in page
    assert 'data-batch="64" data-rate="10"' in page


def test_the_page_may_run_its_own_scripts_only_and_ask_its_own_server_only() -> None:
    page = site_module.page("x", 64, 2.5)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert "script-src 'self' 'wasm-unsafe-eval'" in policy and "unsafe-inline" not in policy
    style = re.search(r"<style>(.*?)</style>", page, re.S)[1]
    assert f"'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" in policy
    scripts = [(site_module.HERE / script).read_text("utf-8") for script in SCRIPTS]
    for text in (page, *scripts):
        assert not re.search(r"(https?|wss?)://(?!www\.w3\.org/2000/svg| or|localhost)", text), (
            "no other host is named"
        )


def test_what_is_there_stays_unless_forced(ort: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "site"
    (out / "mine").mkdir(parents=True)
    command = ["web", str(DIGITS / "bundle"), "--out", str(out), "--ort", str(ort), "--json"]
    assert main(command) == 2
    assert "is there already; overwrite it with --force" in capsys.readouterr().err
    assert (out / "mine").is_dir()
    assert main([*command, "--force"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["site"] == str(out) and said["bytes"] == sum(
        f.stat().st_size for f in out.rglob("*") if f.is_file()
    )


def test_wrong_settings(make_bundle: Callable[..., Path], ort: Path, tmp_path: Path) -> None:
    for given, error, message in (
        ({"bundle": make_bundle(precision="fp16")}, ConfigError, "fp16 is for CUDA; export it for the browser"),
        ({"batch": 0}, ConfigError, "batch: want at least 1 frame, got 0"),
        ({"rate": 0}, ConfigError, "rate: want more than 0"),
        ({"bundle": tmp_path}, BundleError, "not a bundle"),
    ):
        with pytest.raises(error, match=message):
            make_site(**{"bundle": make_bundle(), "out": tmp_path / "site", "ort": ort, **given})  # type: ignore[arg-type]
    assert not (tmp_path / "site").exists()


def test_onnxruntime_web_is_found_where_npm_puts_it(ort: Path, tmp_path: Path, nowhere: None) -> None:
    for given in (
        ort,
        ort / "node_modules",
        ort / "node_modules/onnxruntime-web",
        ort / "node_modules/onnxruntime-web/dist",
    ):
        with site_module.found_ort(given) as found:
            assert (found / "ort.wasm.min.mjs").is_file()
    os.chdir(ort)
    with site_module.found_ort(None) as found:
        assert found == Path("node_modules/onnxruntime-web/dist")


def test_without_it_the_command_to_run_is_said(tmp_path: Path, nowhere: None) -> None:
    with pytest.raises(ConfigError, match=r"npm, which would fetch it, is not installed.*`npm install .*--ort"):
        make_site(DIGITS / "bundle", tmp_path / "site")
    with pytest.raises(ConfigError, match=r"empty: no onnxruntime-web in it .*run there: npm install"):
        make_site(DIGITS / "bundle", tmp_path / "site", ort=tmp_path / "empty")
    assert not (tmp_path / "site").exists()


def test_npm_fetches_it(ort: Path, tmp_path: Path, nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for npm, which packs what `npm pack` would have fetched."""
    dist = ort / "node_modules/onnxruntime-web/dist"
    npm = tmp_path / "bin/npm"
    npm.parent.mkdir()
    npm.write_text(
        f'#!/bin/sh\n[ "$1 $2 $3" = "pack --silent onnxruntime-web@{site_module.ORT_VERSION}" ] || exit 1\n'
        f"tar -czf web.tgz --transform 's,^,package/dist/,' -C {dist} .\n"
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:/usr/bin:/bin")
    with site_module.found_ort(None) as found:
        assert {f.name for f in found.iterdir()} == set(ORT_FILES)
    npm.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    with (
        pytest.raises(ConfigError, match=r"could not fetch onnxruntime-web \(no network\)"),
        site_module.found_ort(None),
    ):
        pass


def test_the_lock_names_no_host() -> None:
    lock = subprocess.run(
        ["git", "grep", "-nE", r'"resolved"|registry', "--", "hosts/package-lock.json", "hosts/.npmrc"],
        cwd=DIGITS.parent.parent,
        capture_output=True,
        text=True,
    )
    found = [line for line in lock.stdout.splitlines() if "omit-lockfile-registry-resolved" not in line]
    assert not found
