"""Backends that come with the core; plugins like any other, found through the same entry points."""
