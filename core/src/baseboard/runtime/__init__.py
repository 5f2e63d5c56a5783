"""The torch side: loads a model, connects it with a backend, builds each step, samples."""
