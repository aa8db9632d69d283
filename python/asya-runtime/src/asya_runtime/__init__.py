"""The Asya handler runtime; what a handler may import from it."""

from .runtime import current_envelope, time_left

__all__ = ["current_envelope", "time_left"]
__version__ = "0.1.0"
