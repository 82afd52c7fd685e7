"""The page in Chromium, without a network: no errors, every panel drawn, nothing wider than it.

Skipped where there is no Chromium (Debian and Ubuntu: ``apt-get install chromium``).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from byteprophet.diagnose import compare, diagnose
from byteprophet.diagnose.plain import as_json
from byteprophet.report.page import write_page

from ..diagnose.hand_made import CONFIG, collective_job, ps_job, save_run, stock_job
from ..graph.recorded_replay import config_of, record
from ..graph.test_measured import a_job
from .test_page import EVIL, renamed

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PANELS = [
    "summary", "breakdown", "timeline", "path", "gradients", "bandwidth", "stragglers",
    "prediction", "comparison",
]  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium makes this test run"
)

Browser = Callable[..., str]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """Runs Chromium on a page, with more arguments; what it prints. ``quiet``: without errors."""

    def run(page: Path, *arguments: str, quiet: bool = True) -> str:
        command = [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=8000", "--host-resolver-rules=MAP * ~NOTFOUND",
            *arguments, f"file://{page}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        # What the page's console says goes to the log.
        assert not quiet or [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
        return done.stdout

    yield run
    shutil.rmtree(tmp_path / "profile", ignore_errors=True)


class Drawn(HTMLParser):
    """A page's elements after its script has run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def empty(self) -> list[str | None]:
        return [panel["id"] for panel in self.of("section") if "data-empty" in panel]

    def check(self) -> None:
        root = self.of("html")[0]
        assert root.get("data-errors") == "0", root
        assert root.get("data-done") == "true"
        assert [panel["id"] for panel in self.of("section")] == PANELS
        assert all(panel.get("data-drawn") == "true" for panel in self.of("section"))
        assert [canvas.get("data-painted") for canvas in self.of("canvas")] == ["true"]
        for tag in ("rect", "line", "text", "path", "circle"):
            for one in self.of(tag):
                assert not re.search(r"NaN|undefined|Infinity", " ".join(map(str, one.values())))


def write(
    directory: Path,
    events: Any,
    against: Path | None = None,
    config: Mapping[str, Any] = CONFIG,
) -> Path:
    """The page of a run with these events."""
    save_run(directory, events, config)
    found = diagnose(directory)
    comparison = compare(found, diagnose(against)) if against else None
    page = directory / "report.html"
    write_page(page, found, as_json(found, comparison, "other"))
    return page


def test_all_panels_of_a_whole_job(tmp_path: Path, browser: Browser) -> None:
    other = write(tmp_path / "other", stock_job()).parent
    job = a_job("fifo", iterations=6)
    page = write(tmp_path / "run", record(job)[0], other, config_of(job))
    drawn = Drawn(browser(page, "--dump-dom"))
    drawn.check()
    assert drawn.empty() == []


@pytest.mark.parametrize(
    ("job", "empty"),
    [
        (collective_job, ["gradients", "prediction", "comparison"]),
        (stock_job, ["gradients", "prediction", "comparison"]),
    ],
)
def test_panels_without_data_say_so(
    tmp_path: Path, browser: Browser, job: Any, empty: list[str]
) -> None:
    drawn = Drawn(browser(write(tmp_path / "run", job()), "--dump-dom"))
    drawn.check()
    assert drawn.empty() == empty


def test_a_panel_that_fails_is_alone_in_it(tmp_path: Path, browser: Browser) -> None:
    page = write(tmp_path / "run", ps_job())
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace('"top":[', '"tip":['), encoding="utf-8")
    drawn = Drawn(browser(page, "--dump-dom", quiet=False))
    assert drawn.of("html")[0]["data-errors"] == "1"
    assert drawn.of("html")[0]["data-done"] == "true"
    assert [panel["id"] for panel in drawn.of("section") if "data-drawn" not in panel] == ["path"]


def test_names_that_are_markup(tmp_path: Path, browser: Browser) -> None:
    drawn = Drawn(browser(write(tmp_path / "run", renamed(ps_job(), EVIL)), "--dump-dom"))
    drawn.check()
    assert drawn.empty() == ["prediction", "comparison"]
    assert len(drawn.of("script")) == 3


@pytest.mark.parametrize(("width", "dark"), [(500, True), (1280, False)])
def test_pictures(tmp_path: Path, browser: Browser, width: int, dark: bool) -> None:
    """It has the ground's colour that was asked for, and much else."""
    picture = tmp_path / "page.png"
    scheme = [DARK] if dark else []
    page = write(tmp_path / "run", ps_job())
    browser(page, *scheme, f"--window-size={width},1600", f"--screenshot={picture}")
    pixels = imread(picture)[..., :3]
    assert pixels.shape[1] == width
    ground = float(pixels[4:8, 4:8].mean())
    assert ground < 0.2 if dark else ground > 0.9
    assert len(np.unique((pixels * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 50
