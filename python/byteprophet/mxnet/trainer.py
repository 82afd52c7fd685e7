"""``DistributedTrainer``: Gluon's trainer over BytePS, with gradients sent in forward order.

It sends what BytePS' own trainer sends: every gradient is divided by the batch size and the number
of workers, compressed if requested, and summed. These are the differences:

* The priority of a tensor is its place in the forward pass (``forward_order.py``), not its place in
  alphabetical order.
* Gradients are given to the engine from the last needed to the first, the order in which backward
  computes them.
* Each parameter is updated separately (``one_by_one.py``).
* Tensors are named after parameters, so that two trainers in one process do not share buffers.

Only the first ``step()`` waits, for the agreed order. All other operations start when their inputs
are ready. ``BYTEPROPHET_OVERLAP=0`` makes every ``step()`` wait for all updates.

Threads: everything runs in the training thread.
"""

from __future__ import annotations

import copy
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
from byteprophet.mxnet.recording import process_engine
from byteprophet.mxnet.waiting import wait_for_all
from byteprophet.observe.span_log import process_spans
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.session import process as observing
from byteprophet.tensor_names import gradient_name, parameter_name


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """A trainer with the signature of BytePS' own.

    ``params`` is the result of ``net.collect_params()``. Parameters are broadcast from
    ``root_rank`` in the first ``step()``.
    """

    _params_to_init: list[Any]  # Gluon's list of parameters that were not broadcast yet

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
        compressor = BytePSTrainer._register_compressor(
            self, params, optimizer_params, compression_params
        )
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._settings = RuntimeSettings.from_environment()
        self._root_rank = root_rank
        self._names = [parameter.name for parameter in self._params]
        self._compressors = [copy.deepcopy(compressor) for _ in self._params]
        self._rate_file = LearningRateFile() if (compression_params or {}).get("ef") else None
        for name, parameter in zip(self._names, self._params, strict=True):
            ops.byteps_declare_tensor(parameter_name(name))
            if parameter.grad_req != "null":
                options = {k: v for k, v in vars(parameter).items() if k.startswith("byteps_")}
                ops.byteps_declare_tensor(gradient_name(name), **options)
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
        # _allreduce_grads divides gradients by this, so that the optimizer does not do it again.
        self._scale = batch_size
        super().step(batch_size, ignore_stale_grad)
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
            ops.byteps_push_pull(value, name=parameter_name(parameter.name), is_average=False)
        self._params_to_init = [each for each in self._params_to_init if each._deferred_init]

    def _allreduce_grads(self) -> None:
        if self._recorder is not None:
            recorded, self._recorder = self._recorder.take(), None
            self._forward_order = agree(recorded, f"Order.{self._names[0]}")
        if self._rate_file is not None:
            self._rate_file.write(self.learning_rate)
        version = self._iterations.next_version()
        for place, index in reversed([*enumerate(self._forward_order)]):
            parameter = self._params[index]
            if parameter.grad_req == "null":
                continue
            gradient = parameter._grad[0]
            mx.nd._internal._mul_scalar(gradient, 1.0 / self._scale / ops.size(), out=gradient)
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
