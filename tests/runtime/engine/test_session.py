"""Providers are honoured or raise; tensors stay where they are."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pluto_edge.errors import BundleError, ConfigError, ProviderError
from pluto_edge.manifest import EMBED
from pluto_edge.runtime.engine import cuda, providers, session
from pluto_edge.runtime.engine.providers import CPU, CUDA, OPENVINO, TENSORRT, loads, with_settings
from pluto_edge.runtime.engine.session import Engine


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
    real = providers.ort.InferenceSession
    monkeypatch.setattr(providers.ort, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(
        providers.ort, "InferenceSession", lambda *a, providers, **k: real(*a, providers=[CPU], **k)
    )
    monkeypatch.setattr(cuda, "why_not", lambda: "libcudnn.so.9 is missing")
    assert loads(CUDA) == "libcudnn.so.9 is missing"
    assert Engine().provider == CPU
    with pytest.raises(ProviderError, match=r"does not load: libcudnn\.so\.9 is missing"):
        Engine("cuda")
    monkeypatch.setattr(cuda, "why_not", lambda: "")
    assert "fell back" in loads(CUDA)


def test_a_session_that_drops_a_provider_raises(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, bundle = Engine("cpu"), make_bundle()
    engine.providers[EMBED] = [CUDA, CPU]
    real = session.ort.InferenceSession
    monkeypatch.setattr(
        session.ort, "InferenceSession", lambda p, o, providers, **k: real(p, o, providers=[CPU], **k)
    )
    with pytest.raises(ProviderError, match="the session runs on CPU"):
        engine.open(bundle / "embed.onnx")


def test_a_provider_that_takes_nothing_of_a_graph_raises(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, bundle = Engine("cpu"), make_bundle()
    graph = engine.open(bundle / "embed.onnx")
    assert graph.operators[CPU] > 5
    monkeypatch.setattr(session, "_operators", lambda made: {CUDA: 0, CPU: 9})
    engine.providers[EMBED] = [CUDA]
    monkeypatch.setattr(session, "arguments", lambda chosen, options: {"providers": [CPU]})
    with pytest.raises(ProviderError, match=r"embed\.onnx: CUDAExecutionProvider .* takes no operator"):
        engine.open(bundle / "embed.onnx")


def test_each_graph_where_it_was_asked_for() -> None:
    for wanted in ({"embed": "cpu", "forward": ["cpu"], "adapt": None}, "embed=cpu, forward=cpu, adapt=auto"):
        engine = Engine(wanted)
        assert engine.providers.keys() == {"embed.onnx", "forward.onnx", "adapt.onnx"}
        assert engine.provider == CPU and engine.device == "cpu"
    with pytest.raises(ConfigError, match="'adapt' is missing; want one for each of embed, forward, adapt"):
        Engine("embed=cpu,forward=cpu")
    with pytest.raises(ConfigError, match="'fly' is no graph"):
        Engine({"embed": "cpu", "forward": "cpu", "adapt": "cpu", "fly": "cpu"})
    with pytest.raises(ProviderError, match="NoSuchProvider"):
        Engine({"embed": "cpu", "forward": "cpu", "adapt": ["NoSuchProvider"]})


@pytest.mark.skipif(not loads(OPENVINO), reason="OpenVINO loads on this machine")
def test_what_is_not_there_says_what_brings_it() -> None:
    with pytest.raises(
        ProviderError, match=r'OpenVINOExecutionProvider .*run: pip install "pluto-edge\[openvino\]"'
    ):
        Engine("openvino")


def test_a_plugin_is_registered_and_its_device_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that bring a provider for whatever build is there: they are given by device, not by name."""
    registered = []

    class Device:
        ep_name = "WebGpuExecutionProvider"

    class Options:
        given: object = None

        def add_provider_for_devices(self, devices: list[object], settings: dict[str, str]) -> None:
            self.given = devices, settings

    class Package:
        @staticmethod
        def get_library_path() -> str:
            return "libwebgpu.so"

    monkeypatch.setattr(providers, "find_spec", lambda name: object() if name == "onnxruntime_ep_webgpu" else None)
    monkeypatch.setattr(providers, "import_module", lambda name: Package)
    monkeypatch.setattr(
        providers.ort, "register_execution_provider_library", lambda name, path: registered.append((name, path))
    )
    devices = [Device(), Device()]
    monkeypatch.setattr(providers.ort, "get_ep_devices", lambda: devices if registered else [])
    for cached in (providers.devices, providers.plugin_problem):
        cached.cache_clear()
        monkeypatch.setattr(providers, cached.__name__, cached)
    try:
        assert "WebGpuExecutionProvider" in providers.installed()
        options = Options()
        assert providers.arguments([("WebGpuExecutionProvider", {"a": 1})], options) == {}
        assert options.given == (devices[:1], {"a": "1"})
        assert registered == [("onnxruntime_ep_webgpu", "libwebgpu.so")]
        devices.clear()
        providers.devices.cache_clear()
        assert loads("WebGpuExecutionProvider") == (
            "onnxruntime_ep_webgpu is installed, and finds no device that it runs on"
        )
    finally:
        for cached in (providers.devices, providers.plugin_problem):
            cached.cache_clear()


def test_what_providers_must_be_told() -> None:
    batched = {"tokens": (None, 5, 8), "target": (None, 3)}
    assert with_settings(CPU, 2, batched, 16) == CPU
    name, options = with_settings(TENSORRT, 2, batched, 16)
    assert name == TENSORRT
    assert options == {
        "trt_profile_min_shapes": "tokens:1x5x8,target:1x3",
        "trt_profile_opt_shapes": "tokens:16x5x8,target:16x3",
        "trt_profile_max_shapes": "tokens:16x5x8,target:16x3",
    }


def openvino_told(provider: providers.Provider) -> dict[str, object]:
    name, options = with_settings(provider, 2, {}, 16)
    assert name == OPENVINO and set(options) == {"load_config"}  # its plugin ignores every other option, silently
    return json.loads(options["load_config"])["CPU"]


def test_openvino_is_told_by_its_own_configuration() -> None:
    assert openvino_told(OPENVINO) == {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
    assert openvino_told((OPENVINO, {"num_of_threads": "1"}))["INFERENCE_NUM_THREADS"] == 1
    assert openvino_told((OPENVINO, {"precision": "BF16"}))["INFERENCE_PRECISION_HINT"] == "bf16"
    assert openvino_told((OPENVINO, {"precision": "ACCURACY"}))["INFERENCE_PRECISION_HINT"] == "f32"
    gpu = (OPENVINO, {"device_type": "GPU", "precision": "FP16"})
    assert with_settings(gpu, 2, {}, 1) == gpu  # what it is told is of the CPU


def test_bfloat16_has_a_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "loads", lambda provider: "")
    assert providers.choose("OpenVINO-BF16") == [(OPENVINO, {"precision": "BF16"})]
    cached = providers.choose([("openvino-bf16", {"cache_dir": "there"})])
    assert cached == [(OPENVINO, {"precision": "BF16", "cache_dir": "there"})]
    assert providers.choose("openvino") == [OPENVINO]


def test_bfloat16_wants_a_processor_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers.ort, "get_available_providers", lambda: [OPENVINO, CPU])
    monkeypatch.setattr(providers, "cpu_flags", lambda: {"avx2", "avx512f"})
    with pytest.raises(ProviderError, match="this processor does not compute in bfloat16"):
        providers.choose("openvino-bf16")


def test_a_provider_is_tried_as_it_will_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of ONNX Runtime with OpenVINO in it knows no option "BF16", and would fall back to the CPU."""
    tried: list[object] = []

    def session(path: object, options: object, providers: object, **more: object) -> SimpleNamespace:
        tried.append(providers)
        return SimpleNamespace(get_providers=lambda: [OPENVINO, CPU], run=lambda *_: [])

    monkeypatch.setattr(providers.ort, "get_available_providers", lambda: [OPENVINO, CPU])
    monkeypatch.setattr(providers.ort, "InferenceSession", session)
    monkeypatch.setattr(providers, "cpu_flags", lambda: {"avx512_bf16"})
    wanted = (OPENVINO, {"precision": "BF16"})
    assert not loads(wanted)
    assert tried == [[with_settings(wanted, 1, {}, 1)]]


def test_a_registered_plugin_is_not_taken_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime lists a plugin's provider from its registration on, and ignores it among `providers`."""
    listed = [CPU]
    monkeypatch.setattr(providers.ort, "get_available_providers", lambda: list(listed))
    monkeypatch.setattr(
        providers.ort, "register_execution_provider_library", lambda *_: listed.append("WebGpuExecutionProvider")
    )
    monkeypatch.setattr(
        providers, "import_module", lambda name: SimpleNamespace(get_library_path=lambda: "library")
    )
    monkeypatch.setattr(providers, "_by_plugin", set())
    try:
        providers.plugin_problem.cache_clear()
        assert providers.plugin_problem("onnxruntime_ep_webgpu") == ""
        assert providers.built_in() == [CPU]
    finally:
        providers.plugin_problem.cache_clear()


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
