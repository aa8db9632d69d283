"""Alias of the OpenAI adapter for KAITO, whose servers have this API."""

from .openai import forward

__all__ = ["forward"]
