"""Requests stamps when a script calls layers and backward passes, while spans are recorded.

Before recording starts, MXNet is unmodified. From then on, ``Block.__call__``, ``NDArray.backward``
and ``autograd.backward`` are wrapped by our functions, which call the original ones.

Threads: everything here runs in the training thread.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx

from byteprophet._plugin import Plugin
from byteprophet.mxnet.engine_spans import EngineSpans
from byteprophet.mxnet.engine_stamps import EngineStamps
from byteprophet.observe.span_log import process_spans


class EngineRecording:
    """Requests stamps for what trainers and MXNet's functions report. Inactive before ``start``."""

    def __init__(self) -> None:
        self._spans: EngineSpans | None = None
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()  # parameters of trainers
        # What ``_parameters`` found, by block and by whether the block was hybridized.
        self._layers: weakref.WeakKeyDictionary[Any, dict[bool, list[Any]]]
        self._layers = weakref.WeakKeyDictionary()
        self._used: dict[Any, None] = {}  # parameters used since the last backward pass
        self._wrapped = False

    def start(self, plugin: Plugin) -> EngineSpans:
        """Start requesting stamps, and return the consumer that makes spans from them."""
        self._spans = EngineSpans(process_spans, EngineStamps(plugin))
        if not self._wrapped:
            self._wrapped = True
            _wrap(mx.gluon.Block, "__call__", self._called)
            _wrap(mx.nd.NDArray, "backward", self._went_back)
            _wrap(mx.autograd, "backward", self._went_back)
        return self._spans

    def train(self, parameters: Sequence[Any]) -> None:
        """Note the parameters of a trainer, whose gradients are to be recorded."""
        self._trained.update(parameter for parameter in parameters if parameter.grad_req != "null")

    def summed(self, parameter: Any, gradient: Any, iteration: int) -> None:
        """Note that the sum of ``parameter``'s gradients was requested."""
        if self._spans is not None and self._spans.on:
            self._spans.sum(parameter.name, gradient, iteration)

    def updated(self, parameters: Sequence[Any], iteration: int) -> None:
        """Note that updates of ``parameters`` were requested."""
        if self._spans is not None and self._spans.on:
            for parameter in parameters:
                if parameter in self._trained:
                    self._spans.update(parameter.name, parameter._data[0], iteration)

    def _called(self, call: Callable[..., Any], block: Any, *arguments: Any) -> Any:
        spans = self._spans
        if spans is None or not spans.on or not mx.autograd.is_recording():
            return call(block, *arguments)
        called_ns = process_spans.clock()
        output = call(block, *arguments)
        first = output[0] if isinstance(output, list | tuple) and output else output
        if isinstance(first, mx.nd.NDArray) and (parameters := self._parameters(block)):
            spans.layer([parameter.name for parameter in parameters], first, called_ns)
            self._used |= dict.fromkeys(parameters)
        return output

    def _went_back(self, backward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        result = backward(*arguments, **options)
        used, self._used = self._used, {}
        for parameter in used:
            if self._spans is not None and parameter._grad is not None:
                self._spans.gradient(parameter.name, parameter._grad[0])
        return result

    def _parameters(self, block: Any) -> list[Any]:
        """The parameters of a layer: the block's own, or all within a hybridized block."""
        hybridized = getattr(block, "_active", False)
        known = self._layers.setdefault(block, {})
        if not known.get(hybridized):
            found = block.collect_params() if hybridized else block._reg_params
            known[hybridized] = [each for each in found.values() if each in self._trained]
        return known[hybridized]


def _wrap(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    """Replace a function by ``ours``, which gets the original function as its first argument."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        return ours(real, *arguments, **options)

    setattr(owner, name, wrapped)


process_engine = EngineRecording()
"""The recording of MXNet's engine in this process."""
