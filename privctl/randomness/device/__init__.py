"""Gaussian noise drawn and added on the tensor's device: a ChaCha20 keystream (RFC 8439), by Triton or torch.

For the same key, step and tensor, both engines give element e of the tensor the same bits, whichever stretch of the
tensor is requested. Neither makes the host wait. Importing this package imports torch; Triton only when it is used.
"""

from privctl.randomness.device.engine import ElementRange, NoiseEngine, Place
from privctl.randomness.device.joined import tiles_of
from privctl.randomness.device.selection import engine_for

__all__ = ["ElementRange", "NoiseEngine", "Place", "engine_for", "tiles_of"]
