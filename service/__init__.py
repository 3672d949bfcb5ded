"""A service for many cameras: `pluto serve` (onnxruntime; never torch)."""
