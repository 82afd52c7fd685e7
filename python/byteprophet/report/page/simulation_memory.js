// The panel of a simulated job's memory, and the list of all panels.

// What does not fit: where, when, by how much.
function exceeded(data) {
  const found = data.worst.exceeded;
  const when = found.since_ns === null ? "even before the first operation" : `from ${duration(found.since_ns)} on, during ${found.during}`;
  return `On ${ofRank(found)}, ${when}; at the peak ${gib(found.missing_bytes)} are missing. Use more tp, pp or zero, recompute, or fewer samples per micro-batch.`;
}

function memoryPanel(data) {
  const kinds = Object.keys(data.ranks[0].memory).filter((kind) => kind !== "total");
  const rows = data.ranks.map(({ rank, memory }) => ({ label: `rank ${rank}`, parts: kinds.map((kind) => ({ kind: kind.replaceAll("_", " "), value: memory[kind] })) }));
  const worst = data.ranks[data.worst.rank];
  return [
    html("p", { class: "soft" }, `The peak of each pipeline rank. The dashed line is what a GPU has: ${gib(data.limit_bytes)}.`),
    data.fits ? null : html("p", null, html("b", null, "Out of memory. "), exceeded(data)),
    legend(kinds.map((kind) => [kind.replaceAll("_", " "), colour(kind)])),
    stackedBars("Peak memory by pipeline rank", rows, [{ label: "memory of a GPU", value: data.limit_bytes }], { unit: 1 / GIB, axisName: "GiB", text: gib }),
    html("h3", null, `Over time, on ${ofRank(worst)}`),
    overTime(data),
    html("h3", null, `What takes it at the peak, on ${ofRank(worst)}`),
    allocationTable(data, worst.memory.total),
  ];
}

function overTime({ worst, iteration_ns: end, limit_bytes: limit }) {
  const points = worst.over_time.map(([at, count]) => [at / 1e6, count / GIB]);
  return lines("Memory over time", [
    { points, stroke: "var(--communication)", fill: "var(--communication)", stepped: true },
    { points: [[0, limit / GIB], [end / 1e6, limit / GIB]], stroke: "var(--bound)", dash: [5, 3] },
  ], {
    xUnit: "ms", yUnit: "GiB", xMost: end / 1e6, yMost: largest([limit / GIB, ...points.map(([, y]) => y)]),
    told: (x) => {
      const before = points.filter(([at]) => at <= x).at(-1);
      return before ? `${before[1].toFixed(2)} GiB\nat ${x.toFixed(1)} ms` : "";
    },
  });
}

function allocationTable({ worst }, total) {
  const SHOWN = 14;
  const row = (one) => [one.part, one.what, gib(one.size_bytes), percent(one.size_bytes / total), shareBar(one.size_bytes / total, colour(one.part)), one.note];
  const columns = [["kind"], ["of", "text wide"], ["size"], ["share"], ["", "bars"], ["", "text"]];
  const [first, rest] = [worst.allocations.slice(0, SHOWN), worst.allocations.slice(SHOWN)];
  return [
    html("p", { class: "soft" }, "A star in a name stands for the numbers of layers. Activations are those that the backward passes of all micro-batches in flight wait for."),
    table(columns, first.map(row)),
    rest.length ? folded(`${rest.length} smaller ones`, table(columns, rest.map(row))) : null,
  ].filter(Boolean);
}

const PANELS = [
  ["summary", "Summary", summary],
  ["breakdown", "What the time is spent on", breakdown],
  ["memory", "Memory", memoryPanel],
  ["timeline", "Timeline of pipeline ranks", timelinePanel],
  ["path", "Critical path", pathPanel],
  ["sure", "How sure this is", surePanel],
];
