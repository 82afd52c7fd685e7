"""Python programs that tests start by hand: forked, where that does as well as starting them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from byteprophet.launcher.forked_process import ForkPlan, Process, forks_wanted

# As the launcher has it: so its workers and these have one fork server.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def start_python(
    *arguments: object, env: Mapping[str, str] | None = None, fork: bool = True, **options: Any
) -> Process[Any]:
    """``python ARGUMENTS``, as text unless ``options`` (``Process``) say otherwise."""
    command = (sys.executable, *map(str, arguments))
    plan = ForkPlan(command) if fork and forks_wanted(os.environ, True) else None
    whole = {**_ENVIRONMENT, **(os.environ if env is None else env)}
    return Process(command, plan, env=whole, **{"text": True, **options})


def run_python(
    *arguments: object, timeout: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same until its end, with what it said."""
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with start_python(*arguments, env=env, **pipes) as process:
        try:
            said, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, said, errors)
