"""Modules that are hard to import."""
