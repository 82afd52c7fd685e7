"""Begins the average of one gradient by its compressor."""

from __future__ import annotations

from byteprophet.job.compression import Compressor, Dithering, OneBit, RandomK, TopK
from byteprophet.torch.compressors.dithering import dithering
from byteprophet.torch.compressors.elements import random_k, top_k
from byteprophet.torch.compressors.onebit import one_bit
from byteprophet.torch.compressors.powersgd import powersgd
from byteprophet.torch.compressors.steps import Steps, Turn


def steps_of(compressor: Compressor, turn: Turn) -> Steps:
    """The steps of ``turn``."""
    if isinstance(compressor, TopK):
        return top_k(compressor, turn)
    if isinstance(compressor, RandomK):
        return random_k(compressor, turn)
    if isinstance(compressor, OneBit):
        return one_bit(turn)
    if isinstance(compressor, Dithering):
        return dithering(compressor, turn)
    return powersgd(compressor, turn)
