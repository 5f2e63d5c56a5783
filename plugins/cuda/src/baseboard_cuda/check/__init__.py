"""Proofs about the kernels: ``python -m baseboard_cuda.check.compile`` needs no GPU, ``...check.gpu`` needs one."""
