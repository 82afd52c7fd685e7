"""When gradients are complete under BytePS' own ``DistributedDataParallel``, as it decides it.

Every backward pass outside of ``no_sync()`` sends each gradient when it has added to it, and ends
when all are sent. If a forward pass skips layers, some gradients do not come. The script then calls
``synchronize()``, which sends them, with zeros where there is no gradient.

The pass decides, not the forward before it: a script may run forward within ``no_sync()`` and
backward outside. A ``synchronize()`` after passes within ``no_sync()`` sends what they have added.

Threads: as in ``backward.py``. ``synchronize`` runs in the training thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from byteprophet.torch.ddp.backward import Submit
from byteprophet.torch.tensors.compiling import stays_eager


class BytepsBackward:
    """The state of one model. Implements ``ModelRules``.

    ``model``: held weakly. ``parameters``: those whose gradients are sent, by name.
    """

    def __init__(
        self, model: DistributedDataParallel, parameters: Mapping[str, Tensor], submit: Submit
    ) -> None:
        self.parameters = parameters
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._model = weakref.ref(model)
        self._submit = submit
        self._sent: set[int] = set()  # in this pass, by id of the parameter
        self._changed = False  # since the last pass that has sent all gradients

    @property
    def expecting(self) -> bool:
        """See ``ModelRules``."""
        model = self._model()
        return model is not None and bool(model.require_backward_grad_sync)

    def check_finished(self) -> None:
        """See ``ModelRules``."""
        if self._sent:
            name, number = self._missing()
            raise RuntimeError(
                f"byteprophet: the last backward pass computed no gradient of '{name}' (of "
                f"{number} parameters in total): if a forward pass skips layers, call "
                "synchronize() after backward(), as BytePS' DistributedDataParallel asks"
            )

    def expect(self, outputs: Iterable[Tensor]) -> None:
        """See ``ModelRules``. Every pass sends gradients."""

    def before(self, parameter: Tensor) -> None:
        """See ``BackwardRules``."""
        if id(parameter) in self._sent and self.expecting:
            name, _ = self._missing()
            raise RuntimeError(
                f"byteprophet: the gradient of '{self._names[id(parameter)]}' was computed twice, "
                f"and that of '{name}' not yet: call synchronize() after each backward() that "
                "skips layers, or use no_sync()"
            )

    def completes(self, parameter: Tensor) -> bool:
        """See ``BackwardRules``."""
        self._changed = True
        if not self.expecting:
            return False
        self._sent.add(id(parameter))
        if len(self._sent) == len(self._names):
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.synchronize)
        return True

    @stays_eager  # called by a backward pass within a compiled function
    def synchronize(self) -> None:
        """Send the gradients that were not sent since the last pass that has sent all."""
        if not self._changed:
            return
        missing = [p for p in self.parameters.values() if id(p) not in self._sent]
        self._sent.clear()
        self._changed = False
        self._submit(self, missing)

    def _missing(self) -> tuple[str, int]:
        """The first parameter whose gradient was not sent in this pass, and how many there are."""
        names = [name for key, name in self._names.items() if key not in self._sent]
        return names[0], len(names)
