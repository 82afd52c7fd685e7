"""Prints, as JSON, what the build needs to know of the frameworks installed beside this Python.

``{"torch": {...} or null, "mxnet": {...} or null}``: BytePS' extension and the plug-in are built
for each that is there.
"""

import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path

MXNET_VERSION = "1.9.1"


def torch_config() -> dict[str, object] | None:
    """Of torch, or ``None`` if there is none."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch
    from torch.utils import cpp_extension

    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", torch.__version__)  # "2.9.0a0+git1234", too
    if numbers is None:
        sys.exit(f"byteprophet: error: torch {torch.__version__} has no version of three numbers")
    major, minor, patch = (int(number) for number in numbers.groups())
    return {
        "version_integer": major * 10**9 + minor * 10**6 + patch * 10**3,
        "cuda": torch.version.cuda or "",
        "cxx11_abi": int(torch.compiled_with_cxx11_abi()),
        "include": cpp_extension.include_paths()[0],
        "lib": cpp_extension.library_paths()[0],
    }


def mxnet_config() -> dict[str, object] | None:
    """Of MXNet, or ``None`` if there is none; it is not imported."""
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.origin is None:
        return None
    version = importlib.metadata.version("mxnet")
    if version != MXNET_VERSION:
        sys.exit(
            f"byteprophet: error: mxnet {version} is installed, and BytePS builds with "
            f"{MXNET_VERSION}: pip install mxnet=={MXNET_VERSION} numpy==1.23.5, or remove it"
        )
    folder = Path(spec.origin).parent
    include = folder / "include"
    return {
        "include": str(include),
        "lib": str(folder),
        # Decides on the layout of an array in memory. The headers are there if it is on.
        "mkldnn": int((include / "mkldnn").is_dir()),
    }


frameworks = {"torch": torch_config(), "mxnet": mxnet_config()}
if not any(frameworks.values()):
    sys.exit(
        f"byteprophet: error: {sys.executable} finds neither torch nor mxnet, and BytePS is built "
        "for them: install one first (pip install torch); what builds in another environment, as "
        "uv does, needs --no-build-isolation, with scikit-build-core and nanobind installed"
    )
json.dump(frameworks, sys.stdout)
