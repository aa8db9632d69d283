"""The name that the design of binding mode gave to the OpenAI adapter; KAITO's servers speak this API."""

from .openai import forward

__all__ = ["forward"]
