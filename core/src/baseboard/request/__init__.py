"""One request: what it is asked to do, what it has so far, and the one table of its states."""
