"""What is in the packages. ``experiments/release.py`` builds, installs and uses them."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"


def listed_by_git() -> set[str]:
    """The files that are, or could be, committed."""
    if shutil.which("git") is None or not (CHECKOUT / ".git").exists():
        pytest.skip("this is no checkout")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.rstrip("\0")
    return {name for name in listed.split("\0") if (CHECKOUT / name).exists()}


def test_the_sdist_has_what_git_has(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        timeout=120,
        check=True,
    )
    (sdist,) = tmp_path.iterdir()
    root = f"byteprophet-{PROJECT['version']}"
    assert sdist.name == f"{root}.tar.gz"
    with tarfile.open(sdist) as archive:
        names = {member.name.removeprefix(f"{root}/") for member in archive.getmembers()}
    left_out = {
        name
        for name in listed_by_git()
        if name.startswith((".ci/", "experiments/results/")) or Path(name).name == ".gitignore"
    }
    assert names - {"PKG-INFO", ".gitignore"} == listed_by_git() - left_out
    for needed in ("LICENSE", "CMakeLists.txt", "native/byteps/requirements.txt"):
        assert needed in names


def test_the_installed_package_offers_its_commands_and_passes() -> None:
    for group, declared in {
        "console_scripts": PROJECT["scripts"],
        **PROJECT["entry-points"],
    }.items():
        points = importlib.metadata.entry_points(group=group)
        installed = {point.name: point.value for point in points}
        assert declared.items() <= installed.items()
        for point in points:
            if point.name in declared:
                assert callable(point.load())


@pytest.mark.parametrize("wheel", sorted((CHECKOUT / "dist").glob("*.whl")), ids=lambda it: it.name)
def test_a_built_wheel_is_whole(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        text = archive.read(points).decode()
    for declared in (PROJECT["scripts"], *PROJECT["entry-points"].values()):
        for name, value in declared.items():
            assert f"{name} = {value}" in text or f"{name}={value}" in text
    for needed in ("byteprophet.pth", "byteprophet/native/byteps.json", "byteps/LICENSE"):
        assert needed in names
    assert any(name.endswith(".data/scripts/bpslaunch") for name in names)
    assert not any(name.startswith(("tests/", "experiments/", "tools/")) for name in names)
