"""When ``make release`` refuses, on checkouts made here; nothing is built."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
TOOL = CHECKOUT / "tools" / "release.py"


def git(checkout: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(
        ["git", "-C", checkout, *who, *arguments], capture_output=True, check=True, timeout=60
    )


def commit(checkout: Path) -> None:
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "change")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One of version 1.2.3 that may be released."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[project]\nname = "byteprophet"\nversion = "1.2.3"\n')
    (folder / "CMakeLists.txt").write_text("project(byteprophet VERSION 1.2.3 LANGUAGES C CXX)\n")
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2026-11-27)\n- A change.\n")
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def check(checkout: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-I", TOOL, "--check", "--checkout", checkout],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def refusal(checkout: Path) -> str:
    status, said = check(checkout)
    assert status == 2
    assert said.startswith("byteprophet: error: ")
    assert said.count("\n") == 1
    return said


def test_a_committed_version_with_an_entry_may_be_released(checkout: Path) -> None:
    assert check(checkout) == (0, "byteprophet 1.2.3 can be released\n")
    git(checkout, "tag", "v1.2.3")
    assert check(checkout)[0] == 0


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_changes_that_are_not_committed(checkout: Path, name: str) -> None:
    with (checkout / name).open("a") as file:
        file.write("more\n")
    assert f"not committed: {name}: commit" in refusal(checkout)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "## 1.2.3 (unreleased)\n- A change.\n",
        "## 1.2.3 (2026-11-27)\n",
        "## 11.2.3 (2026-1-1)\n",
    ],
)
def test_a_version_without_an_entry(checkout: Path, text: str) -> None:
    (checkout / "CHANGELOG.md").write_text(f"# Changelog\n\n{text}\n## 1.2.2 (2026-01-01)\n- x\n")
    commit(checkout)
    assert "CHANGELOG.md has no dated entry for 1.2.3" in refusal(checkout)


def test_two_versions(checkout: Path) -> None:
    (checkout / "CMakeLists.txt").write_text("project(byteprophet VERSION 1.2.4 LANGUAGES C)\n")
    commit(checkout)
    assert "pyproject.toml has version 1.2.3, CMakeLists.txt 1.2.4" in refusal(checkout)


def test_a_version_that_was_released(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.3")
    (checkout / "more.py").write_text("")
    commit(checkout)
    assert "v1.2.3 is the tag of another commit" in refusal(checkout)


def test_this_checkout_has_one_version() -> None:
    """Both files that say it are read; whether it may be released is another question."""
    _, said = check(CHECKOUT)
    assert "has no version" not in said
    assert "CMakeLists.txt" not in said or "CHANGELOG.md" in said


def test_the_image_gets_the_packages_that_the_build_asks_for() -> None:
    """Those of native/system-packages.sh that are not for tests or for developers only."""
    containerfile = (CHECKOUT / "Containerfile").read_text()
    script = (CHECKOUT / "native" / "system-packages.sh").read_text()
    asked = set(re.findall(r'missing="\$missing ([^"]+)"', script))
    of_developers = {"ccache", "libbenchmark-dev", "libgtest-dev"}
    of_python_images = {"python3-dev", "python3-venv"}
    assert of_developers | of_python_images < asked
    for package in asked - of_developers - of_python_images:
        assert f" {package} " in containerfile
