"""Whether hosts can be made of namespaces here: found out once, as it takes some processes."""

from __future__ import annotations

import functools

from byteprophet import network

why_not_permitted = functools.cache(network.why_not_permitted)
