// The panel of a search for strategies. The rest of the page is about the fastest one that fits.

function searchPanel(data) {
  const { search, limit_bytes: limit } = data;
  const point = (one) => [one.iteration_ns / 1e6, one.memory_bytes / GIB];
  // One dot for each time: of strategies that take equally long, the smallest.
  const dots = [...new Map([...search.others].sort((a, b) => b.memory_bytes - a.memory_bytes).map((one) => [one.iteration_ns, one])).values()].sort((a, b) => a.iteration_ns - b.iteration_ns);
  const all = [...search.front, ...dots];
  const [least, most] = [Math.min(...all.map((one) => one.iteration_ns)) / 1e6, largest(all.map((one) => one.iteration_ns)) / 1e6];
  const nearest = (x) => all.reduce((best, one) => (Math.abs(one.iteration_ns / 1e6 - x) < Math.abs(best.iteration_ns / 1e6 - x) ? one : best));
  const words = (one) => `${one.strategy}\n${duration(one.iteration_ns)}, ${gib(one.memory_bytes)}, ${percent(one.mfu)} MFU`;
  return [
    html("p", null, `${many(search.count)} strategies with ${many(search.batch)} samples per iteration were looked at. ${many(search.fitting)} fit into memory, ${many(search.too_large)} do not, and ${many(search.count - search.fitting - search.too_large)} cannot be simulated. The rest of this page is about the fastest one that fits: ${search.front[0].strategy}.`),
    html("p", { class: "soft" }, "The line joins the strategies than which no other is both as fast and as small."),
    legend([["no other is as fast and as small", "var(--forward)"], ["other strategies that fit", "var(--communication)"], ["memory of a GPU", "var(--bound)", true]]),
    lines("Iteration time and memory of strategies", [
      { points: dots.map(point), stroke: "var(--communication)", dots: true, bare: true },
      { points: search.front.map(point), stroke: "var(--forward)", dots: true },
      { points: [[least, limit / GIB], [most, limit / GIB]], stroke: "var(--bound)", dash: [5, 3] },
    ], { xUnit: "ms", yUnit: "GiB", xLeast: least - 0.02 * (most - least) - 1e-3, xMost: most + 0.02 * (most - least) + 1e-3, yMost: limit / GIB, height: 300, told: (x) => words(nearest(x)) }),
    table([["iteration"], ["MFU"], ["memory"], ["strategy", "text wide"]], search.front.map((one) => [duration(one.iteration_ns), percent(one.mfu), gib(one.memory_bytes), one.strategy])),
    search.refused.length ? folded("Why others cannot be simulated", table([["reason", "text wide"], ["strategies"]], search.refused)) : null,
  ];
}

PANELS.splice(1, 0, ["search", "Strategies", searchPanel]);
