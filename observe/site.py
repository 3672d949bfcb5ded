"""A bundle as a static page that runs it in the browser: files for any web server, which ask no other one."""

import re
import shutil
import subprocess
import tarfile
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from html import escape
from pathlib import Path

from pluto_edge._files import whole_folder
from pluto_edge._look import STREAM
from pluto_edge.errors import ConfigError
from pluto_edge.manifest import BACKBONE_LN, MANIFEST, SEEN, Bundle

__all__ = ["ORT_VERSION", "make_site"]

ORT_VERSION = "1.30.0"  # of onnxruntime-web that the page was tested with; hosts/package.json has the same
# what the page needs of onnxruntime-web, and under which names: servers know .js and .wasm, not all know .mjs
ORT_FILES = {
    "ort.wasm.min.mjs": "ort.js",
    "ort-wasm-simd-threaded.mjs": "glue.js",
    "ort-wasm-simd-threaded.wasm": "ort.wasm",
}
SCRIPTS = ("web.js", "web-worker.js")  # built from hosts/web by `npm run build`
NOT_SERVED = {SEEN, BACKBONE_LN}  # no graph needs them, and hashes of training images are nobody's business
HERE = Path(__file__).parent


def make_site(
    bundle: str | Path,
    out: str | Path,
    *,
    ort: str | Path | None = None,
    name: str = "",
    batch: int = 64,
    rate: float = 10.0,
) -> int:
    """Write the page into the folder `out`, which is replaced as a whole; gives how many bytes it has.

    Args:
        bundle: folder that `pluto export` wrote, in fp32 or int8.
        out: the folder for a web server.
        ort: a folder with onnxruntime-web, as npm installs it; None looks for it here, then fetches it with npm.
        name: the page's title; by itself the bundle's folder.
        batch: frames that a step learns from.
        rate: frames a second that are looked at, at most.
    """
    opened = Bundle(bundle)
    if opened.manifest.precision == "fp16":
        raise ConfigError(f"{bundle}: fp16 is for CUDA; export it for the browser with --precision fp32 or int8")
    if batch < 1:
        raise ConfigError(f"batch: want at least 1 frame, got {batch}")
    if not 0 < rate <= 1000:
        raise ConfigError(f"rate: want more than 0 and at most 1000 frames a second, got {rate}")
    with found_ort(None if ort is None else Path(ort)) as folder, whole_folder(Path(out)) as site:
        (site / "ort").mkdir()
        for given, served in ORT_FILES.items():
            shutil.copyfile(folder / given, site / "ort" / served)
        for file in (MANIFEST, *(f for f in opened.manifest.files if f not in NOT_SERVED)):
            target = site / "bundle" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(opened.file(file), target)
        for script in SCRIPTS:
            shutil.copyfile(HERE / script, site / script)
        (site / "index.html").write_text(page(name or opened.path.resolve().name, batch, rate), "utf-8")
        return sum(f.stat().st_size for f in site.rglob("*") if f.is_file())


def page(name: str, batch: int, rate: float) -> str:
    """The page's HTML. Its policy lets the browser talk to its own server only, and run nothing but its scripts."""
    template = (HERE / "web.html").read_text("utf-8").replace("{{look}}", STREAM)
    style = re.search(r"<style>(.*?)</style>", template, re.S)
    assert style is not None
    own = b64encode(sha256(style[1].encode()).digest()).decode()
    policy = (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
        f"style-src 'sha256-{own}'; img-src 'self' data: blob:; media-src 'self' blob:; base-uri 'none'; "
        "form-action 'none'"
    )
    values = {"policy": policy, "name": escape(name), "batch": str(batch), "rate": f"{rate:g}"}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


@contextmanager
def found_ort(given: Path | None) -> Iterator[Path]:
    """A folder with the files of onnxruntime-web: the one that is given, one that is installed here, or npm's."""
    places = [Path("node_modules"), HERE.resolve().parent / "hosts/node_modules"] if given is None else [given]
    for place in places:
        for folder in (
            place,
            place / "dist",
            place / "onnxruntime-web/dist",
            place / "node_modules/onnxruntime-web/dist",
        ):
            if all((folder / file).is_file() for file in ORT_FILES):
                yield folder
                return
    get = f"npm install --ignore-scripts onnxruntime-web@{ORT_VERSION}"
    if given is not None:
        raise ConfigError(
            f"{given}: no onnxruntime-web in it (there is no {next(iter(ORT_FILES))}); run there: {get}"
        )
    if shutil.which("npm") is None:
        raise ConfigError(
            "onnxruntime-web is not here, and npm, which would fetch it, is not installed. Where there is npm, run "
            f"`{get}`, and give the folder node_modules with --ort"
        )
    with tempfile.TemporaryDirectory() as scratch:
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"onnxruntime-web@{ORT_VERSION}"],
            cwd=scratch,
            capture_output=True,
            text=True,
        )
        archives = list(Path(scratch).glob("*.tgz"))
        if packed.returncode or not archives:
            raise ConfigError(
                f"npm could not fetch onnxruntime-web ({packed.stderr.strip()[-300:] or 'it says nothing'}); "
                f"run `{get}` where there is a network, and give the folder node_modules with --ort"
            )
        with tarfile.open(archives[0]) as archive:
            archive.extractall(scratch, filter="data")
        yield Path(scratch) / "package/dist"
