"""Prints, as JSON, what the build needs to know of the torch installed beside this Python."""

import json
import sys

try:
    import torch
except ImportError:
    sys.exit(
        "byteprophet: error: torch is not installed in this Python's environment, and BytePS is "
        "built for it: install it first (for a machine without a GPU: pip install torch==2.13.0)"
    )
from torch.utils import cpp_extension

major, minor, patch = (int(part) for part in torch.__version__.split("+")[0].split(".")[:3])
json.dump(
    {
        "version_integer": major * 10**9 + minor * 10**6 + patch * 10**3,
        "cuda": torch.version.cuda or "",
        "cxx11_abi": int(torch.compiled_with_cxx11_abi()),
        "include": cpp_extension.include_paths()[0],
        "lib": cpp_extension.library_paths()[0],
    },
    sys.stdout,
)
