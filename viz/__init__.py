"""Pictures of circuits."""

from .wiring import render, wiring_dot

__all__ = ["render", "wiring_dot"]
