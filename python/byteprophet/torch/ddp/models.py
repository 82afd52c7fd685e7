"""The models that scripts have wrapped in ``DistributedDataParallel``, and what becomes of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from byteprophet.errors import warn
from byteprophet.torch.ddp.backward import ModelRules, Submit
from byteprophet.torch.ddp.trial import Trial
from byteprophet.torch.front import other_synchronisers
from byteprophet.torch.front.backward_rules import SharedRules
from byteprophet.torch.front.front import Front
from byteprophet.torch.recording.ddp_buckets import reduced_parameters


class State(Enum):
    """Who exchanges the gradients of a model."""

    NEW = "nobody has computed any yet"
    OURS = "our synchronisers"
    PLAIN = "DistributedDataParallel itself"


@dataclass(frozen=True)
class Public:
    """What the public face, which stands above this room, gives a model.

    ``sync`` is the synchroniser that exchanges its gradients. ``distribute`` gives an optimizer a
    front, given the rules. ``stays_plain`` is told of a model that exchanges its gradients itself.
    ``rules_of`` makes the rules by which a model sends gradients, given the parameters by name.
    ``trial`` times both exchanges, if the faster one is to be kept.
    """

    sync: str
    distribute: Callable[[Optimizer, SharedRules], Any]
    stays_plain: Callable[[DistributedDataParallel], None]
    rules_of: Callable[[DistributedDataParallel, Mapping[str, Tensor], Submit], ModelRules]
    trial: Trial | None = None


class Model:
    """One DistributedDataParallel. ``backward`` is set while ours exchange its gradients.

    ``backwards``: backward passes that exchanged gradients: counted from the first
    ``await_backward``, and always while our synchronisers exchange them.
    ``awaits_backward``: whether the reducer expects a backward pass (see ``await_backward``).
    ``store`` is that of the default process group.
    ``unheld`` keeps the optimizers of ours alive that hold parameters that the script's do not.
    ``fronts`` has all that hold parameters of the model. They outlive optimizers that the script
    drops: gradients are averaged whoever uses them, as DistributedDataParallel does.
    """

    def __init__(self, model: DistributedDataParallel, public: Public) -> None:
        self.of = weakref.ref(model)
        self.public = public
        self.store = distributed.distributed_c10d._get_default_store()
        self.parameters = reduced_parameters(model.module)
        self.state = State.NEW
        self.backward: ModelRules | None = None
        self.backwards = 0
        self.awaits_backward = False
        self._hooks: list[Any] = []
        self.unheld: list[Optimizer] = []
        self.fronts: list[Front] = []

    @property
    def times_own(self) -> bool:
        """Whether it exchanges its gradients itself until that was timed."""
        trial = self.public.trial
        return self.state is State.NEW and trial is not None and not trial.is_ours

    def await_backward(self) -> None:
        """Note that a forward pass has told the reducer to expect a backward pass.

        It does so until backward has computed the gradient of a parameter.
        """
        self.awaits_backward = True
        if self._hooks:
            return
        own = weakref.ref(self)

        def begins(_parameter: Tensor) -> None:
            alive = own()
            if alive is not None and alive.awaits_backward:
                alive.awaits_backward = False
                alive.backwards += 1

        self._hooks = [
            parameter.register_post_accumulate_grad_hook(begins)  # type: ignore[no-untyped-call]
            for parameter in self.parameters.values()
            if parameter.requires_grad
        ]

    def forget_reducer(self) -> bool:
        """End what ``await_backward`` began. Returns whether the reducer expects a backward pass.

        A caller that takes the gradients over must then reset the reducer.
        """
        for hook in self._hooks:
            hook.remove()
        awaits, self._hooks, self.awaits_backward = self.awaits_backward, [], False
        return awaits

    def keeps_own_exchange(self, reason: str) -> None:
        """Note that the model exchanges its gradients itself, and say so on its first rank."""
        self.state, self.backward = State.PLAIN, None
        self.forget_reducer()
        self.unheld.clear()
        self.fronts.clear()
        model = self.of()
        if model is None:
            return
        other_synchronisers.replaced.discard(model)
        _say(model, reason)
        self.public.stays_plain(model)


_models: weakref.WeakKeyDictionary[DistributedDataParallel, Model] = weakref.WeakKeyDictionary()
_copies: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()  # of which nothing was said
_names: MutableMapping[Tensor, str] = WeakIdKeyDictionary()  # of parameters
_used: set[str] = set()  # names, also of parameters that are gone
_taken = 0  # how many models were taken over


def add(model: DistributedDataParallel, public: Public) -> None:
    """Let ours exchange the gradients of ``model``, if possible."""
    _models[model] = Model(model, public)
    other_synchronisers.replaced.add(model)


def take(model: Model, backward: ModelRules) -> None:
    """Note that ours exchange the gradients of ``model`` by the rules ``backward``.

    All ranks must call this for the same models. Its parameters get names that no others have had,
    unless it was wrapped before. Not even those of a model that is gone are free again: one rank
    may keep it.
    """
    global _taken
    model.state, model.backward = State.OURS, backward
    wrapped = model.of()
    for name, parameter in () if wrapped is None else wrapped.module.named_parameters():
        if parameter in _names:
            continue
        while name in _used:
            name = f"model{_taken}.{name}"
        _names[parameter] = name
        _used.add(name)
    _taken += 1


def name_of(parameter: Tensor) -> str:
    """The name of a model's parameter, by which ranks identify it."""
    return _names[parameter]


def known(model: DistributedDataParallel) -> Model | None:
    """What is known of ``model``; None if it was not given to ``add``, such as a copy."""
    return _models.get(model)


def all_in(state: State) -> list[Model]:
    """All living models in ``state``, in the order of ``add``."""
    return [each for each in _models.values() if each.state is state]


def forget_all_but(store: Any) -> None:
    """Forget all models that were made in another default process group than that of ``store``."""
    for model in [model for model, each in _models.items() if each.store is not store]:
        del _models[model]


def note_copy(model: DistributedDataParallel) -> None:
    """Note that ``model`` was copied or loaded. One rank alone may have such a copy."""
    _copies.add(model)


def say_of_copy(model: DistributedDataParallel) -> None:
    """Say, once, that ``model`` exchanges its gradients itself if it is a copy."""
    if model in _copies:
        _copies.discard(model)
        _say(model, "it is a copy")


def _say(model: DistributedDataParallel, reason: str) -> None:
    if distributed.get_rank(model.process_group) == 0:
        name = type(model.module).__name__
        warn(f"DistributedDataParallel of {name} exchanges its gradients itself: {reason}")
