"""Other runtimes for the part of a detector behind its encoder: ONNX Runtime and OpenVINO."""
