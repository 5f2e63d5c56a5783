"""Which request computes how many tokens in the next step, and what its results mean."""
