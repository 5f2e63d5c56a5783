"""Requests in, text out: the loop that drives scheduler and executor, and the one place that wires them."""
