from __future__ import annotations

import json

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.network import why_not_permitted


@pytest.mark.usefixtures("_no_program_on_path")
def test_what_is_missing_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(["doctor"])
    shown = capsys.readouterr().out
    assert "g++ (to build): not found" in shown
    assert "-> apt-get install g++" in shown


@pytest.fixture
def _no_program_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def test_json_and_status_agree(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_cli(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1
    assert report["able"] == (status == 0)
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert findings["python"]["ok"]
    # What is said of namespaces is what happens when they are made.
    assert findings["namespaces, veth, bridge, tbf"]["ok"] == (why_not_permitted() is None)
    assert report["able"] == all(each["ok"] for each in findings.values() if each["required"])
    # Whatever is not well comes with something to do about it, and only that.
    assert all(each["ok"] == (each["todo"] == "") for each in findings.values())


def test_a_device_that_cannot_be_used_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("BYTEPROPHET_DEVICE", "gpu")
    assert run_cli(["doctor", "--json"]) == 1
    findings = {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    device = findings["device of byteps.torch"]
    assert not device["ok"]
    assert device["found"] == "BYTEPROPHET_DEVICE=gpu is set: auto, cuda or host is expected"
    assert findings["plug-in for torch"]["ok"]
