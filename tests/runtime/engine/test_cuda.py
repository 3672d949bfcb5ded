"""What is missing where CUDA does not load: by name, and with what to do."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pluto_edge import _ort
from pluto_edge.runtime.engine import cuda


class Driver:
    """libcuda as it answers on a machine of a kind."""

    def __init__(self, code: int = 0, version: int = 13000) -> None:
        self.code, self.version = code, version

    def cuInit(self, flags: int) -> int:
        return self.code

    def cuDriverGetVersion(self, pointer: Any) -> int:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = self.version
        return 0


def machine(
    monkeypatch: pytest.MonkeyPatch, driver: Driver | None = None, missing: str = "", part: str = "cuda"
) -> None:
    """One with a driver, or one on which a library is missing when ONNX Runtime's own is loaded."""

    def load(path: str, *, whole: bool = False) -> Any:
        if missing and path.endswith(f"providers_{part}.so"):
            raise OSError(f"{missing}: cannot open shared object file: No such file or directory")
        return driver

    monkeypatch.setattr(cuda, "_load", load)
    monkeypatch.setattr(cuda, "_driver_name", lambda: "libcuda.so.1")
    monkeypatch.setattr(cuda, "_built_for", lambda: 13)


def test_a_missing_library_has_a_name_and_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, missing="libcublasLt.so.13")
    assert cuda.why_not() == (
        'libcublasLt.so.13 is missing, a library of CUDA or cuDNN; run: pip install "pluto-edge[gpu]"'
    )


def test_a_missing_driver_is_not_pips(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, missing="libcuda.so.1")
    said = cuda.why_not()
    assert said.startswith("libcuda.so.1 is missing: this machine has no NVIDIA driver") and "run:" not in said


def test_tensorrt_is_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Driver(), missing="libnvinfer.so.10", part="tensorrt")
    assert cuda.why_not() == ""
    assert cuda.why_not("tensorrt") == (
        "libnvinfer.so.10 is missing, a library of TensorRT; run: pip install tensorrt"
    )


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (Driver(code=100), "the NVIDIA driver is there, and finds no device"),
        (Driver(code=803), "the NVIDIA driver does not start (error 803 of cuInit)"),
        (
            Driver(version=12020),
            "the NVIDIA driver is for CUDA 12, and this ONNX Runtime for CUDA 13: update the driver",
        ),
        (Driver(), ""),
    ],
)
def test_the_driver_is_asked(monkeypatch: pytest.MonkeyPatch, driver: Driver, said: str) -> None:
    machine(monkeypatch, driver)
    assert cuda.why_not() == said


def test_a_library_that_is_no_library(tmp_path: Path) -> None:
    """What the system's loader says is passed on, where it names nothing that is missing."""
    (tmp_path / "libonnxruntime_providers_shared.so").write_bytes(b"rubbish")
    assert "libonnxruntime_providers_shared.so" in cuda._missing_library(tmp_path, "cuda")


@pytest.mark.parametrize("build", [["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]])
def test_libraries_are_preloaded_once_where_the_build_uses_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], build: list[str]
) -> None:
    calls = []

    def preload() -> None:
        calls.append(1)
        print("Failed to load libcublas.so.13")

    monkeypatch.setattr(_ort.onnxruntime, "get_available_providers", lambda: build)
    monkeypatch.setattr(_ort.onnxruntime, "preload_dlls", preload)
    once: Callable[[], None] = _ort.preload_cuda
    _ort.preload_cuda.cache_clear()
    once()
    once()
    _ort.preload_cuda.cache_clear()
    assert len(calls) == len(build) - 1
    assert capsys.readouterr().out == ""
