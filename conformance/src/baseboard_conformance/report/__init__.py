"""Reports: one document, and the ways to show it."""
