"""Rates, and a small cluster of throttled hosts on one machine."""

from __future__ import annotations

from byteprophet.network.cable import cut_cable
from byteprophet.network.namespaces import Cluster, Host, HostSpec
from byteprophet.network.permission import why_not_permitted
from byteprophet.network.rate import PAYLOAD_SHARE, format_rate, parse_rate, payload_bps
from byteprophet.network.steps import Step, parse_step

__all__ = [
    "PAYLOAD_SHARE",
    "Cluster",
    "Host",
    "HostSpec",
    "Step",
    "cut_cable",
    "format_rate",
    "parse_rate",
    "parse_step",
    "payload_bps",
    "why_not_permitted",
]
