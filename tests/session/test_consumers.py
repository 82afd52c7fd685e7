"""What a worker of a controller's job observes, also if it was started by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from byteprophet.control.keys import make_keys
from byteprophet.errors import UserError
from byteprophet.session import controlling, monitoring, profiling
from byteprophet.session.controller_address import VARIABLE
from byteprophet.session.job import SessionJob

JOB = SessionJob(0, 2, {}, None)  # without a run directory
PLUGIN = cast("Any", type("Plugin", (), {"iteration": staticmethod(lambda: 0)}))
CONTROLLED = {VARIABLE: "tcp://127.0.0.1:7000"}


@pytest.mark.parametrize("module", [monitoring, profiling])
def test_a_controller_switches_on_what_its_plans_need(module: Any) -> None:
    off = {"BYTEPROPHET_MONITOR": "0", "BYTEPROPHET_PROFILING": "0"}
    for environment, is_made in (({}, False), (CONTROLLED, True), ({**CONTROLLED, **off}, False)):
        assert (module.make_consumer(environment, PLUGIN, JOB) is not None) == is_made


def test_a_controller_of_a_job_without_a_name_is_refused(tmp_path: Path) -> None:
    """As of one worker without servers, which needs no address of a scheduler role."""
    make_keys(tmp_path / "keys")
    environment = {
        **CONTROLLED,
        controlling.KEYS: str(tmp_path / "keys"),
        "BYTEPS_SCHEDULER": "prophet",
        "BYTEPS_PARTITION_BYTES": "262144",
        "DMLC_WORKER_ID": "0",
    }
    with pytest.raises(UserError, match=r"^BYTEPROPHET_CONTROLLER=tcp.*: needs DMLC_PS_ROOT_URI"):
        controlling.make_consumer(environment, PLUGIN, JOB)
