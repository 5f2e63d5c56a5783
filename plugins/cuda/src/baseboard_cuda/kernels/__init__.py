"""What runs on the GPU, in Triton. Importing a module of this package imports triton, but opens no device.

Rules that all kernels follow:

* Offsets into pools and activations are 64-bit: a pool has more than 2^31 elements.
* A load is masked wherever its address could be outside what the sequence owns, and what is masked reads as zero.
* Nothing depends on how the interpreter rounds ``bfloat16``: it does so wrongly, silently.
* Every launch says whether multiplications and additions are fused: ``baseboard_cuda.launching``.
"""
