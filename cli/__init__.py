"""The command line."""

from .main import extract_main, main

__all__ = ["extract_main", "main"]
