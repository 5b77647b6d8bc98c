"""Amounts of memory, as people write them."""

import re

from ..errors import InputError


def parse_bytes(text: str) -> int:
    """A size in bytes.

    >>> parse_bytes("24GB"), parse_bytes("0.5 TiB")
    (24000000000, 549755813888)
    """
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([KMGT])(i?)B?\s*", text, re.IGNORECASE)
    if not found or not float(found[1]):
        raise InputError(f"'{text}' is no amount of memory: write a number and a unit, as 4GB or 500MB.")
    number, prefix, binary = found.groups()
    base = 1024 if binary else 1000
    return round(float(number) * float(base ** (1 + "KMGT".index(prefix.upper()))))
