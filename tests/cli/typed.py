"""Commands typed in a shell of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKSTATION = ("torch", "timm", "torchvision", "onnx", "onnxscript", "onnx_ir", "tqdm", "ray")
PICTURES = ("matplotlib", "rich", "cv2")


def environment(folder: Path, without: tuple[str, ...] = (), **more: str) -> dict[str, str]:
    """As if these packages were not installed: `folder` is what hides them."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({without!r}))\n")
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def typed(
    *arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """`pluto` and its arguments; a first argument that is a Python file is run instead."""
    words = list(map(str, arguments))
    command = words if words[0].endswith(".py") else ["-m", "pluto_edge.cli", *words]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, env=env, cwd=cwd, input=stdin, check=False
    )
    out, err = (text.decode(errors="surrogateescape") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)
