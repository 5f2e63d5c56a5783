"""The command line. ``main`` is the console script; each command is a module of its own."""
