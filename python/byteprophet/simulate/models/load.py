"""A model by what a user calls it: a name, a description, a file, or a function of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from byteprophet.errors import UserError
from byteprophet.input_files import is_there
from byteprophet.simulate.models.catalogue import FAMILIES, MODELS, find_model
from byteprophet.simulate.models.dlrm import NAME as DLRM
from byteprophet.simulate.models.dlrm import dlrm
from byteprophet.simulate.models.module import Model
from byteprophet.simulate.models.own_code import import_make
from byteprophet.simulate.models.transformer import build

VISION = {
    **{name: f"byteprophet.simulate.models.vision:{name}" for name in ("resnet50", "vgg19")},
    "inception-v3": "byteprophet.simulate.models.inception:inception_v3",
}
"""Models of images, which are traced as a user's own are."""


Source = Callable[[int], Model]
"""Makes a model for a number of samples per micro-batch over all data-parallel ranks."""


def load_model(text: str, samples: int, sequence: int | None = None) -> Model:
    """The model ``text``, with ``samples``; for the rest see ``load_source``."""
    return load_source(text, sequence)(samples)


def load_source(text: str, sequence: int | None = None) -> Source:
    """The model ``text`` for any number of samples. It can be sent to other processes.

    Args:
        text: what ``find_model`` takes, or ``module:function``, where the function takes a batch
            size and returns a ``torch.nn.Module`` and its inputs.
        sequence: tokens per sample, if another number than the model's own is wanted.

    Raises:
        UserError: there is no such model, or it cannot be traced.
    """
    if text == DLRM:
        _refuse_sequence(text, sequence)
        return dlrm
    name, text = text, VISION.get(text, text)
    family, colon, _ = text.partition(":")
    if not colon or family in (*FAMILIES, *MODELS) or is_there(text):
        return partial(build, *find_model(text, (*VISION, DLRM)), sequence=sequence)
    from byteprophet.simulate.models.traced import traced  # imports torch

    _refuse_sequence(name, sequence)
    return traced(name, import_make(text))


def _refuse_sequence(name: str, sequence: int | None) -> None:
    if sequence is not None:
        raise UserError(f"model {name}: --sequence has no effect; its inputs have their own shapes")
