"""Why CUDA does not load: a library, the driver or a device is missing.

ONNX Runtime says so in a log line and then runs on the CPU. Here the same libraries are loaded one by one, so that
the first one missing has a name.
"""

import ctypes
import re
import sys
from pathlib import Path
from typing import Literal

from pluto_edge._ort import onnxruntime as ort
from pluto_edge._ort import preload_cuda

Part = Literal["cuda", "tensorrt"]  # of ONNX Runtime
INSTALL = 'pip install "pluto-edge[gpu]"'
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def why_not(part: Part = "cuda") -> str:
    """What is missing and what to do about it; empty where nothing is found to be wrong."""
    preload_cuda()
    return _missing_library(_folder(), part) or _missing_device(_driver_name())


def _folder() -> Path:
    """Where ONNX Runtime has its own libraries."""
    return Path(ort.__file__).parent / "capi"


def _missing_library(folder: Path, part: Part) -> str:
    pattern = "onnxruntime_providers_{}.dll" if sys.platform == "win32" else "libonnxruntime_providers_{}.so"
    try:
        for name in dict.fromkeys(("shared", "cuda", part)):
            _load(str(folder / pattern.format(name)), whole=True)
    except OSError as cause:
        found = re.match(r"([\w.+-]+): cannot open shared object file", str(cause))
        if found is None:
            return f"a library of CUDA or cuDNN is missing ({cause}); run: {INSTALL}"
        if found[1] == _driver_name():
            return (
                f"{found[1]} is missing: this machine has no NVIDIA driver, which pip cannot bring "
                "(a container needs the NVIDIA Container Toolkit)"
            )
        if found[1].startswith(("libnvinfer", "libnvonnxparser")) and part == "tensorrt":
            return f"{found[1]} is missing, a library of TensorRT; run: pip install tensorrt"
        return f"{found[1]} is missing, a library of CUDA or cuDNN; run: {INSTALL}"
    return ""


def _missing_device(driver: str) -> str:
    """Asks the driver itself, which is there whenever the libraries could be loaded."""
    try:
        cuda = _load(driver)
    except OSError as cause:
        return f"{driver} is missing: this machine has no NVIDIA driver ({cause})"
    code = cuda.cuInit(0)
    if code == _NO_DEVICE:
        return "the NVIDIA driver is there, and finds no device"
    if code:
        return f"the NVIDIA driver does not start (error {code} of cuInit)"
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    has, needs = version.value // 1000, _built_for()
    if needs is not None and has < needs:
        return f"the NVIDIA driver is for CUDA {has}, and this ONNX Runtime for CUDA {needs}: update the driver"
    return ""


def _built_for() -> int | None:
    """The major version of CUDA that this ONNX Runtime was built for."""
    version = getattr(ort, "cuda_version", None) or ""
    return int(version.split(".")[0]) if version[:1].isdigit() else None


def _driver_name() -> str:
    return "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def _load(path: str, *, whole: bool = False) -> ctypes.CDLL:
    """`whole`: for the libraries that are loaded after it, too."""
    return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL if whole else ctypes.DEFAULT_MODE)
