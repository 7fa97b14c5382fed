"""torch -> ONNX -> TensorRT, and the proof that they agree."""
