"""Notes for which tensors the script has chosen one of BytePS' own compressors.

Threads: only the training thread uses this.
"""

from __future__ import annotations

from typing import Any

from byteprophet.torch.sync import basics

names: set[str] = set()
"""Their names in BytePS."""


def declare(name: str, **arguments: Any) -> int:
    """Declare a tensor, as BytePS does. ``arguments`` choose one of its compressors."""
    result = basics.declare(name, **arguments)
    if arguments:
        names.add(name)
    return result
