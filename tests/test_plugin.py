"""Loading the plug-in, by the import and by itself, in interpreters of their own.

Where another test starts one afresh that does the same, a fork stands for it
(``tests/launcher/test_fork_server.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import byteps
import pytest

from byteprophet import _core

from .python_process import run_python

FRESH = "prophet"
"""The scheduler with which an interpreter is always started afresh."""


def run(code: str, fork: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a new interpreter, with nothing of BytePS set but ``environment``."""
    base = {k: v for k, v in os.environ.items() if not k.startswith(("BYTEPS_", "BYTEPROPHET_"))}
    if fork:
        return run_python("-c", code, env={**base, **environment}, timeout=100)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**base, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_nothing_happens_at_start_without_the_variable() -> None:
    result = run("import sys; print([m for m in sys.modules if m.startswith('byteprophet')])")
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_only_a_hook_is_installed_at_start() -> None:
    code = "import sys; print('torch' in sys.modules, 'byteprophet.torch' in sys.modules)"
    result = run(code, BYTEPS_SCHEDULER="no such scheduler")
    assert (result.returncode, result.stdout, result.stderr) == (0, "False False\n", "")


@pytest.mark.parametrize("module", ["byteprophet.torch", "byteps.torch"])
@pytest.mark.parametrize(
    ("scheduler", "given"), [(name, "") for name in _core.policy_names()] + [("p3", "81920")]
)
def test_loaded_with_the_policys_partition_size(module: str, scheduler: str, given: str) -> None:
    expected = given or _core.default_settings(scheduler)["partition_bytes"]
    result = run(
        f"import os, {module} as bps; from byteprophet import _plugin; "
        "print(_plugin.load() is not None, bps.DistributedOptimizer.__module__, "
        "os.environ['BYTEPS_PARTITION_BYTES'])",
        fork=scheduler != FRESH,
        BYTEPS_SCHEDULER=scheduler,
        **({"BYTEPS_PARTITION_BYTES": given} if given else {}),
    )
    assert result.stdout == f"True byteprophet.torch.optimizer {expected}\n"
    assert result.returncode == 0


@pytest.mark.parametrize("module", ["byteprophet.torch", "byteps.torch"])
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"BYTEPS_SCHEDULER": "p4"}, "scheduler 'p4': choose one of stock, "),
        ({"BYTEPS_SCHEDULER": "p3", "BYTEPROPHET_SETTINGS": "haste=3"}, ""),
        ({"BYTEPS_SCHEDULER": "p3", "BYTEPROPHET_SETTINGS": "haste"}, ""),
        ({"BYTEPS_SCHEDULER": "p3", "BYTEPS_PARTITION_BYTES": "big"}, ""),
        ({"BYTEPS_SCHEDULER": "p3", "BYTEPS_ENABLE_ASYNC": "1"}, "BYTEPS_ENABLE_ASYNC is set: "),
    ],
)
def test_wrong_settings_end_the_process(
    module: str, environment: dict[str, str], message: str
) -> None:
    result = run(f"import {module}", **environment)
    assert result.returncode == 2
    assert result.stderr.startswith(f"byteprophet: error: {message}")
    assert result.stderr.count("\n") == 1


def test_loading_too_late_is_an_error() -> None:
    result = run(
        "import os, byteps.torch; os.environ['BYTEPS_SCHEDULER'] = 'p3'; import byteprophet.torch"
    )
    assert result.returncode == 2
    assert "import byteprophet.torch first" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("scheduler", ["", "stock"])
def test_stock_is_byteps_as_shipped(scheduler: str) -> None:
    result = run(
        "import byteps.torch as bps; print(bps.DistributedOptimizer.__module__)",
        fork=scheduler == "stock",
        BYTEPS_SCHEDULER=scheduler,
    )
    assert (result.stdout, result.stderr) == ("byteps.torch\n", "")


def test_another_build_of_byteps_is_left_alone(tmp_path: Path) -> None:
    shutil.copytree(Path(byteps.__file__).parent, tmp_path / "byteps")
    (extension,) = (tmp_path / "byteps" / "torch").glob("c_lib*.so")
    with extension.open("ab") as file:
        file.write(b"another build")
    result = run(
        f"import byteps; byteps.__path__[:] = [{str(tmp_path / 'byteps')!r}]; "
        "import byteps.torch as bps; print(bps.DistributedOptimizer.__module__)",
        BYTEPS_SCHEDULER="p3",
    )
    assert result.stdout == "byteps.torch\n"
    assert result.returncode == 0
    assert "is another build than the plug-in's" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BYTEPROPHET_OVERLAP", "yes"),
        ("BYTEPROPHET_TIMEOUT_S", "soon"),
        ("BYTEPROPHET_TIMEOUT_S", "-1"),
        ("BYTEPS_ENABLE_ASYNC", "1"),
    ],
)
def test_wrong_runtime_settings_are_named(name: str, value: str) -> None:
    result = run(
        "from byteprophet.runtime_settings import RuntimeSettings as R; R.from_environment()",
        **{name: value},
    )
    assert f"UserError: {name}={value}: " in result.stderr


def test_plans_are_refused_where_nothing_is_scheduled_yet() -> None:
    result = run(
        "from byteprophet import _plugin; import byteprophet.torch; plugin = _plugin.load()\n"
        "print(plugin.iteration(), plugin.tensor('none'), len(plugin.take_transfers()))\n"
        "plugin.on_iteration(); print(plugin.iteration(), plugin.lost_transfers())\n"
        "try: plugin.stage_plan(5, {'window_max_bytes': 1})\n"
        "except ValueError as error: print(error)",
        fork=True,
        BYTEPS_SCHEDULER="prophet",
    )
    assert result.stderr == ""
    assert result.stdout == "0 -1 0\n1 0\nthis process schedules nothing\n"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BYTEPROPHET_RECORD", "yes", "BYTEPROPHET_RECORD=yes: must be 0 or 1"),
        ("BYTEPROPHET_RECORD_STEPS", "5:3", "BYTEPROPHET_RECORD_STEPS=5:3: must be FIRST:STOP"),
        ("BYTEPROPHET_RECORD", "1", "BYTEPROPHET_RUN must name the directory"),
        ("BYTEPROPHET_PROFILING", "on", "BYTEPROPHET_PROFILING=on: must be 0 or 1"),
        ("BYTEPROPHET_PROFILE", "/nothing/here.json", "/nothing/here.json: cannot be read"),
    ],
)
def test_wrong_wishes_to_observe_end_the_process(name: str, value: str, message: str) -> None:
    result = run(
        "from byteprophet import _plugin; from byteprophet.session import process; "
        "process.start(_plugin.load(), 0, 2)",
        fork=True,
        BYTEPS_SCHEDULER="prophet",
        **{name: value},
    )
    assert result.returncode == 2
    assert result.stderr.startswith("byteprophet: error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
