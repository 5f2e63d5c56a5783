"""Wrong backends: what the suite must catch, and right ones that it must let pass.

Each is a small change of one plain, slow, right backend. They are installed like any plugin, in a folder of their own,
and run in worker processes like any backend.
"""
