"""`pluto bench`: what is counted, what is measured, and what is said about it. No test looks at a time."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import as_file, files
from io import BytesIO
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from pluto_edge._schema import decode, to_text
from pluto_edge.bench import bench as module
from pluto_edge.bench import bench_plot, fresh, fresh_child, machine
from pluto_edge.bench.bench import Part, Plan, Report, Size, Timing, bench, measure, micro_batches
from pluto_edge.bench.workload import images, open_runtime, steady
from pluto_edge.cli import main
from pluto_edge.cli.bench import as_text, modules, numbers
from pluto_edge.config import AdaptConfig
from pluto_edge.errors import BundleError, ConfigError, MissingExtraError
from pluto_edge.export.exporter import run_export
from pluto_edge.export.random_store import make_random_store
from pluto_edge.manifest import MANIFEST, Bundle, Flops
from pluto_edge.modules import Kind
from pluto_edge.runtime.engine.session import Engine
from pluto_edge.store import Store
from tests.bench.conftest import calm
from tests.conftest import CLASSES, SIZE

PLAN = Plan((1, 3), (1, 2, 3), repeats=2)


def products(graph: Path) -> int:
    """Operations of a graph's matrix products for one image, from onnx's own inference of every shape."""
    model = onnx.load(graph, load_external_data=False)
    for value in model.graph.input:
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param:
                side.dim_value = 1
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    shapes |= {i.name: list(i.dims) for i in model.graph.initializer}
    total = 0
    for node in model.graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            total += 2 * prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
        elif node.op_type == "Conv":
            total += 2 * prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])
    return total


def assert_counted(path: Path) -> None:
    counted = Flops(*(products(path / f"{n}.onnx") for n in ("embed", "forward", "adapt")))
    assert Bundle(path).manifest.flops == counted


@pytest.fixture(scope="module")
def report(make_bundle: Callable[..., Path]) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        calm(patch)
        return bench(Bundle(make_bundle()), PLAN, "cpu", 1)


# what is counted


def test_operations_are_those_of_the_graphs(make_bundle: Callable[..., Path], kind: str) -> None:
    assert_counted(make_bundle(kind))


@pytest.mark.parametrize("learn_from", [1, 3])
def test_operations_of_a_gradient_that_ends_early(
    make_store: Callable[..., Store], kind: Kind, learn_from: int, tmp_path: Path
) -> None:
    run_export(make_store(kind).path, tmp_path / "bundle", learn_from=learn_from)
    assert_counted(tmp_path / "bundle")


def test_an_int8_bundle_does_the_work_of_an_fp32_one(make_bundle: Callable[..., Path]) -> None:
    int8, fp32 = (Bundle(make_bundle(precision=p)).manifest.flops for p in ("int8", "fp32"))
    assert int8 is not None and int8 == fp32


@pytest.mark.parametrize(
    ("architecture", "options", "size"),
    [
        ("vit_tiny_patch16_224", {"embed_dim": 48, "depth": 2, "num_heads": 3, "global_pool": "avg"}, (32, 48)),
        ("deit_tiny_distilled_patch16_224", {"embed_dim": 48, "depth": 2, "num_heads": 3}, (32, 32)),
        (
            "vit_giant_patch14_reg4_dinov2",
            {"embed_dim": 48, "depth": 1, "num_heads": 3, "mlp_ratio": 4.0},
            (28, 28),
        ),
    ],
    ids=["average pooling", "two class tokens", "gated MLP, registers, one block"],
)
def test_operations_of_other_backbones(
    tmp_path: Path, architecture: str, options: dict[str, object], size: tuple[int, int]
) -> None:
    store = make_random_store(
        tmp_path / "store", architecture=architecture, options=options, image_size=size, classes=3, modules=1
    )
    run_export(store.path, tmp_path / "bundle")
    assert_counted(tmp_path / "bundle")


def without_flops(bundle: Path, folder: Path) -> Path:
    """The bundle as exporters wrote it before operations were counted."""
    shutil.copytree(bundle, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["flops"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_a_bundle_that_does_not_know_its_operations(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calm(monkeypatch)
    older = Bundle(without_flops(make_bundle(), tmp_path / "older"))
    report = bench(older, Plan((1,), (1,), repeats=1), "cpu", 1)
    assert report.flops is None and {(p.gflops, p.share) for p in report.parts} == {(None, None)}
    assert "operations are not known" in as_text(report)
    assert decode(Report, json.loads(to_text(report)), "report", BundleError) == report


@pytest.mark.parametrize("wrong", [{"adapt": 0}, {"adapt": 10**19}, {"embed": -1}, {"forward": 1.5}])
def test_operations_that_cannot_be(
    make_bundle: Callable[..., Path], tmp_path: Path, wrong: dict[str, float]
) -> None:
    folder = without_flops(make_bundle(), tmp_path / "bundle")
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"flops": {"embed": 1, "forward": 1, "adapt": 1} | wrong}))
    with pytest.raises(BundleError, match=r"flops.*want"):
        Bundle(folder)


PRODUCTS = {
    "fp32": ("MatMul", (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT)),
    "int8": ("MatMulInteger", (TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32)),
}


def product_graph(kind: str) -> onnx.ModelProto:
    """y = a b for two square matrices of any size, both inputs; the files in `bench/` were written from this."""
    operator, types = PRODUCTS[kind]
    a, b, y = (helper.make_tensor_value_info(name, t, ["n", "n"]) for name, t in zip("aby", types, strict=True))
    graph = helper.make_graph([helper.make_node(operator, ["a", "b"], ["y"])], "peak", [a, b], [y])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])


@pytest.mark.parametrize("kind", PRODUCTS)
def test_the_graphs_of_the_peak_are_what_onnx_makes(kind: str) -> None:
    data = files("pluto_edge.bench").joinpath(f"matmul_{kind}.onnx").read_bytes()
    assert data == product_graph(kind).SerializeToString(deterministic=True)
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)


@pytest.mark.parametrize(
    ("kind", "types"), [("fp32", (np.float32, np.float32)), ("int8", (np.uint8, np.int8))], ids=["fp32", "int8"]
)
def test_the_product_of_the_peak_is_one(kind: str, types: tuple[type, type]) -> None:
    engine = Engine("cpu", 1)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 64, (200, 200)).astype(t) for t in types)
    with as_file(files("pluto_edge.bench") / f"matmul_{kind}.onnx") as path:
        y = engine.open(path)({"a": engine.tensor(a), "b": engine.tensor(b)})["y"].numpy()
    np.testing.assert_array_equal(y, a.astype(np.int64) @ b.astype(np.int64))


# what is measured


def test_warm_up_and_repeats() -> None:
    calls: list[int] = []
    time = measure(lambda: calls.append(1), replace(PLAN, repeats=5))
    assert len(calls) == module.WARM_UP + 5 and time.runs == 5


def test_what_takes_long_is_measured_less_often() -> None:
    assert measure(lambda: None, replace(PLAN, repeats=9, seconds=0.0)).runs == 3
    assert measure(lambda: None, replace(PLAN, repeats=2, seconds=0.0)).runs == 2


def test_median_and_spread_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.001, 1.0, 1.002, 2.0, 2.003, 3.0, 3.004, 4.0, 4.100])
    monkeypatch.setattr(module, "perf_counter", lambda: next(ticks))
    time = measure(lambda: None, replace(PLAN, repeats=5))
    assert time == Timing(pytest.approx(3.0), pytest.approx(2.0), 5)  # 1 2 3 4 100 ms: an outlier moves neither


def test_each_of_three_grows_alone() -> None:
    plan = Plan((1, 8, 64), (1, 2, 6))
    assert plan.batch == 8
    assert plan.sizes == (
        *(Size(b, 6, 6) for b in (1, 8, 64)),
        *(Size(8, n, n) for n in (1, 2)),
        *(Size(8, 6, m) for m in (1, 2)),
    )


def test_steps_leave_nothing_out(make_bundle: Callable[..., Path]) -> None:
    bundle = Bundle(make_bundle())
    with open_runtime(bundle, "cpu", 1, modules=2, top_m=1) as runtime:
        frames = images(bundle, 5)
        assert runtime.modules == bundle.manifest.names[:2] and frames.shape == (5, *SIZE, 3)
        before = runtime.predict(frames)
        events = [runtime.adapt(frames) for _ in range(3)]
        assert [(e.kind, e.reliable, e.guessed) for e in events] == [("step", 5, i > 0) for i in range(3)]
        np.testing.assert_array_equal(runtime.predict(frames).probabilities, before.probabilities)
        assert (before.weights > 0).sum() == 5  # one of two modules


def test_steady_keeps_what_costs_time() -> None:
    config = AdaptConfig(sam="sample", rho=0.1, selector_steps=3, min_reliable=9, recovery=0.2)
    assert steady(config) == replace(
        config, filter=False, min_reliable=1, ln_lr=0, selector_lr=0, guard=False, recovery=None
    )


def test_batches_are_cut_as_the_runtime_cuts_them() -> None:
    assert micro_batches(19, 8) == [8, 8, 3] and micro_batches(8, 8) == [8] and micro_batches(1, 4) == [1]


def test_a_report_has_everything(report: Report) -> None:
    assert [(p.name, p.batch) for p in report.parts] == [
        (name, batch) for batch in (1, 3) for name in ("prepare", "embed", "forward", "adapt", "selector")
    ]
    for part in report.parts:
        count = getattr(report.flops, part.name, None)
        if count is None:
            assert part.gflops is None and part.share is None
        else:
            assert part.gflops == pytest.approx(count * part.batch / (1e6 * part.time.median))
            assert part.share == pytest.approx(part.gflops / report.peak.fp32)
    assert tuple(c.size for c in report.cells) == PLAN.sizes
    times = [t for c in report.cells for t in (c.predict, c.step)] + [p.time for p in report.parts]
    assert all(t.median > 0 and t.spread >= 0 and t.runs == 2 for t in times)
    assert report.peak.int8 is not None and report.busy == () and report.threads == 1
    assert report.dims.classes == CLASSES and report.image == SIZE
    assert [
        [getattr(c.size, n) for c in report.growth[g]] for g, n in (("batch", "batch"), ("modules", "modules"))
    ] == [
        [1, 3],
        [1, 2, 3],
    ]
    assert [(c.size.modules, c.size.top_m) for c in report.growth["blended"]] == [(3, 1), (3, 2), (3, 3)]


def test_start_and_memory_come_from_other_processes(report: Report) -> None:
    assert len(report.starts) == 2
    for start in report.starts:
        assert start.total > start.importing + start.opening + start.predicting > 0
    memory = report.memory
    assert memory.batch == 3 and None not in (memory.open, memory.predict, memory.step)
    own = fresh_child.peak_resident()
    assert own is not None and memory.step is not None and memory.step < own  # this process has torch


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"does not run in a process of its own \(.*BundleError: .*not a bundle"):
        fresh.cold_start(tmp_path, "cpu", 1)


def test_a_report_survives_json(report: Report) -> None:
    assert decode(Report, json.loads(to_text(report)), "report", BundleError) == report


def test_int8_graphs_are_held_against_the_int8_peak(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calm(monkeypatch)
    report = bench(Bundle(make_bundle(precision="int8")), Plan((1,), (1,), repeats=1), "cpu", 1)
    assert report.peak.int8 is not None
    peaks = {"embed": report.peak.fp32, "forward": report.peak.int8, "adapt": report.peak.int8}
    shares = {p.name: p.gflops / p.share for p in report.parts if p.gflops and p.share}
    assert shares == pytest.approx(peaks)
    assert report.flops == Bundle(make_bundle()).manifest.flops


# what is said


@pytest.mark.parametrize(
    ("load", "share", "said"),
    [
        (99.0, 1.0, ["the load average was 99.0 on"]),
        (0.0, 0.4, ["matrix products got 40% of the time of their 1 threads"]),
        (99.0, 0.4, ["the load average was 99.0 on", "matrix products got 40%"]),
        (0.0, 1.0, []),
        (None, 1.0, []),
    ],
)
def test_a_busy_machine_is_noticed(load: float | None, share: float, said: list[str]) -> None:
    found = machine.busy(Engine("cpu", 1), load, machine.Peak(1.0, 1.0, share))
    assert len(found) == len(said) and all(f.startswith(s) for f, s in zip(found, said, strict=True))


def test_the_command(
    make_bundle: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calm(monkeypatch)
    monkeypatch.setattr(machine, "load_average", lambda: 1e3)
    json_file, picture = tmp_path / "a.json", tmp_path / "a.png"
    command = ["bench", str(make_bundle()), "--batch", "2,1", "--repeats", "1", "--threads", "1"]
    assert main([*command, "--json", str(json_file), "--plot", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith(
        "warning: the machine is busy, these times are too long: the load average"
    )
    assert "... the machine is busy" in err and "... parts: batch 2" in err
    rows = [line.split()[:4] for line in out.splitlines()]
    assert (
        ["batch", "1", "3", "3"] in rows
        and ["modules", "2", "1", "1"] in rows
        and ["blended", "2", "3", "2"] in rows
    )
    written = json.loads(json_file.read_text())
    assert written["schema_version"] == 1 and written["busy"] and written["plan"]["batches"] == [1, 2]
    assert Image.open(BytesIO(picture.read_bytes())).size == (1200, 504)
    assert main([*command, "--modules", "1", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("warning: the machine is busy") and len(err.splitlines()) == 1


def test_an_idle_machine_is_not_warned_about(report: Report) -> None:
    text = as_text(report)
    assert "warning" not in text and "forward" in text and "cold start" in text
    unknown = replace(report, memory=fresh.Memory(3, None, None, None), peak=replace(report.peak, int8=None))
    assert "? when open" in as_text(unknown) and "int8" not in as_text(unknown)


def test_columns_by_hand(report: Report) -> None:
    part = Part("forward", 8, Timing(20.0, 1.5, 5), 12.34, 0.42)
    text = as_text(replace(report, parts=(part,)))
    assert ["forward", "8", "20.0", "1.50", "2.50", "12.3", "42%"] in [line.split() for line in text.splitlines()]


def test_one_size_has_one_row_and_a_picture(report: Report) -> None:
    one = replace(report, plan=Plan((3,), (3,)), cells=report.growth["batch"][-1:], busy=("yes",))
    assert [line.split()[:4] for line in as_text(one).splitlines()[-3:-2]] == [["nothing", "3", "3", "3"]]
    for shown in (one, replace(one, architecture="$a_{")):
        assert Image.open(BytesIO(bench_plot.png(shown))).size == (1200, 504)


def test_a_picture_without_matplotlib(
    make_bundle: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r'pip install "pluto-edge\[stream\]"'):
        bench_plot.check()
    assert main(["bench", str(make_bundle()), "--plot", str(tmp_path / "a.png")]) == 2
    assert "pluto-edge[stream]" in capsys.readouterr().err


def test_numbers_and_modules() -> None:
    assert numbers("--batch", "64, 1,8,8") == (1, 8, 64)
    assert modules(None, 6) == (1, 2, 4, 6) and modules(None, 1) == (1,) and modules(None, 4) == (1, 2, 4)
    assert modules("2", 6) == (2,)
    for batches, counts, repeats in (((), (1,), 1), ((0,), (1,), 1), ((2, 1), (1,), 1), ((1,), (1,), 0)):
        with pytest.raises(ConfigError, match="want"):
            Plan(batches, counts, repeats)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "--batch: want numbers from 1 on with commas between them, as in 1,8,64; got '0'"),
        (["--batch", "many"], "got 'many'"),
        (["--batch", "1,,2"], "got '1,,2'"),
        (["--modules", "-1"], "--modules: want numbers from 1 on"),
        (["--modules", "2,9"], "--modules: the bundle has 3, 9 were asked for"),
        (["--repeats", "0"], "repeats: want at least 1, got 0"),
        (["--threads", "0"], "threads: want at least 1"),
        (["--providers", "abacus"], "abacus was asked for"),
        (["--json", "/nowhere/a.json"], "--json: /nowhere/a.json cannot be written"),
        (["--plot", "/"], "--plot: / cannot be written"),
    ],
)
def test_rubbish(
    make_bundle: Callable[..., Path], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(make_bundle()), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1


def test_no_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "not a bundle" in err and len(err.splitlines()) == 1
