from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.network import why_not_permitted


def test_what_is_missing_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs, and a device that cannot be used."""
    pytest.importorskip("torch")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("BYTEPROPHET_DEVICE", "gpu")
    assert run_cli(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "g++ (to build): not found" in shown
    assert "-> apt-get install g++" in shown
    (device,) = [line for line in shown.splitlines() if "device of byteps.torch" in line]
    assert not device.lstrip().startswith("ok")
    assert "BYTEPROPHET_DEVICE=gpu is set: auto, cuda or host is expected" in shown
    (plug_in,) = [line for line in shown.splitlines() if "plug-in for torch" in line]
    assert plug_in.lstrip().startswith("ok")


@pytest.mark.parametrize("port", ["-5", "99999"])
def test_a_port_that_there_cannot_be_is_refused(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["doctor", "--on", "local", "--port", port]) == 2
    said = capsys.readouterr().err
    assert "error: Invalid value for '--port': Input should be " in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--on", "local", "--resources"], "--resources is about this host: leave out --on"),
        (["--json", "--resources"], "--json prints findings, and --resources looks for none"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    assert run_cli(["doctor", *arguments, str(path)]) == 2
    assert capsys.readouterr().err == f"byteprophet: error: {says}\n"
    assert not path.exists()


def test_json_and_status_agree(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pythons: list[object] = []

    def counted(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        pythons.extend(part for part in command if part == sys.executable)
        return run(command, **options)

    run = subprocess.run
    monkeypatch.setattr("byteprophet.cli.checkup.subprocess.run", counted)
    status = run_cli(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1
    assert report["able"] == (status == 0)
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert findings["python"]["ok"]
    # A framework is imported once, as it takes seconds, unless its plug-in may be at fault.
    for name in ("torch", "mxnet"):
        if findings.get(f"plug-in for {name}", {}).get("ok"):
            pythons.pop()
    assert not pythons or not report["able"]
    # What is said of namespaces is what happens when they are made.
    assert findings["namespaces, veth, bridge, tbf"]["ok"] == (why_not_permitted() is None)
    assert report["able"] == all(each["ok"] for each in findings.values() if each["required"])
    # Whatever is not well comes with something to do about it, and only that.
    assert all(each["ok"] == (each["todo"] == "") for each in findings.values())
