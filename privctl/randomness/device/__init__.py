"""Gaussian noise drawn and added where the tensor lies: a ChaCha20 keystream (RFC 8439) in Triton or tensor operations.

Both engines give element e of a tensor the same bits for the same key, step and tensor, whichever stretch of the tensor
they are asked for. Neither makes the host wait. Importing this package imports torch; Triton only where it is used.
"""

from privctl.randomness.device.engine import ElementRange, NoiseEngine, Place
from privctl.randomness.device.joined import tiles_of
from privctl.randomness.device.selection import engine_for

__all__ = ["ElementRange", "NoiseEngine", "Place", "engine_for", "tiles_of"]
