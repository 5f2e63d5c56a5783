"""The conformance suite: proves a Baseboard backend in one command."""

from typing import Final

#: Version of the suite; the version of the contract it tests is the manifest's.
__version__: Final = "0.1.0.dev0"
