"""The models that come with the package: a small dense one and its sparse twin, as folders that transformers reads."""

from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "models"

PAIR: Mapping[str, Path] = {name: _FOLDER / name for name in ("tiny", "tiny-sparse")}
"""By name, where each of the two is: dense, then sparse. ``make pair`` trains such a pair."""
