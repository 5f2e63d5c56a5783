"""Operators on NPU tensors: checked against their documents, then computed on the CPU."""
