"""Bundle to predictions, on the device: numpy and ONNX Runtime, never torch."""
