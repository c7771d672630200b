"""Exports a trained model as SavedModel, TFLite or ONNX, and answers raw text with it."""
