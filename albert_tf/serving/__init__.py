"""A trained model -> a SavedModel, TFLite or ONNX model for raw text; answers of either."""
