"""The live page in Chromium: figures change, nothing fails, a wrong token shows nothing.

Skipped where there is no Chromium (Debian and Ubuntu: ``apt-get install chromium``).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from byteprophet.watch.page import live_page
from byteprophet.watch.run_watch import RunWatch
from byteprophet.watch.server import LiveServer
from byteprophet.watch.sources import Shared

from ..chromium import needs_chromium, run_chromium
from .hand_made import MS_NS, event, link, make_run, plan, status, write_status

TOKEN = "a-token-for-tests"
PANELS = ["summary", "iterations", "links", "workers", "plans", "events", "warnings", "roles"]
EVIL = "</script><img src=x onerror='document.title=1'>&quot;"


class Drawn(HTMLParser):
    """A page's elements after its script has run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def empty(self) -> list[str | None]:
        return [panel["id"] for panel in self.of("section") if "data-empty" in panel]


Browser = Callable[..., Drawn]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Opens an address in Chromium, which reaches loopback only; what is drawn after 6 s."""
    profile = tmp_path_factory.mktemp("profile")

    def run(address: str, *arguments: str) -> Drawn:
        rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        budget = "--virtual-time-budget=6000"
        done = run_chromium(profile, rules, budget, *arguments, "--dump-dom", address)
        return Drawn(done.stdout)

    yield run
    shutil.rmtree(profile, ignore_errors=True)


class Growing:
    """A run in which both workers go on by an iteration whenever somebody looks."""

    def __init__(self, run: Path, name: str = "layer.weight") -> None:
        self._run = make_run(run)
        (run / "control.jsonl").write_text(
            plan(1) + event("adopted", plan=1, worker="worker-0", iteration=10)
        )
        (run / "logs" / "worker-1.log").write_text(f"byteprophet: warning: {name}\n")
        self._watch = RunWatch(run)
        self._name = name
        self.looks = 0

    def look(self) -> dict[str, Any]:
        self.looks += 1
        now_ns = 1_000 * MS_NS * self.looks
        starts = [[n, 100 * n * MS_NS + n % 3 * 9 * MS_NS] for n in range(1, 10 + self.looks)]
        sent = 20_000_000 * self.looks
        for rank in range(2):
            write_status(
                self._run,
                status(
                    rank,
                    monotonic_ns=now_ns,
                    unix_ns=now_ns,
                    iterations=len(starts),
                    starts=[[n, at + 5 * MS_NS * rank] for n, at in starts],
                    wait_ns=now_ns // 4,
                    waits=[{"name": self._name, "count": 3, "wait_ns": 5 * MS_NS}],
                    tensors=[{"name": self._name, "size_bytes": 9, "held_ns": 5, "travel_ns": 7}],
                    links=[link(push_bytes=sent, pull_bytes=sent, in_flight_bytes=9)],
                ),
            )
        return self._watch.look()


def serve(source: Any) -> LiveServer:
    return LiveServer(Shared(source, period_s=0.0), TOKEN, live_page)


def test_the_page_refers_to_nothing_else() -> None:
    page = live_page()
    assert "connect-src 'self'" in page
    assert re.findall(r"(?:src|href)\s*=\s*[\"'](?!#)", page) == []
    assert re.findall(r"@import|url\(", page) == []


@needs_chromium
@pytest.mark.parametrize("width", [500, 1280])
def test_figures_change(tmp_path: Path, browser: Browser, width: int) -> None:
    source = Growing(tmp_path / "run")
    with serve(source) as server:
        drawn = browser(server.address, f"--window-size={width},900")
    (root,) = drawn.of("html")
    assert root["data-errors"] == "0", root
    assert int(str(root["data-states"])) >= 3
    assert source.looks >= 3
    assert [panel["id"] for panel in drawn.of("section")] == PANELS
    assert all(panel.get("data-drawn") == "true" for panel in drawn.of("section"))
    assert drawn.empty() == []
    assert len(drawn.of("figure")) == len(drawn.of("canvas")) == 5
    text = drawn.text
    assert "160.00 Mbit/s" in text or "160 Mbit/s" in text
    assert 'class="badge running"' in text
    assert ">reporting<" in text
    assert ">The charts are of the first" not in text


class Many:
    """A run of ten workers, which are all as the first one of ``Growing``."""

    def __init__(self, run: Path) -> None:
        self._growing = Growing(run)

    def look(self) -> dict[str, Any]:
        state = self._growing.look()
        first = state["workers"][0]
        workers = [{**first, "role": f"worker-{rank}", "rank": rank} for rank in range(10)]
        return {**state, "workers": workers}


@needs_chromium
def test_workers_beyond_the_first_have_no_charts_and_are_counted(
    tmp_path: Path, browser: Browser
) -> None:
    with serve(Many(tmp_path / "run")) as server:
        drawn = browser(server.address)
    assert drawn.of("html")[0]["data-errors"] == "0"
    assert len(drawn.of("figure")) == 1 + 2 * 8
    assert drawn.text.count("The charts are of the first 8 of 10 workers.") == 2


@needs_chromium
def test_names_that_are_markup(tmp_path: Path, browser: Browser) -> None:
    with serve(Growing(tmp_path / "run", EVIL)) as server:
        drawn = browser(server.address)
    assert drawn.of("html")[0]["data-errors"] == "0"
    assert drawn.of("img") == []
    assert len(drawn.of("script")) == 3


@needs_chromium
def test_a_run_of_which_nothing_is_known(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "run").mkdir()
    with serve(RunWatch(tmp_path / "run")) as server:
        drawn = browser(server.address)
    assert drawn.of("html")[0]["data-errors"] == "0"
    assert drawn.empty() == [
        "iterations",
        "links",
        "workers",
        "plans",
        "events",
        "warnings",
        "roles",
    ]


@needs_chromium
def test_with_a_wrong_token_there_is_no_page(tmp_path: Path, browser: Browser) -> None:
    source = Growing(tmp_path / "run")
    with serve(source) as server:
        drawn = browser(server.address[:-1])
    assert drawn.of("section") == []
    assert source.looks == 0
    assert "the token is missing or wrong" in drawn.text
