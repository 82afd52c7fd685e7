"""The variable that tells a worker where its controller is.

A controller makes plans from profiles and bandwidths, so workers that have one look for both.
"""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "BYTEPROPHET_CONTROLLER"


def controller_of(environment: Mapping[str, str]) -> str:
    """The address of the job's controller; "" if there is none."""
    return environment.get(VARIABLE, "")
