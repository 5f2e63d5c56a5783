"""Runs the real torch_npu on a machine without an NPU. Importing this loads neither torch nor the library."""
