"""The paged KV cache as bookkeeping: which block holds what, and who may write it. Ids and token ids only."""
