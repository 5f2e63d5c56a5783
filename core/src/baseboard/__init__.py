"""Baseboard: an LLM inference core into which hardware plugs like cards into a board."""
