"""Spans of waits for the all-gathers of FSDP2's units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from byteprophet.observe.span_log import SpanLog
from byteprophet.timeline.tables import Kind


def record_waits(layer: nn.Module, spans: SpanLog, label: str) -> Callable[[], None]:
    """Add a WAIT span for FSDP2's pre-forward hook of ``layer``, the first one of a unit.

    Returns a function that ends this.
    """
    begin_ns = 0

    def before(*_: Any) -> None:
        nonlocal begin_ns
        begin_ns = spans.clock()

    def after(*_: Any) -> None:
        spans.add(Kind.WAIT, label, begin_ns, spans.clock())

    hooks = [
        layer.register_forward_pre_hook(before, prepend=True),
        layer.register_forward_pre_hook(after),
    ]

    def end() -> None:
        for hook in hooks:
            hook.remove()

    return end
