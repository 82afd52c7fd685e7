"""Optimizers whose gradients DistributedDataParallel exchanges: ``sync="ddp"``.

Nobody calls the DistributedDataParallel. It is made for the model, and what it does before and
after a forward pass runs in the model's hooks, as in torch's own ``replicate``. So a script of
``DistributedOptimizer`` gets torch's exchange without a change: gradients are averages when
``backward()`` returns, and ``step()`` makes all updates. Where processors are the limit, this may
be faster than transfers and updates that overlap computation in threads of their own.

A script that only calls parts of the model, or its ``forward()``, or calls the model in compiled
code, runs no hooks: ``step()`` then finds gradients that were not averaged, and raises an error.

With a strategy, it has the strategy's buckets (``retuning/given_ddp_strategy.py``).

Threads: the training thread calls everything here, except that ``_added`` runs in autograd's; the
reducer is torch's.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from byteprophet.job.strategy import DDP
from byteprophet.job.strategy_file import Used
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.front import other_synchronisers
from byteprophet.torch.front.step_arguments import StepArguments
from byteprophet.torch.live_fronts import live_fronts
from byteprophet.torch.record import record_unasked
from byteprophet.torch.recording.ddp_buckets import InPlace
from byteprophet.torch.regions.root import at_first_forward
from byteprophet.torch.retuning.given_ddp_strategy import construct_with
from byteprophet.torch.sync import same_start
from byteprophet.torch.sync.completion import Call
from byteprophet.torch.tensors import module_calls
from byteprophet.torch.tensors.naming import name_parameters, optimizer_parameters
from byteprophet.torch.torch_exchange import Calls, check_group, give_calls, unknown_model

_MADE = Call(f"made DistributedOptimizer with sync={DDP!r}", advice=", with the same strategy")

_optimizers = itertools.count()  # the same number on all ranks


class _Hook:
    """A hook of a module. In a copy of the module, or in a file, it does nothing."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(self, *arguments: Any) -> Any:
        """Run the function."""
        return self._run(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (_do_nothing,)


def _do_nothing(*_: Any) -> None:
    pass


class _Exchange:
    """The DistributedDataParallel of a model, once its first forward pass has begun."""

    def __init__(self) -> None:
        self.model: InPlace | None = None
        self._held = False  # gradients stay as they are
        self._will_average = False  # a forward pass since the last step() has seen to it
        self._has_added = False  # some backward pass since then has added to a gradient
        self._averaged: set[int] | None = None  # parameters, by id, once that is known

    def begin(
        self,
        module: nn.Module,
        names: Mapping[int, str],
        given: Used | None,
        settings: RuntimeSettings,
        options: Mapping[str, Any],
    ) -> None:
        """Make it for ``module``, of which only parameters with ``names``, by id, are exchanged.

        Raises ``RuntimeError`` if the module is compiled, or another synchroniser's, or has one
        already.
        """
        name = type(module).__name__
        ours = {path: each for path, each in module.named_parameters() if id(each) in names}
        other_synchronisers.refuse_within(module, ours)
        if module in _begun:
            raise RuntimeError(
                f"byteprophet: sync={DDP!r}: {name} has two optimizers: use one, and keep it: the "
                "model still has its DistributedDataParallel when the first optimizer is gone"
            )
        if module_calls.is_compiled(module):
            raise RuntimeError(
                f"byteprophet: sync={DDP!r}: {name} is compiled, and its hooks would be, too: "
                "compile its parts"
            )
        everything = module.named_parameters(remove_duplicate=False)  # under all of their names
        ignored = [name for name, each in everything if id(each) not in names]
        ignored += [name for name, _ in module.named_buffers()]
        ignored += [f".{name}" for name in ignored if "." not in name]  # torch's name of the root's
        module._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]
        self.model = _construct(module, names, given, settings, options)
        self.will_average(each for each in module.parameters() if id(each) in names)
        self.hold(self._held)
        _begun.add(module)
        module.register_forward_pre_hook(_Hook(self._before))
        module.register_forward_hook(_Hook(self._after))
        record_unasked(self.model)

    def watch(self, parameters: Iterable[Tensor]) -> None:
        """Note when backward passes add to the gradients of ``parameters``."""
        for each in parameters:
            each.register_post_accumulate_grad_hook(self._added)  # type: ignore[no-untyped-call]

    def hold(self, held: bool) -> bool:
        """Whether the next forward pass lets gradients stay as they are; returns what it was."""
        before, self._held = self._held, held
        if self.model is not None:
            self.model.require_backward_grad_sync = not held
        return before

    def will_average(self, parameters: Iterable[Tensor]) -> None:
        """DistributedDataParallel is made now: it takes those that are not frozen."""
        self._averaged = {id(each) for each in parameters if each.requires_grad}

    def before_step(
        self, optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Raise ``RuntimeError`` if parameters would be updated by this rank's own gradients.

        This is a hook before ``step(*arguments, **options)``. Where a closure makes the gradients,
        it returns ``step()`` another one, which looks at them when it has made them.
        """
        this, *positional = arguments
        given = StepArguments(tuple(positional), options)
        closure = given.closure
        if closure is None:
            self._check(optimizer)
            return None

        def checked() -> Any:
            loss = closure()
            self._check(optimizer)
            return loss

        given = given.with_closure(checked)
        return (this, *given.positional), {**given.named}

    def _check(self, optimizer: Optimizer) -> None:
        """Raise ``RuntimeError`` if the gradients of ``optimizer`` are not averages."""
        if self._averaged is None:
            if self._has_added:
                raise unknown_model(DDP)
            return
        for parameter in optimizer_parameters(optimizer):
            if parameter.requires_grad and id(parameter) not in self._averaged:
                raise RuntimeError(
                    f"byteprophet: sync={DDP!r}: a parameter of shape {tuple(parameter.shape)} was "
                    "frozen, or in no group, when DistributedDataParallel was made, which does not "
                    "average its gradients: unfreeze it before the optimizer is made, or start the "
                    "job with another sync"
                )
        if self._has_added:
            self._check_added(optimizer)
        self._has_added = self._will_average = False

    def _check_added(self, optimizer: Optimizer) -> None:
        """Raise ``RuntimeError`` if backward passes have added what was not averaged."""
        assert self.model is not None
        if not self._will_average:
            name = type(self.model.module).__name__
            raise RuntimeError(
                f"byteprophet: sync={DDP!r}: gradients were computed, but since the last step() no "
                "forward pass has let DistributedDataParallel average them: call the "
                f"{name} itself, not its parts or its forward(), and not only within no_sync(), or "
                "use another sync"
            )
        try:
            self.model._check_reducer_finalized()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            names = self.model.names
            ours = [each for each in optimizer_parameters(optimizer) if id(each) in names]
            unused = [repr(names[id(each)]) for each in ours if each.grad is None]
            raise RuntimeError(
                f"byteprophet: sync={DDP!r}: gradients were not averaged, because "
                f"{unused[0] if unused else 'a parameter'} was in no backward pass, or was frozen "
                "after the optimizer was made: freeze what no pass uses before that, or start the "
                "job with another sync"
            ) from error

    def before_forward(self) -> None:
        """What DistributedDataParallel does before a forward pass."""
        assert self.model is not None
        self.model._pre_forward()  # type: ignore[no-untyped-call]

    def _before(self, _module: nn.Module, _inputs: Any) -> None:
        self.before_forward()

    def _added(self, _parameter: Tensor) -> None:
        self._has_added = True

    def _after(self, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        assert self.model is not None
        self._will_average |= torch.is_grad_enabled() and not self._held
        return self.model._post_forward(output)  # type: ignore[no-untyped-call]


_begun: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def _construct(
    module: nn.Module,
    names: Mapping[int, str],
    given: Used | None,
    settings: RuntimeSettings,
    options: Mapping[str, Any],
) -> InPlace:
    # The constructor of scripts' own DistributedDataParallel may be replaced by ours.
    plain: Callable[..., None] = inspect.unwrap(DistributedDataParallel.__init__)
    model = InPlace.__new__(InPlace)
    model.names = names
    options = {**options, "init_sync": False}  # parameters are equal, and buffers are each rank's
    if given is not None:
        construct_with(given, settings, plain, model, (module,), options)
    else:
        plain(model, module, **options)
    return model


class _Calls(Calls):
    def __init__(self, optimizer: Optimizer, exchange: _Exchange) -> None:
        super().__init__(DDP)
        self._exchange = exchange
        self.sharded_state_dict = optimizer.state_dict
        self.load_sharded_state_dict = optimizer.load_state_dict

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context, forward and backward passes accumulate gradients and send none."""
        before = self._exchange.hold(True)
        try:
            yield
        finally:
            self._exchange.hold(before)


def exchange_in_place(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    *,
    model: nn.Module | None,
    passes: int,
    fusion: int | str,
    given: Used | None,
    settings: RuntimeSettings,
) -> Optimizer:
    """Let DistributedDataParallel average the gradients of ``optimizer``; all ranks must call this.

    All ranks then have rank 0's parameters. ``passes``: backward passes per step, 1. ``fusion``: a
    number is the limit of a bucket in bytes. ``given``: the strategy. Raises ``ValueError`` if
    there is no process group, ``UserError`` if ``passes`` is not 1, ranks differ, or the model does
    not fit the strategy, and ``RuntimeError`` if another synchroniser exchanges these gradients.
    """
    check_group(DDP)
    exchange = _Exchange()
    give_calls(optimizer, _Calls(optimizer, exchange), passes)
    named = name_parameters(optimizer_parameters(optimizer), named_parameters, model, {})
    alone = distributed.get_world_size() == 1
    if not alone:
        other_synchronisers.refuse_others(optimizer, named, model)
    for other in live_fronts():
        other.release([each for _, each in named])
    if not alone:
        _compare(named, fusion, given, settings)
    same_start.take_first_ranks_values(named)
    exchanged = [(name, each) for name, each in named if each.requires_grad]
    if alone:
        return optimizer
    optimizer.register_step_pre_hook(exchange.before_step)
    if not exchanged:
        exchange.will_average(())
        return optimizer
    exchange.watch(each for _, each in exchanged)
    names = {id(each): name for name, each in named}
    options = {"bucket_cap_mb": fusion / (1 << 20)} if isinstance(fusion, int) else {}
    if model is not None:
        exchange.begin(model, names, given, settings, options)
        return optimizer

    def found(module: nn.Module) -> None:
        exchange.begin(module, names, given, settings, options)
        exchange.before_forward()  # torch has chosen the hooks of this forward pass already

    parameters = [each for _, each in exchanged]
    at_first_forward(parameters, found, f"sync={DDP!r} needs the model", "give model=")
    return optimizer


def _compare(
    named: Sequence[tuple[str, Tensor]],
    fusion: int | str,
    given: Used | None,
    settings: RuntimeSettings,
) -> None:
    """Compare the parameters and options of all ranks, which the broadcast takes to be the same."""
    options = {"strategy": None if given is None else given.digest, "fusion": fusion}
    who = settings.strategy or f"sync={DDP!r}"
    start = f"byteprophet.ddp.{next(_optimizers)}"
    same_start.check_group(who, start, _MADE, named, options, settings.timeout_s)
