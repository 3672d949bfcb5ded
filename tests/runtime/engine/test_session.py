"""Providers are honoured or raise; tensors stay where they are."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pluto_edge.errors import BundleError, ConfigError, ProviderError
from pluto_edge.runtime.engine import session
from pluto_edge.runtime.engine.session import CPU, CUDA, Engine, loads


def test_auto_takes_the_cpu_where_there_is_no_cuda() -> None:
    engine = Engine()
    assert engine.provider in (CPU, CUDA)
    assert Engine("auto").provider == engine.provider
    assert Engine("cpu").provider == Engine([CPU]).provider == Engine([("cpu", {})]).provider == CPU


@pytest.mark.skipif(not loads(CUDA), reason="CUDA loads on this machine")
def test_asking_for_cuda_without_it_raises() -> None:
    for request in ("cuda", [CUDA], [CUDA, CPU], [("cuda", {"device_id": 0})]):
        with pytest.raises(ProviderError, match=r"CUDAExecutionProvider was asked for.*does not load"):
            Engine(request)


def test_nonsense_raises() -> None:
    with pytest.raises(ProviderError, match="NoSuchProvider"):
        Engine(["NoSuchProvider"])
    with pytest.raises(ConfigError, match="empty list"):
        Engine([])
    with pytest.raises(ConfigError, match="threads"):
        Engine(threads=0)
    with pytest.raises(ProviderError, match="an int8 bundle"):
        Engine("cuda", cpu_only="an int8 bundle runs on the CPU")


def test_a_provider_that_falls_back_is_not_taken_for_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ONNX Runtime does when CUDA's libraries are missing: a log line, and a session on the CPU."""
    real = session.ort.InferenceSession
    monkeypatch.setattr(session.ort, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(session.ort, "InferenceSession", lambda *a, providers, **k: real(*a, providers=[CPU], **k))
    assert "fell back" in loads(CUDA)
    assert Engine().provider == CPU
    with pytest.raises(ProviderError, match="fell back"):
        Engine("cuda")


def test_a_session_that_drops_a_provider_raises(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, bundle = Engine("cpu"), make_bundle()
    engine.providers = [CUDA, CPU]
    real = session.ort.InferenceSession
    monkeypatch.setattr(session.ort, "InferenceSession", lambda p, o, providers: real(p, o, providers=[CPU]))
    with pytest.raises(ProviderError, match="the session runs on CPU"):
        engine.open(bundle / "embed.onnx")


def test_a_broken_graph_is_a_bundle_error(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"rubbish")
    with pytest.raises(BundleError, match=r"x\.onnx: ONNX Runtime cannot load"):
        Engine().open(tmp_path / "x.onnx")


def test_threads_reach_the_session(make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = session.ort.InferenceSession

    def create(*arguments: object, **options: object) -> object:
        made.append(real(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(session.ort, "InferenceSession", create)
    engine = Engine("cpu", threads=1)
    made.clear()  # what was tried to see which provider loads
    graph = engine.open(make_bundle() / "embed.onnx")
    assert [s.get_session_options().intra_op_num_threads for s in made] == [1]
    assert graph.inputs == ("pixels",)
    assert graph.outputs == ("tokens", "x_hat")


def test_tensors_are_bound_not_copied() -> None:
    engine = Engine("cpu")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = engine.tensor(array)
    assert tensor.device_name() == "cpu"
    assert tensor.data_ptr() == array.ctypes.data
