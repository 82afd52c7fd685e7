"""What a script is told when it joins a job."""

from __future__ import annotations

import pytest

pytest.importorskip("mxnet", reason="MXNet has an environment of its own: make test-mxnet")

from byteprophet.mxnet.lifecycle import warn_of_ignored


def test_variables_without_effect_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_ignored({"BYTEPROPHET_TUNE": "0", "BYTEPROPHET_PROFILE": ""})
    assert capsys.readouterr().err == ""
    warn_of_ignored({"BYTEPROPHET_PROFILE": "profile.json", "BYTEPROPHET_TUNE": "300"})
    assert capsys.readouterr().err == (
        "byteprophet: warning: BYTEPROPHET_PROFILE, BYTEPROPHET_TUNE: no effect in jobs of MXNet "
        "(docs/mxnet.md, Limits)\n"
    )
