"""The page in Chromium, without a network: no errors, every panel drawn, nothing wider than it.

Skipped where there is no Chromium (Debian and Ubuntu: ``apt-get install chromium``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from byteprophet.cli.main import run_cli
from byteprophet.diagnose import compare, diagnose
from byteprophet.diagnose.plain import as_json
from byteprophet.job.strategy import Region
from byteprophet.job.strategy_file import Used, strategy_path, write_strategy
from byteprophet.measure.run import Run
from byteprophet.report.page import write_page
from byteprophet.simulate.execute.kept import Job
from byteprophet.simulate.execute.search import pareto, search
from byteprophet.simulate.models.load import load_source
from byteprophet.timeline.tables import SERVED_TABLE, TRANSFERS

from ..chromium import needs_chromium, run_chromium
from ..diagnose.hand_made import CONFIG, MS, collective_job, ps_job, save_run, stock_job
from ..measure.recorded_replay import config_of, record
from ..measure.test_servers import a_job
from ..optimize.outcomes import no_better, with_servers, without_servers
from .test_optimization_page import applied_rounds
from .test_optimization_page import write as write_of_outcome
from .test_page import EVIL, renamed

PANELS = [
    "summary", "breakdown", "timeline", "path", "gradients", "bandwidth", "stragglers",
    "prediction", "comparison",
]  # fmt: skip
OF_OPTIMIZATION = [
    "summary", "decisions", "timeline", "path", "buckets", "regions", "trials", "measured",
]  # fmt: skip
OF_SIMULATION = ["summary", "breakdown", "memory", "timeline", "path", "sure"]
# Opens all that is folded, lets it be drawn, and says of each chart whether there is something that
# is coloured, as texts and axes are not.
PAINTED = """
addEventListener("load", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  setTimeout(() => {
    for (const figure of document.querySelectorAll("figure")) {
      const [canvas, ...more] = figure.querySelectorAll("canvas");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let coloured = 0;
      for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue] = data.slice(at, at + 3);
        if (Math.max(red, green, blue) - Math.min(red, green, blue) > 60) coloured += 1;
      }
      figure.dataset.painted = String(coloured > 50 && more.length === 0);
    }
  }, 1000);
});
"""
# What the tooltip says over a bar; what is shown after a part of one chart was dragged over, and
# after a double click, of all charts of bandwidth; what is shown of the timeline after a key.
USED = """
const pause = () => new Promise((done) => setTimeout(done, 300));
const chart = (name) => document.querySelector(`figure[aria-label^="${name}"]`);
const fire = (type, over, x, y) => {
  const box = over.getBoundingClientRect();
  const place = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
  over.dispatchEvent(new PointerEvent(type, { ...place, movementX: 1, bubbles: true, detail: 1 }));
};
const shown = (figure) => [figure.plot.scales.x.min, figure.plot.scales.x.max];
const links = () => [...document.querySelectorAll("#bandwidth figure")].map(shown);
addEventListener("load", async () => {
  await pause();
  const seen = { told: [] };
  const told = () => document.getElementById("tip").textContent;
  for (const [name, x, y] of [
    ["Parts of the mean", 0.01, 0.2], ["Iteration times over", 0.5, 0.5], ["Timeline", 0.3, 0.1],
    ["Wait and transfer", 0.01, 0.5], ["Bandwidth of worker-1, push", 0.01, 0.5],
  ]) {
    fire("pointermove", chart(name).plot.over, x, y);
    seen.told.push(told());
  }
  fire("pointerleave", chart("Timeline").plot.over, 2, 2);
  seen.told.push(told());
  const { over } = chart("Bandwidth of worker-0, push").plot;
  seen.links = [links()];
  const drag = [["mousemove", 0.25], ["mousedown", 0.25], ["mousemove", 0.5], ["mouseup", 0.5]];
  for (const [type, x] of drag) {
    fire(type, over, x, 0.5);
    await pause();
  }
  seen.links.push(links());
  fire("dblclick", over, 0.5, 0.5);
  await pause();
  seen.links.push(links());
  const timeline = chart("Timeline");
  seen.timeline = [shown(timeline)];
  for (const keys of [["+"], Array(10).fill("ArrowLeft")]) {
    for (const key of keys) {
      timeline.dispatchEvent(new KeyboardEvent("keydown", { key }));
      await pause();
    }
    seen.timeline.push(shown(timeline));
  }
  document.documentElement.dataset.seen = JSON.stringify(seen);
});
"""
# The rows of the prediction's table; whose gradients are shown first, and what is shown of others.
TOLD = """
addEventListener("load", () => {
  const told = (panel) => document.querySelector(`#${panel}`);
  const rows = [...told("prediction").querySelector("table")?.rows ?? []];
  const seen = { prediction: rows.map((row) => [...row.cells].map((cell) => cell.textContent)) };
  const select = told("gradients").querySelector("select");
  const label = () => told("gradients").querySelector("figure")?.getAttribute("aria-label");
  seen.gradients = [select.value, label()];
  select.value = "0";
  select.dispatchEvent(new Event("change"));
  seen.others = [label() ?? null, told("gradients").textContent];
  document.documentElement.dataset.seen = JSON.stringify(seen);
});
"""
DARK = "--blink-settings=preferredColorScheme=0"

pytestmark = needs_chromium

Browser = Callable[..., str]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Runs Chromium on a page, with more arguments; what it prints. ``quiet``: without errors."""
    profile = tmp_path_factory.mktemp("profile")

    def run(page: Path, *arguments: str, quiet: bool = True) -> str:
        limits = "--virtual-time-budget=8000", "--host-resolver-rules=MAP * ~NOTFOUND"
        done = run_chromium(profile, *limits, *arguments, f"file://{page}")
        assert not quiet or [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
        return done.stdout

    yield run
    shutil.rmtree(profile, ignore_errors=True)


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

    def check(self, panels: Sequence[str] = PANELS, charts: int = 4) -> None:
        root = self.of("html")[0]
        assert root.get("data-errors") == "0", root
        assert root.get("data-done") == "true"
        assert [panel["id"] for panel in self.of("section")] == list(panels)
        assert all(panel.get("data-drawn") == "true" for panel in self.of("section"))
        figures = self.of("figure")
        assert len(figures) >= charts
        assert all(figure.get("data-painted") == "true" for figure in figures), figures
        assert len(self.of("canvas")) == len(figures)


def write(
    directory: Path,
    events: Any,
    against: Path | None = None,
    config: Mapping[str, Any] = CONFIG,
    script: str = PAINTED,
) -> Path:
    """The page of a run with these events, which also runs ``script``."""
    save_run(directory, events, config)
    found = diagnose(Run(directory))
    comparison = compare(found, diagnose(Run(against))) if against else None
    page = directory / "report.html"
    write_page(page, found, as_json(found, comparison, "other"))
    return with_script(page, script)


def with_script(page: Path, script: str) -> Path:
    """The page, which also runs ``script``."""
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return page


def test_all_panels_of_a_whole_job(tmp_path: Path, browser: Browser) -> None:
    other = write(tmp_path / "other", stock_job()).parent
    job = a_job("fifo", iterations=6)
    page = write(tmp_path / "run", record(job)[0], other, config_of(job))
    drawn = Drawn(browser(page, "--dump-dom"))
    drawn.check()
    assert drawn.empty() == []


def test_a_prediction_is_of_whole_iterations(tmp_path: Path, browser: Browser) -> None:
    """Four steps share an update, and a replay gives the time of one."""
    job = a_job("fifo", iterations=6)
    used = Used(job.model, replace(job.strategy, accumulation=4), 1, job.push_policy)
    run = tmp_path / "run"
    run.mkdir()
    write_strategy(strategy_path(run), used)
    page = write(run, record(job)[0], config=config_of(job), script=TOLD)
    data = as_json(diagnose(Run(run)), None)
    assert data["bound_ns"] > 3 * data["prediction"]["bound_ns"]
    seen = json.loads(str(Drawn(browser(page, "--dump-dom")).of("html")[0]["data-seen"]))
    heads, measured, replayed, _, bound = seen["prediction"]
    assert heads == ["", "iteration", "against measured"]
    assert measured[:2] == ["measured", f"{data['settled']['median_ns'] / MS:.1f} ms"]
    assert bound[:2] == ["lower bound", f"{data['bound_ns'] / MS:.1f} ms"]
    assert abs(float(replayed[2].removesuffix(" %"))) < 5


def test_the_worker_whose_gradients_are_shown_is_chosen(tmp_path: Path, browser: Browser) -> None:
    """Of several local ranks, the last one sends."""
    events = [one for one in ps_job() if (one.table, one.origin.rank) != (TRANSFERS, 0)]
    drawn = Drawn(browser(write(tmp_path / "run", events, script=TOLD), "--dump-dom"))
    seen = json.loads(str(drawn.of("html")[0]["data-seen"]))
    assert seen["gradients"] == ["1", "Wait and transfer per gradient of worker-1"]
    assert seen["others"][0] is None
    assert "worker-0 recorded no transfers." in seen["others"][1]


def test_charts_of_bandwidth_are_of_the_first_workers(tmp_path: Path, browser: Browser) -> None:
    one = [
        table for table in ps_job() if (table.table is not SERVED_TABLE) and not table.origin.rank
    ]
    events = [
        replace(table, origin=replace(table.origin, role=f"worker-{rank}", rank=rank))
        for rank in range(10)
        for table in one
    ]
    page = write(tmp_path / "run", events, config={**CONFIG, "workers": 10, "servers": 0})
    text = browser(page, "--dump-dom")
    figures = [str(figure["aria-label"]) for figure in Drawn(text).of("figure")]
    assert sum(label.startswith("Bandwidth of worker-") for label in figures) == 2 * 8
    assert "The charts are of the first 8 of 10 workers." in text


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


@pytest.mark.parametrize(
    ("field", "panel"),
    [("top", "path"), ("bin_ns", "bandwidth")],  # one is missing; what is drawn is not a number
)
def test_a_panel_that_fails_is_alone_in_it(
    tmp_path: Path, browser: Browser, field: str, panel: str
) -> None:
    page = write(tmp_path / "run", ps_job())
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace(f'"{field}":', '"other":'), encoding="utf-8")
    drawn = Drawn(browser(page, "--dump-dom", quiet=False))
    assert drawn.of("html")[0]["data-errors"] == "1"
    assert drawn.of("html")[0]["data-done"] == "true"
    assert [one["id"] for one in drawn.of("section") if "data-drawn" not in one] == [panel]


def test_names_that_are_markup(tmp_path: Path, browser: Browser) -> None:
    drawn = Drawn(browser(write(tmp_path / "run", renamed(ps_job(), EVIL)), "--dump-dom"))
    drawn.check()
    assert drawn.empty() == ["comparison"]
    assert len(drawn.of("script")) == 5  # one is the test's


def test_all_panels_of_an_optimisation(tmp_path: Path, browser: Browser) -> None:
    """Measured, and with a compiled region; without servers."""
    outcome, passes = without_servers()
    regions = (Region(("features.0", "features.1"), compiled=True),)
    strategy = replace(outcome.job.strategy, regions=regions)
    outcome = replace(outcome, job=replace(outcome.job, strategy=strategy), compile_ns=5 * 10**9)
    page = tmp_path / "page.html"
    write_of_outcome(page, (outcome, passes), "run", applied_rounds(outcome, 1.0))
    drawn = Drawn(browser(with_script(page, PAINTED), "--dump-dom"))
    drawn.check(OF_OPTIMIZATION, charts=3)
    assert drawn.empty() == []


@pytest.mark.parametrize(
    ("make", "empty"),
    [
        (with_servers, ["regions", "trials", "measured"]),
        (no_better, ["regions", "trials", "measured"]),
    ],
)
def test_an_optimisation_without_data_says_so(
    tmp_path: Path, browser: Browser, make: Any, empty: list[str]
) -> None:
    page = write_of_outcome(tmp_path / "page.html", make())
    drawn = Drawn(browser(with_script(page, PAINTED), "--dump-dom", "--window-size=500,900"))
    drawn.check(OF_OPTIMIZATION, charts=3)
    assert drawn.empty() == empty


@pytest.mark.parametrize(
    ("strategy", "fits"), [("tp=8 pp=4 micro_batches=8 zero=1", True), ("pp=8 zero=1", False)]
)
def test_a_simulated_job(tmp_path: Path, browser: Browser, strategy: str, fits: bool) -> None:
    call = ["simulate", "gpt3-175b", "--cluster", "dgx-a100", "--gpus", "128"]
    assert run_cli([*call, "--strategy", strategy, "--out", str(tmp_path)]) == 0
    page = with_script(tmp_path / "simulation.html", PAINTED)
    text = browser(page, "--dump-dom", *([] if fits else ["--window-size=500,900"]))
    drawn = Drawn(text)
    drawn.check(OF_SIMULATION, charts=6)
    assert drawn.empty() == []
    assert ("Out of memory" in text.split('id="data"')[0]) != fits


def test_a_search_for_strategies(tmp_path: Path, browser: Browser) -> None:
    call = ["simulate", "gpt2", "--cluster", "dgx-a100", "--gpus", "8", "--batch", "16"]
    assert run_cli([*call, "--out", str(tmp_path)]) == 0
    text = browser(with_script(tmp_path / "simulation.html", PAINTED), "--dump-dom")
    drawn = Drawn(text)
    drawn.check(["summary", "search", *OF_SIMULATION[1:]], charts=7)
    assert drawn.empty() == []
    job = Job("gpt2", "dgx-a100", 8, 16)
    front = pareto(search(job, load_source(job.model), lambda done, total: None))
    for one in front:
        assert f'<td class="text wide">{one.strategy}</td>' in text


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


def test_charts_say_what_they_show_and_show_parts(tmp_path: Path, browser: Browser) -> None:
    drawn = Drawn(browser(write(tmp_path / "run", ps_job(), script=USED), "--dump-dom"))
    seen = json.loads(str(drawn.of("html")[0]["data-seen"]))
    assert seen["told"] == [
        "worker-0\nforward: 20.00 ms",
        "iteration 12: 100.0 ms",
        "backward w worker 1\n40.00 ms, at 150.00 ms",
        "0: w, 1.20 MB\nwaits 2.00 ms, travels 32.00 ms\nkeeps computation waiting 30.00 ms",
        "worker-1 push: 0.00 Mbit/s\nat 2.0 ms",
        "",
    ]
    assert seen["links"] == [[[0, 300]] * 4, [[75, 150]] * 4, [[0, 300]] * 4]
    assert seen["timeline"] == [[100, 300], [140, 260], [0, 120]]
