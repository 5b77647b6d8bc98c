"""``python -m wirescope.cli``."""

from .main import main

main()
