"""A store becomes a bundle, whole or not at all."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from pluto_edge import tolerances
from pluto_edge._ort import onnxruntime
from pluto_edge.errors import BundleError, ConfigError, ParityError, StoreError
from pluto_edge.export import exporter, parity
from pluto_edge.export.exporter import run_export
from pluto_edge.export.graph import GraphBuilder
from pluto_edge.manifest import MANIFEST, Bundle
from pluto_edge.modules import LOGIT_MEANS, Kind
from pluto_edge.store import Store

OUTPUTS = (
    "tokens",
    "x_hat",
    "logits",
    "activations",
    "adapt.logits",
    "adapt.activations",
    "adapt.entropy",
    "adapt.ln_scale_grad",
    "adapt.ln_bias_grad",
    "adapt.ln_scale_grad of all terms",
    "adapt.ln_bias_grad of all terms",
)


def test_bundle_is_complete(make_bundle: Callable[..., Path], make_store: Callable[..., Store], kind: Kind) -> None:
    path, store = make_bundle(kind), make_store(kind)
    bundle = Bundle(path)
    listed = set(bundle.manifest.files) | {MANIFEST}
    assert listed == {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    assert bundle.manifest.names == store.names
    assert bundle.manifest.preprocessing == store.config.preprocessing
    assert {(e.output, e.batch) for e in bundle.manifest.parity} == {(o, b) for o in OUTPUTS for b in (1, 2, 5)}
    assert all(e.passed for e in bundle.manifest.parity)
    for name in store.names:
        module, exported = store.load_module(name), bundle.load_module(name)
        for key, value in module.tensors.items():
            np.testing.assert_array_equal(exported.tensors[key], value)
        assert exported.tensors["ln_scale"].shape == module.dims.ln_shape


def test_graphs_share_one_weights_file(make_bundle: Callable[..., Path]) -> None:
    path = make_bundle()
    for name in ("embed.onnx", "forward.onnx", "adapt.onnx"):
        model = onnx.load(path / name, load_external_data=False)
        outside = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        assert outside
        locations = {e.value for t in outside for e in t.external_data if e.key == "location"}
        assert locations == {"weights.bin"}
        assert model.opset_import[0].version == 20
        assert {p.key for p in model.metadata_props} >= {"pluto_edge.writer", "pluto_edge.backbone"}
        assert all(i.doc_string for i in model.graph.input)
        assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_a_modules_own_layer_norms_are_kept(make_store: Callable[..., Store], tmp_path: Path) -> None:
    shutil.copytree(make_store().path, tmp_path / "store")
    file = tmp_path / "store/modules/domain-1/adapter_model.safetensors"
    own = {"ln_scale": np.full((7, 48), 0.9, np.float32), "ln_bias": np.full((7, 48), 0.1, np.float32)}
    save_file({**load_file(file), **own}, file)
    run_export(tmp_path / "store", tmp_path / "bundle")
    bundle = Bundle(tmp_path / "bundle")
    np.testing.assert_array_equal(bundle.load_module("domain-1").tensors["ln_scale"], own["ln_scale"])
    assert not np.array_equal(bundle.load_module("domain-0").tensors["ln_scale"], own["ln_scale"])


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_other_precisions(make_bundle: Callable[..., Path], precision: str, kind: Kind) -> None:
    plain, small = Bundle(make_bundle(kind)), Bundle(make_bundle(kind, precision=precision))
    assert small.manifest.precision == precision
    sizes = [b.manifest.files["weights.bin"].size for b in (plain, small)]
    assert sizes[1] < 1.6 * sizes[0]  # fp16: beside the fp32 weights of the gradient
    for output in ("logits", "activations"):
        entries = [e for e in small.manifest.parity if e.output == output]
        assert len(entries) == 3 and all(1e-6 < e.error < e.tolerance for e in entries)
    gradients = [e for e in small.manifest.parity if "_grad" in e.output]
    assert len(gradients) == 3 * 4 and {e.tolerance for e in gradients} == {tolerances.GRADIENT}
    model = onnx.load(small.path / "forward.onnx", load_external_data=False)
    types = {t.data_type for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL}
    wanted = onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.INT8
    assert wanted in types
    io = [*model.graph.input, *model.graph.output]
    assert {v.type.tensor_type.elem_type for v in io} == {onnx.TensorProto.FLOAT}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_portable_bundle(make_bundle: Callable[..., Path], kind: Kind, precision: str) -> None:
    """Compared with torch like any other, gradients too; what providers differ in is not in it."""
    bundle = Bundle(make_bundle(kind, precision=precision, profile="portable"))
    assert bundle.manifest.profile == "portable" and bundle.manifest.batch is None
    assert {(e.output, e.batch) for e in bundle.manifest.parity} == {(o, b) for o in OUTPUTS for b in (1, 2, 5)}
    for name in ("embed.onnx", "forward.onnx", "adapt.onnx"):
        graph = onnx.load(bundle.file(name), load_external_data=False).graph
        constants = {t.name for t in graph.initializer}
        for node in graph.node:
            if node.op_type == "LayerNormalization":
                assert len(node.output) == 1 and set(node.input[1:]) <= constants
            assert node.op_type != "Gather"
            assert node.op_type != "Gemm" or (len(node.input) == 2 and node.input[1] in constants)
        assert all(len(p.type.tensor_type.shape.dim) > 0 for p in [*graph.input, *graph.output])


@pytest.mark.parametrize("batch", [1, 4])
def test_a_fixed_batch(make_bundle: Callable[..., Path], kind: Kind, batch: int) -> None:
    bundle = Bundle(make_bundle(kind, profile="portable", batch=batch))
    assert bundle.manifest.batch == batch
    for name, first in (("embed.onnx", batch), ("forward.onnx", batch), ("adapt.onnx", "batch")):
        graph = onnx.load(bundle.file(name), load_external_data=False).graph
        dim = graph.input[0].type.tensor_type.shape.dim[0]
        assert (dim.dim_param or dim.dim_value) == first
        shaped = {"Shape", "Expand"} & {node.op_type for node in graph.node}
        assert not shaped or name == "adapt.onnx"


def test_profiles_that_make_no_sense(make_store: Callable[..., Store], tmp_path: Path) -> None:
    for options, message in (
        ({"profile": "portable", "precision": "int8"}, "a portable bundle is fp32 or fp16"),
        ({"batch": 4}, "are for profile 'portable', not 'default'"),
        ({"profile": "portable", "batch": 0}, "want 1 to 1,024 images, got 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_export(make_store().path, tmp_path / "bundle", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "bundle").exists()


def test_int8_leaves_modules_and_attention_alone(make_bundle: Callable[..., Path]) -> None:
    model = onnx.load(make_bundle("adapter", precision="int8") / "forward.onnx", load_external_data=False)
    plain = onnx.load(make_bundle("adapter") / "forward.onnx", load_external_data=False)

    def count(m: onnx.ModelProto, kind: str) -> int:
        return sum(n.op_type == kind for n in m.graph.node)

    frozen = 3 * 6 - 3  # q, k, v, proj, fc1, fc2 in three blocks, but for the first block's q, k and v
    assert count(model, "MatMulInteger") == frozen
    # the quantizer writes Gemms as MatMul and Add, and leaves them in fp32
    assert count(model, "MatMul") == count(plain, "MatMul") + count(plain, "Gemm") - frozen


def test_int8_gradients_point_where_those_of_fp32_do(make_bundle: Callable[..., Path], kind: Kind) -> None:
    names = ["ln_scale_grad", "ln_bias_grad"]
    tokens = np.random.default_rng(0).standard_normal((4, 21, 48)).astype(np.float32)
    tokens[:, 0] *= 30  # a class token far larger than the rest
    found = []
    rng = np.random.default_rng(1)
    objective = {
        "threshold": np.inf,
        "entropy_weight": 1.0,
        "align_offset": 0.1 * rng.standard_normal((4, 48)),
        "align_slope": 0.1 * rng.standard_normal((4, 48)),
        "target": rng.random((4, 7)),
    }
    for precision in ("fp32", "int8"):
        bundle = Bundle(make_bundle(kind, precision=precision))
        session = onnxruntime.InferenceSession(bundle.path / "adapt.onnx", providers=["CPUExecutionProvider"])
        feed = {"tokens": tokens, **{n: np.asarray(v, np.float32) for n, v in objective.items()}}
        feed |= {n: v for n, v in bundle.load_module("domain-0").tensors.items() if n != LOGIT_MEANS}
        found.append(np.stack(session.run(names, feed)))
    exact, got = found
    # row by row: one LayerNorm whose gradient is wrong hides behind a large one
    along = (exact * got).sum(axis=-1) / np.linalg.norm(exact, axis=-1) / np.linalg.norm(got, axis=-1)
    assert along.min() > 0.97
    assert not np.array_equal(exact, got)
    weights = [Bundle(make_bundle(kind, precision=p)).manifest.files["weights.bin"].size for p in ("fp32", "int8")]
    assert weights[1] < weights[0]


def test_mismatch_leaves_no_bundle(
    make_store: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"fp32": (tolerances.EMBED_FP32, 1e-30, tolerances.ACTIVATIONS_FP32)}
    monkeypatch.setattr(parity, "_TOLERANCES", wrong)
    with pytest.raises(ParityError, match="logits at batch 1") as caught:
        run_export(make_store().path, tmp_path / "bundle")
    assert len(caught.value.entries) == 3 * len(OUTPUTS)
    assert list(tmp_path.iterdir()) == []


def test_parity_sees_a_baked_in_layer_norm(
    make_store: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that ignores the module's affines agrees with torch only where they are the backbone's."""
    original = exporter.build_forward

    def baked(g, vit, dims, **options):
        def norm(self, x, index, epsilon):  # the affines of the backbone, as constants
            layer = exporter.TorchViT(vit).backbone_ln()
            scale, bias = (self.g.constant(layer[k][index].numpy()) for k in ("ln_scale", "ln_bias"))
            return self.layers.norm(x, index, scale, bias, epsilon)

        with monkeypatch.context() as patch:
            patch.setattr("pluto_edge.export.vit_graph.VitGraph.norm", norm)
            original(g, vit, dims, **options)

    monkeypatch.setattr(exporter, "build_forward", baked)
    with pytest.raises(ParityError, match="logits"):
        run_export(make_store().path, tmp_path / "bundle")


@pytest.mark.parametrize("lost", ["align_offset", "align_slope", "target", "entropy_weight"])
def test_parity_sees_a_lost_term(
    make_store: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """A gradient graph that ignores one of its inputs."""
    original = GraphBuilder.input

    def deaf(self, name, shape, doc):
        value = original(self, name, shape, doc)
        return self.op("Mul", value, self.scalar(0.0)) if name == lost else value

    monkeypatch.setattr(GraphBuilder, "input", deaf)
    with pytest.raises(ParityError, match="of all terms at batch 1"):
        run_export(make_store().path, tmp_path / "bundle")


def test_an_existing_bundle_is_replaced_only_with_force(make_store: Callable[..., Store], tmp_path: Path) -> None:
    store, out = make_store().path, tmp_path / "bundle"
    run_export(store, out)
    before = (out / MANIFEST).read_bytes()
    with pytest.raises(BundleError, match="--force"):
        run_export(store, out)
    assert (out / MANIFEST).read_bytes() == before
    run_export(store, out, force=True)
    Bundle(out)
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_force_never_deletes_what_is_not_a_bundle(make_store: Callable[..., Store], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/holiday.jpg").write_text("dear")
    with pytest.raises(BundleError, match="not a bundle"):
        run_export(make_store().path, tmp_path / "photos", force=True)
    assert (tmp_path / "photos/holiday.jpg").read_text() == "dear"


def test_stores_that_cannot_be_exported(make_store: Callable[..., Store], tmp_path: Path) -> None:
    shutil.copytree(make_store().path, tmp_path / "store")
    store = Store(tmp_path / "store")
    store.selector_file.unlink()
    with pytest.raises(StoreError, match="selector"):
        run_export(store.path, tmp_path / "bundle")
    store.set_config(sources=())
    with pytest.raises(StoreError, match="holds no module"):
        run_export(store.path, tmp_path / "bundle")
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


KILLED = """
import os, signal, sys
from pluto_edge.export.exporter import STAGES, run_export
store, place = sys.argv[1:]
def stop_at(last):
    def stop(stage):
        if stage == last: os.kill(os.getpid(), signal.SIGKILL)
    return stop
for stage in STAGES:
    process = os.fork()
    if not process:
        run_export(store, f"{place}/{stage}/bundle", force=True, on_stage=stop_at(stage))
        os._exit(0)
    print(stage, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


@pytest.fixture(scope="module")
def killed(make_store: Callable[..., Store], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For every stage a folder with a bundle and an export in its place that was killed as the stage began.

    They are children of one process, so that torch is imported once.
    """
    store, place = make_store().path, tmp_path_factory.mktemp("killed")
    run_export(store, place / "whole")
    for stage in exporter.STAGES:
        shutil.copytree(place / "whole", place / stage / "bundle")
    command = [sys.executable, "-c", KILLED, str(store), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{stage} {-signal.SIGKILL}" for stage in exporter.STAGES]
    return place


@pytest.mark.parametrize("stage", exporter.STAGES)
def test_a_killed_export_leaves_the_old_bundle(make_store: Callable[..., Store], killed: Path, stage: str) -> None:
    """The process kills itself, with SIGKILL, as a stage begins."""
    folder, out = killed / stage, killed / stage / "bundle"
    assert (out / MANIFEST).read_bytes() == (killed / "whole" / MANIFEST).read_bytes()
    Bundle(out)
    run_export(make_store().path, out, force=True)  # and sweeps up what the killed one left
    assert [p.name for p in folder.iterdir()] == ["bundle"]


def test_same_store_same_bytes(
    make_store: Callable[..., Store], make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    run_export(make_store().path, tmp_path / "again")
    first, second = Bundle(make_bundle()).manifest, Bundle(tmp_path / "again").manifest
    assert first.files == second.files
    assert replace(first, parity=()) == replace(second, parity=())


def test_export_memory_does_not_hold_all_modules(make_store: Callable[..., Store], tmp_path: Path) -> None:
    """75 modules go through one at a time; parity keeps three."""
    seen = []
    original = Store.load_module

    def load(self: Store, name: str):
        seen.append(name)
        return original(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "load_module", load)
        run_export(make_store(modules=75).path, tmp_path / "bundle")
    assert len(seen) == 75
    assert len(json.loads((tmp_path / "bundle" / MANIFEST).read_text())["modules"]) == 75
