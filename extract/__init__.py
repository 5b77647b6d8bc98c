"""What needs torch, and the only place that imports it."""

from .published import read_pt

__all__ = ["read_pt"]
