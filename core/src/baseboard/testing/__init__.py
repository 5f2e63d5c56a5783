"""A scheduler without a device: simulation, fault injection and invariant checks. Runs without torch."""

from baseboard.testing.device import SimulatedDevice
from baseboard.testing.handle import Handle
from baseboard.testing.simulation import Simulation

__all__ = ["Handle", "SimulatedDevice", "Simulation"]
