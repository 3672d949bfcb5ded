"""What ships in examples/: it exports, it predicts, it is small."""

import sys
from pathlib import Path

import numpy as np

from pluto_edge import Runtime
from pluto_edge.export.exporter import run_export
from pluto_edge.store import Store

DIGITS = Path(__file__).parent.parent / "examples/digits"
MAX_BYTES = 8_000_000


def test_digits_store_and_bundle_are_small_and_whole() -> None:
    files = [p for folder in ("store", "bundle") for p in (DIGITS / folder).rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) <= MAX_BYTES
    store = Store(DIGITS / "store")
    assert len(store.names) >= 6
    assert Runtime(DIGITS / "bundle").modules == store.names


def test_digits_export_reproduces_the_bundle(tmp_path: Path) -> None:
    report = run_export(DIGITS / "store", tmp_path / "bundle")
    assert all(e.passed for e in report.manifest.parity)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    shipped, made = Runtime(DIGITS / "bundle").predict(frames), Runtime(tmp_path / "bundle").predict(frames)
    np.testing.assert_allclose(made.logits, shipped.logits, atol=1e-4)


def test_meter_digits_are_read(monkeypatch) -> None:
    """Freshly drawn digits in clear air: far above chance, and above what a broken pipeline could give."""
    monkeypatch.setattr(sys, "path", [str(DIGITS), *sys.path])
    import meter

    rng = np.random.default_rng(3)
    digits = rng.integers(0, 10, 100)
    frames = [meter.CONDITIONS["clear"](meter.render(rng, int(d)), rng) for d in digits]
    runtime = Runtime(DIGITS / "bundle")
    right = np.mean(
        [runtime.classes[i] == str(d) for i, d in zip(runtime.predict(frames).labels, digits, strict=True)]
    )
    assert right > 0.85
    again = meter.render(np.random.default_rng(5), 7)
    np.testing.assert_array_equal(again, meter.render(np.random.default_rng(5), 7))
