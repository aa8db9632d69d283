"""The Asya handler runtime: names that handlers may import."""

from .runtime import Unavailable, current_envelope, time_left

__all__ = ["Unavailable", "current_envelope", "time_left"]
__version__ = "0.1.0"
