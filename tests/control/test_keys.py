"""Keys are made for their user's eyes only, and read only so."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from byteprophet.control.keys import make_keys, read_keys
from byteprophet.errors import UserError


def test_the_sides_know_each_other(keys: Path) -> None:
    controller, worker = read_keys(keys, "controller"), read_keys(keys, "worker")
    assert controller.peer == worker.public
    assert worker.peer == controller.public
    assert len({controller.public, controller.secret, worker.public, worker.secret}) == 4


def test_only_the_user_can_read_secrets(keys: Path) -> None:
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    for path in keys.glob("*.key_secret"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_secrets_that_others_can_read_are_refused(mode: int, keys: Path) -> None:
    (keys / "worker.key_secret").chmod(mode)
    with pytest.raises(UserError, match="others can read it"):
        read_keys(keys, "worker")
    read_keys(keys, "controller")


def test_what_is_missing_or_broken_is_named(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        read_keys(tmp_path / "nowhere", "worker")
    (keys / "controller.key").write_text('public-key = "short"\n')
    with pytest.raises(UserError, match="is not a CURVE key"):
        read_keys(keys, "worker")
    for broken in (f"public-key = {'~' * 40}", f"public-key = {'#' * 40}", "public-key"):
        (keys / "controller.key").write_text(f"{broken}\n")
        with pytest.raises(UserError, match="is not a CURVE key"):
            read_keys(keys, "worker")
    (keys / "controller.key").write_text("nothing\n")
    with pytest.raises(UserError, match=r"controller\.key"):
        read_keys(keys, "worker")
    (keys / "controller.key").unlink()
    with pytest.raises(UserError, match=r"controller\.key"):
        read_keys(keys, "worker")
    with pytest.raises(UserError, match="cannot be made"):
        make_keys(keys)


def test_every_job_has_keys_of_its_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_keys(tmp_path / name)
    assert read_keys(tmp_path / "a", "worker") != read_keys(tmp_path / "b", "worker")
