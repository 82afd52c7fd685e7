"""``DistributedTrainer``: Gluon's trainer over BytePS, with gradients sent in forward order.

It sends what BytePS' own trainer sends: every gradient is divided by the batch size and the number
of workers, compressed if requested, and summed. These are the differences:

* The priority of a tensor is its place in the forward pass (``forward_order.py``), not its place in
  alphabetical order.
* Gradients are given to the engine from the last needed to the first, the order in which backward
  computes them.
* Each parameter is updated separately (``one_by_one.py``).
* Tensors are named after parameters, so that two trainers in one process do not share buffers
  (``parameter_names.py``).
* The optimizer's ``rescale_grad`` counts, which BytePS' trainer overwrites.
* With ``ignore_stale_grad``, all ranks update the same parameters (``stale_gradients.py``).

Only the first ``step()`` waits, for the agreed order. All other operations start when their inputs
are ready. ``BYTEPROPHET_OVERLAP=0`` makes every ``step()`` and ``update()`` wait for all updates.

Threads: everything runs in the training thread.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import mxnet as mx
from byteps.mxnet import DistributedOptimizer as BytePSOptimizer
from byteps.mxnet import DistributedTrainer as BytePSTrainer
from byteps.mxnet import ops

from byteprophet import _plugin
from byteprophet.mxnet.forward_order import ForwardOrder, agree
from byteprophet.mxnet.iterations import Iterations
from byteprophet.mxnet.learning_rate_file import LearningRateFile
from byteprophet.mxnet.one_by_one import OneByOne
from byteprophet.mxnet.parameter_names import name_of
from byteprophet.mxnet.recording import process_engine
from byteprophet.mxnet.sparse_gradients import refusal
from byteprophet.mxnet.stale_gradients import used_by_any
from byteprophet.mxnet.waiting import wait_for_all
from byteprophet.observe.span_log import process_spans
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.session import process as observing
from byteprophet.tensor_names import gradient_name, parameter_name


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """A trainer with the signature of BytePS' own.

    ``params`` is the result of ``net.collect_params()``. Parameters are broadcast from
    ``root_rank`` in the first ``step()``.

    Raises ``ValueError`` if parameters are on several devices, or have sparse gradients: BytePS
    would send those of one device only, and cannot send sparse ones.
    """

    _params_to_init: list[Any]  # Gluon's list of parameters that were not broadcast yet
    _scale: float  # of gradients in the optimizer: Gluon takes its rescale_grad

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        root_rank: int = 0,
        compression_params: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(optimizer, BytePSOptimizer):
            optimizer = optimizer._optimizer
        # We do not inherit from BytePS' trainer, because it calls its parent through a name that we
        # replace by this class.
        options = dict(optimizer_params or {})  # registering a compressor takes some away
        compressor = BytePSTrainer._register_compressor(
            self, _by_name(params), options, compression_params
        )
        super().__init__(params, optimizer, optimizer_params=options, kvstore=None)
        _refuse(self._params, self._contexts)
        self._settings = RuntimeSettings.from_environment()
        self._root_rank = root_rank
        self._names = [name_of(parameter) for parameter in self._params]
        self._divisor = 1.0  # of gradients before they are sent
        self._ignores_stale = False
        self._compressors = [copy.deepcopy(compressor) for _ in self._params]
        self._rate_file = LearningRateFile() if (compression_params or {}).get("ef") else None
        for name, parameter in zip(self._names, self._params, strict=True):
            ops.byteps_declare_tensor(parameter_name(name))
            # Also of a frozen one, which may be trained later.
            settings = {k: v for k, v in vars(parameter).items() if k.startswith("byteps_")}
            ops.byteps_declare_tensor(gradient_name(name), **settings)
        plugin = _plugin.load("mxnet")
        if plugin is not None:
            observing.declared(plugin, [gradient_name(name) for name in self._names])
        process_engine.train(self._params)
        self._iterations = Iterations()
        self._recorder: ForwardOrder | None = ForwardOrder(self._params)
        self._forward_order = list(range(len(self._params)))

    @property
    def forward_order(self) -> list[str]:
        """Parameter names in the agreed order. Before the first step, the order is alphabetical."""
        return [self._names[index] for index in self._forward_order]

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Give averages and updates to the engine. ``batch_size`` is that of this rank."""
        # _allreduce_grads divides gradients, so the optimizer does not do it again.
        rescale, self._divisor = self._scale, batch_size
        self._scale *= batch_size
        self._ignores_stale = ignore_stale_grad
        try:
            super().step(batch_size, ignore_stale_grad)
        finally:
            self._scale, self._divisor, self._ignores_stale = rescale, 1.0, False

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update parameters by the averages that ``allreduce_grads()`` has given to the engine.

        Raises ``ValueError`` with ``ignore_stale_grad``, because gradients are on their way
        already.
        """
        if ignore_stale_grad:
            raise ValueError(
                "byteprophet: update(ignore_stale_grad=True) would update different parameters on "
                "different ranks: call step(batch_size, ignore_stale_grad=True)"
            )
        super().update(batch_size)

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Give updates to the engine; both ``step()`` and ``update()`` end with this call."""
        super()._update(ignore_stale_grad)
        process_engine.updated(self._params, self._iterations.number)
        if not self._settings.overlap:
            wait_for_all()
        if process_spans.iteration <= self._iterations.number:  # true for the first trainer only
            process_spans.skip_to(self._iterations.number + 1)

    def _init_optimizer(self, optimizer: Any, optimizer_params: Any) -> None:
        super()._init_optimizer(optimizer, optimizer_params)
        self._updaters = [OneByOne(self._optimizer) for _ in self._contexts]

    def _init_params(self) -> None:
        for parameter in self._params_to_init:
            if parameter._deferred_init:
                continue
            value = parameter._check_and_get(parameter._data, list)[0]
            if ops.rank() != self._root_rank:
                value[:] = 0
            ops.byteps_push_pull(value, name=parameter_name(name_of(parameter)), is_average=False)
        self._params_to_init = [each for each in self._params_to_init if each._deferred_init]

    def _allreduce_grads(self) -> None:
        if self._recorder is not None:
            recorded, self._recorder = self._recorder.take(), None
            self._forward_order = agree(recorded, self._names[0])
        if self._rate_file is not None:
            self._rate_file.write(self.learning_rate)
        version = self._iterations.next_version()
        sent = self._sent()
        for place, index in reversed([*enumerate(self._forward_order)]):
            if index not in sent:
                continue
            parameter = self._params[index]
            gradient = parameter.list_grad()[0]
            mx.nd._internal._mul_scalar(gradient, 1.0 / self._divisor / ops.size(), out=gradient)
            compressor = self._compressors[index]
            wire, context = compressor.compress(gradient)
            ops.byteps_push_pull(
                wire,
                version=version,
                priority=-1 - place,
                name=gradient_name(self._names[index]),
                is_average=False,
            )
            gradient[:] = compressor.decompress(wire, context, x=parameter._data[0])
            process_engine.summed(parameter, gradient, self._iterations.number)

    def _sent(self) -> set[int]:
        """The indices of the parameters whose gradients are sent, the same on all ranks."""
        trained = [index for index, each in enumerate(self._params) if each.grad_req != "null"]
        if not (self._ignores_stale and trained):
            return {*trained}
        used = used_by_any([self._params[index] for index in trained], self._names[0])
        return {index for index, is_used in zip(trained, used, strict=True) if is_used}


def _by_name(params: Any) -> Any:
    """``params`` as a dictionary; Gluon's trainer also takes a list."""
    return params if hasattr(params, "items") else {each.name: each for each in params}


def _refuse(parameters: Sequence[Any], devices: Sequence[Any]) -> None:
    """Refuse what would be silently wrong, or end the process."""
    if len(devices) > 1:
        raise ValueError(
            f"byteprophet: the parameters of DistributedTrainer are on {len(devices)} devices, and "
            "BytePS sends the gradients of one: start a process for each device"
        )
    for parameter in parameters:
        if (parameter._stype, parameter._grad_stype) != ("default", "default"):
            raise refusal(f"'{parameter.name}'")
