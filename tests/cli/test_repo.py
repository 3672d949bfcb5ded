"""`pluto repo`, `pull`, `sync` and `verify`, as they are typed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pluto_edge.cli import main, parse
from tests.bundles import contents
from tests.cli.typed import ROOT, environment, typed

DIGITS = ROOT / "examples/digits"
Capture = pytest.CaptureFixture[str]
Make = Callable[..., Path]


@pytest.fixture
def store(tmp_path: Path, make_bundle: Make, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository with `meter@1.0`, and its keys beside it."""
    monkeypatch.delenv("PLUTO_ROOT", raising=False)
    monkeypatch.setenv("PLUTO_EDGE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "store"
    assert main(["repo", "init", str(folder), "--keys", str(tmp_path / "keys")]) == 0
    assert main(["repo", "add", str(folder), str(make_bundle()), "--name", "meter", "--version", "1.0"]) == 0
    assert main(["repo", "publish", str(folder), "--keys", str(tmp_path / "keys")]) == 0
    yield folder


def test_from_publishing_to_predicting(store: Path, make_bundle: Make, folders: Path, capsys: Capture) -> None:
    address = f"{store.as_uri()}/meter"
    assert main(["pull", address]) == 2
    assert "there is no root of trust for this repository yet" in capsys.readouterr().err
    assert main(["pull", address, "--root", str(store / "metadata/1.root.json"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["version"] == "1.0" and contents(Path(said["bundle"])) == contents(make_bundle())
    image = str(min((folders / "other").rglob("*.png")))
    assert main(["predict", address, image, "--threads", "1"]) == 0, "commands take addresses"
    assert "class-" in capsys.readouterr().out
    assert main(["verify"]) == 0
    assert capsys.readouterr().out == "1 names verified, 0 files damaged\n"


def test_damage_is_named(store: Path, capsys: Capture) -> None:
    main(["pull", f"{store.as_uri()}/meter", "--root", str(store / "metadata/1.root.json")])
    file = Path(capsys.readouterr().out.splitlines()[-1]) / "weights.bin"
    file.chmod(0o644)
    file.write_bytes(bytes(file.stat().st_size))
    assert main(["verify", "--no-repair"]) == 1
    assert f"{file}: damaged\n" in capsys.readouterr().out
    assert main(["verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"names": 1, "damaged": [{"file": str(file), "repaired": True}]}
    assert main(["verify"]) == 0


def test_revoked_and_synced(store: Path, tmp_path: Path, make_bundle: Make, capsys: Capture) -> None:
    keys = str(tmp_path / "keys")
    served = (tmp_path / "served").as_uri()
    second = ["repo", "add", str(store), str(make_bundle("adapter")), "--name", "meter", "--version", "1.1"]
    assert main([*second, "--channel", "beta", "--notes", "adapters"]) == 0
    assert main(["repo", "point", str(store), "meter@1.1", "stable"]) == 0
    assert main(["repo", "publish", str(store), "--keys", keys, "--to", served]) == 0
    assert "were missing there" in capsys.readouterr().out
    assert main(["pull", f"{served}/meter", "--root", str(store / "metadata/1.root.json")]) == 0
    assert main(["repo", "revoke", str(store), "meter@1.1", "--reason", "wrong"]) == 0
    assert "meter@stable is 1.0 after the next publication" in capsys.readouterr().out
    assert main(["repo", "publish", str(store), "--keys", keys, "--to", served]) == 0
    capsys.readouterr()
    assert main(["sync", "--prune", "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)
    assert (outcome["name"], outcome["version"], outcome["said"]) == ("meter@stable", "1.0", "is new")
    assert main(["repo", "list", str(store)]) == 0
    assert "revoked: releases/meter/1.1.json wrong" in capsys.readouterr().out
    assert main(["repo", "list", str(store), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [r["version"] for r in said["releases"]] == ["1.0"] and len(said["roles"]) == 4
    assert main([*second[:-1], "1.1"]) == 2
    assert "it is not published again" in capsys.readouterr().err


def test_modules_sites_and_keys(store: Path, tmp_path: Path, capsys: Capture) -> None:
    keys, lab = str(tmp_path / "keys"), tmp_path / "lab/lab.pem"
    assert main(["repo", "keys", str(lab)]) == 0
    assert main(["repo", "delegate", str(store), "lab", "--key", str(lab.with_suffix(".pub"))]) == 0
    assert main(["repo", "publish", str(store), "--keys", keys]) == 0
    assert "site-lab: waits for 1 more signatures" in capsys.readouterr().out
    assert main(["repo", "add", str(store), str(DIGITS / "store")]) == 0, "all modules of a store"
    assert main(["repo", "add", str(store), str(DIGITS / "store/modules/fog"), "--site", "lab"]) == 0
    assert main(["repo", "publish", str(store), "--keys", keys, str(lab)]) == 0
    root = ["--root", str(store / "metadata/1.root.json")]
    capsys.readouterr()
    assert (
        main(["pull", f"{store.as_uri()}/meter", *root, "--module", "clear", "--module", "lab/fog", "--json"]) == 0
    )
    assert set(json.loads(capsys.readouterr().out)["modules"]) == {"clear", "lab/fog"}
    new = tmp_path / "new/targets.pem"
    assert main(["repo", "keys", str(new)]) == 0
    assert main(["repo", "rotate", str(store), "targets", "--add", str(new.with_suffix(".pub"))]) == 0
    assert main(["repo", "publish", str(store), "--keys", keys]) == 0
    assert "root: version 2 is published" in capsys.readouterr().out
    assert main(["sync", "--quiet"]) == 0


def test_model_signatures(store: Path, tmp_path: Path, make_bundle: Make, capsys: Capture) -> None:
    key = tmp_path / "model.pem"
    signature = tmp_path / "b.sig"
    assert main(["repo", "keys", "--model", str(key)]) == 0
    assert main(["repo", "sign", str(make_bundle()), "--key", str(key), "--out", str(signature)]) == 0
    public = ["--key", str(key.with_suffix(".pub"))]
    assert main(["repo", "verify", str(make_bundle()), "--signature", str(signature), *public]) == 0
    assert main(["repo", "verify", str(make_bundle("adapter")), "--signature", str(signature), *public]) == 2
    assert "is not a signature of it" in capsys.readouterr().err
    assert main(["repo", "sign", str(make_bundle()), "--key", str(key), "--out", str(signature)]) == 2
    signed = ["--name", "signed", "--version", "1", "--sign-with", str(key)]
    assert main(["repo", "add", str(store), str(make_bundle()), *signed]) == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["init", "{store}/x", "--keys", "{store}/x/keys"], "private keys do not belong into the repository"),
        (["init", "{tmp}/y", "--keys", "{tmp}/k", "--threshold", "boss=2"], "want ROLE=N"),
        (["add", "{store}", "{bundle}"], "give the bundle a name and a version"),
        (["add", "{store}", "{bundle}", "--name", "m", "--version", "1", "--site", "lab"], "sites publish modules"),
        (["add", "{store}", "{tmp}", "--name", "m"], "not a bundle"),
        (["add", "{store}", "{bundle}", "--name", "../m", "--version", "1"], "is not a safe name"),
        (["add", "{tmp}", "{bundle}", "--name", "m", "--version", "1"], "not a repository; make one"),
        (["point", "{store}", "meter", "beta"], "want BUNDLE@VERSION"),
        (["point", "{store}", "meter@9", "beta"], "there is no such release"),
        (["revoke", "{store}", "fog"], "is not published here"),
        (["publish", "{store}", "--keys", "{tmp}/nothing"], "cannot be read"),
    ],
)
def test_what_is_refused(
    arguments: list[str],
    message: str,
    store: Path,
    tmp_path: Path,
    make_bundle: Make,
    capsys: Capture,
) -> None:
    words = [a.format(store=store, tmp=tmp_path, bundle=make_bundle()) for a in arguments]
    assert main(["repo", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_an_action_is_a_command_of_its_own(tmp_path: Path, capsys: Capture) -> None:
    for arguments, hint in (
        (["pubish"], "did you mean publish?"),
        (["add", "a", "b", "--nam", "x"], "did you mean --name?"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["repo", *arguments])
        assert hint in capsys.readouterr().err
    (tmp_path / "c.toml").write_text('repository = "store"\nkeys = ["a", "b"]\nto = "s3://x/y"')
    options, _ = parse(["repo", "publish", str(tmp_path / "c.toml"), "--to", "s3://z"])
    assert (options.repository, options.to) == (Path("store"), "s3://z")
    assert [str(key) for key in options.keys] == ["a", "b"]


def test_addresses_stay_out_of_the_log(store: Path, capsys: Capture) -> None:
    main(["pull", f"{store.as_uri()}/meter", "--log-json"])
    first = json.loads(capsys.readouterr().err.splitlines()[0])
    assert "address" not in first["options"] and store.as_uri() not in first["message"]


def test_what_is_to_be_installed(tmp_path: Path) -> None:
    commands = {
        ("pull", "https://store.example/meter"): "fleet",
        ("predict", "https://store.example/meter", "a.png"): "fleet",
        ("repo", "init", tmp_path / "store", "--keys", tmp_path / "keys"): "repo",
    }
    for command, extra in commands.items():
        done = typed(*command, env=environment(tmp_path / "env", ("tuf", "securesystemslib", "cryptography")))
        assert done.returncode == 2
        assert done.stderr.endswith(f'is not installed; run: pip install "pluto-edge[{extra}]"\n'), done.stderr
