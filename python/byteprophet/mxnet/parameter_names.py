"""Names of parameters in BytePS, where two tensors of one name would share a buffer.

A Gluon parameter's name is its script's affair, and a copy of a network has the names of the
original. So the second parameter of a name gets a number. All ranks make their trainers in the same
order, so they number alike.

Threads: everything here runs in the training thread.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_taken: Counter[str] = Counter()


def name_of(parameter: Any) -> str:
    """The name of ``parameter``, which no other parameter of this process has had."""
    if parameter not in _names:
        own = str(parameter.name)
        _taken[own] += 1
        _names[parameter] = own if _taken[own] == 1 else f"{own}#{_taken[own]}"
    return _names[parameter]
