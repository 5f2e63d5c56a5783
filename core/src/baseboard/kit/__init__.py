"""Helpers for authors of backend plugins: use what fits, none of it is required.

Import from the modules; this package itself loads nothing.

==================  =================================================================  =====
module              what is in it                                                      torch
==================  =================================================================  =====
``host_memory``     host memory that this process may use, containers included         no
``process_memory``  resident size and its peak                                         no
``pairs``           checks of block ids                                                no
``transfer``        a transfer that has landed                                         no
``batch_checks``    checks of a ``StepBatch``                                          no
``dtypes``          dtype names as torch dtypes and back                               yes
``pool``            zeroed planes in device or pinned memory, exhaustion told alike    yes
``planar``          a KV cache of planes; copy, swap and zero on any cache's planes    yes
``checked``         an attention kernel that checks what it is given                   yes
``instrument``      the same for a whole backend, as an instrument plugin              yes
==================  =================================================================  =====
"""
