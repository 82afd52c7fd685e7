"""What of a GPU decides how much scratch memory its kernels take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    ``workspace_bytes``: what torch allocates for cuBLAS and cuBLASLt per thread and stream that
    multiplies matrices (``CUBLAS_WORKSPACE_CONFIG`` is not set). ``prefers_cudnn_attention``:
    whether scaled dot-product attention in 16 bits runs in cuDNN, and not in the flash kernel.
    ``was_compared``: whether predictions for it were compared with measurements.
    """

    name: str
    multiprocessors: int
    threads_per_multiprocessor: int
    workspace_bytes: int
    prefers_cudnn_attention: bool
    was_compared: bool = False


_HOPPER_WORKSPACE_BYTES = 32 << 20
_OTHER_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) << 10
DEFAULT = "h200"
"""The name of the GPU whose measurements predictions were compared with."""

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            DEFAULT,
            132,
            2048,
            _HOPPER_WORKSPACE_BYTES,
            prefers_cudnn_attention=True,
            was_compared=True,
        ),
        Gpu("h100", 132, 2048, _HOPPER_WORKSPACE_BYTES, prefers_cudnn_attention=True),
        Gpu("a100", 108, 2048, _OTHER_WORKSPACE_BYTES, prefers_cudnn_attention=False),
    )
}
"""By name."""
