// The panels of gradients, links, stragglers, the prediction and the comparison, and the list of all.

function gradientsPanel(data) {
  if (!data.gradients.some((rows) => rows.length)) return [missing("No transfers were recorded, so when gradients were sent and came back is not known.")];
  const holder = html("div");
  const choose = (worker) => {
    const rows = data.gradients[worker];
    if (!rows.length) return holder.replaceChildren(missing(`${data.workers[worker]} recorded no transfers.`));
    const mean = (field) => rows.reduce((sum, row) => sum + row[field], 0) / rows.length;
    return holder.replaceChildren(
      gradientBars(`Wait and transfer per gradient of ${data.workers[worker]}`, rows),
      html("p", { class: "soft" }, `On average a gradient waits ${ms(mean("wait_ns"))} and travels ${ms(mean("transfer_ns"))}.`),
      folded("Numbers", table([["", "text"], ["gradient", "text wide"], ["size"], ["wait"], ["transfer"], ["computation waits"]],
        rows.map((row, place) => [place, row.name, bytes(row.size_bytes), ms(row.wait_ns, 2), ms(row.transfer_ns, 2), ms(row.exposed_ns, 2)]))));
  };
  // Of several local ranks, only the last one sends.
  const first = data.gradients.findIndex((rows) => rows.length);
  choose(first);
  return [
    html("p", { class: "soft" }, "Medians over iterations. Wait: from ready to its first partition sent; transfer: from there to the sum of its last partition here (Figure 11 of the Prophet paper)."),
    html("div", { class: "controls" }, chooser("Of", data.workers, first, choose)),
    legend([["wait", "var(--queued)"], ["transfer", "var(--forward)"], ["computation waits for it", "var(--others)"]]),
    holder,
  ];
}

function bandwidthPanel(data) {
  const { series } = data;
  const rates = data.utilisation.link_bps;
  if (!series.push_bps.some(Boolean)) return [missing("No transfers were recorded, so what links carried over time is not known."), usage(data)];
  const step = series.bin_ns / 1e6;
  const options = { xUnit: "ms from the first iteration shown", xMost: series.length_ns / 1e6, marks: series.starts_ns.map((ns) => ns / 1e6), yUnit: "Mbit/s" };
  const steps = (values) => [...values.map((value, place) => [place * step, value]), [options.xMost, values.at(-1)]];
  const pictures = data.workers.slice(0, MOST_CHARTS).flatMap((role, worker) => ["push", "pull"].map((direction) => {
    const values = series[`${direction}_bps`][worker];
    if (!values) return missing(`${role} recorded no transfers.`);
    const sampled = (series.sampled[worker]?.[direction] ?? []).filter(([ns]) => ns >= 0 && ns <= series.length_ns).map(([ns, bps]) => [ns / 1e6, bps / 1e6]);
    const fill = `var(--${direction})`;
    const sets = [{ points: steps(values.map((bps) => bps / 1e6)), stroke: fill, fill, stepped: true }];
    if (sampled.length) sets.push({ points: sampled, stroke: "var(--forward)" });
    if (rates[worker]) sets.push({ points: [[0, rates[worker] / 1e6], [options.xMost, rates[worker] / 1e6]], stroke: "var(--bound)", dash: [5, 3] });
    const told = (x) => {
      const place = Math.min(values.length - 1, Math.floor(x / step));
      return `${role} ${direction}: ${mbit(values[place])}\nat ${(place * step).toFixed(1)} ms`;
    };
    const most = Math.max(rates[worker] ? 1.15 * rates[worker] : 0, quantile(values, 0.99)) / 1e6;
    return html("div", null, html("h3", null, `${role}, ${direction}`),
      lines(`Bandwidth of ${role}, ${direction}, over time`, sets, { ...options, yMost: most, height: 180, sync: "bandwidth", told }));
  }));
  return [
    html("p", { class: "soft" }, `Payload in bins of ${step.toFixed(1)} ms, from transfers${series.starts_ns.length ? "; dotted lines: iterations" : ""}. ${series.not_sampled ? `${series.not_sampled}.` : ""}`),
    legend([["push", "var(--push)"], ["pull", "var(--pull)"], ...(series.not_sampled ? [] : [["the monitor's estimate", "var(--forward)"]]), ...(rates.some(Boolean) ? [["the link's rate (payload)", "var(--bound)", true]] : [])]),
    html("div", { class: "columns wide-columns" }, pictures),
    data.workers.length > MOST_CHARTS ? html("p", { class: "soft" }, `The charts are of the first ${MOST_CHARTS} of ${data.workers.length} workers. The table has the means of all.`) : null,
    usage(data),
  ];
}

const quantile = (values, share) => [...values].sort((a, b) => a - b)[Math.floor(share * (values.length - 1))] ?? 0;

function usage(data) {
  const rows = Object.entries(data.utilisation.mean);
  if (!rows.length) return missing("How busy workers were is not known without spans.");
  return html("div", null, html("h3", null, "How busy, on average"),
    table([["", "text"], ["share"], ["", "bars"]], rows.map(([name, share]) => [name, percent(share), shareBar(share)])),
    html("p", { class: "soft" }, "Of a link: of its rate, where that is known, else of the time. Of a server: threads that add up."));
}

function stragglersPanel(data) {
  const found = data.stragglers;
  if (data.workers.length < 2) return [missing("A single worker waits for nobody.")];
  if (!found.meetings) return [missing("Neither servers nor collectives nor transfers were recorded, so who came last is not known.")];
  const rows = data.workers.map((role, worker) => {
    const share = found.last[worker] / found.meetings;
    return [role, percent(share, 0), shareBar(share, "var(--others)"), ms(found.behind_ns[worker], 2), ms(found.p90_ns[worker], 2), ms(found.cost_ns[worker] / data.counted, 2)];
  });
  return [
    html("p", { class: "soft" }, `Who came last in ${found.meetings} ${found.source}, and by how much. Others waited: time per iteration in which computation of another worker stood still for it, its own part having arrived.`),
    table([["worker"], ["last"], ["", "bars"], ["behind, median"], ["90 %"], ["others waited"]], rows),
    found.source === "ready gradients" ? missing("Servers recorded nothing: gradients ready last stand in for pushes that arrived last, and what waiting for them cost is not known.") : null,
  ];
}

function predictionPanel(data) {
  const found = data.prediction;
  if (!found) return [missing(`Not replayed: ${data.not_predicted}.`)];
  const times = data.iteration_ns;
  // A replay gives the time of one step; an iteration has all steps that share an update.
  const steps = found.assumptions.accumulation;
  const replayed = found.iteration_ns;
  const rows = [
    { label: "measured", value: data.settled.median_ns, low: times.p10, high: times.p90, fill: "var(--forward)", note: "10 to 90 % of all iterations" },
    { label: "replayed", value: steps * replayed.median, low: steps * replayed.low, high: steps * replayed.high, fill: "var(--backward)", note: "with its interval" },
    { label: "Daydream", value: steps * found.daydream_ns, fill: "var(--other)", note: "each tensor alone on the link" },
    { label: "lower bound", value: data.bound_ns, fill: "var(--computation)", note: "no schedule is faster" },
  ];
  const off = (value) => { const error = value / data.settled.median_ns - 1; return signed(percent(error), error); };
  const said = Object.entries(found.assumptions).map(([name, value]) => [name, value !== null && typeof value === "object" ? JSON.stringify(value) : String(value)]);
  return [
    html("p", { class: "soft" }, "The recorded job, replayed on virtual time under its own policy, beside what was measured and simpler answers."),
    data.settled.iterations === data.counted ? null : html("p", { class: "soft" }, `Only the last ${data.settled.iterations} iterations are replayed, from when the policy had settled; the median of all is ${ms(times.median)}.`),
    steps === 1 ? null : html("p", { class: "soft" }, `An iteration has ${steps} of the script's steps, which share an update.`),
    intervalBars("Iteration times: measured, replayed, Daydream's model, lower bound", rows),
    table([["", "text"], ["iteration"], ["against measured"]], rows.map((row) => [row.label, ms(row.value, 1), row.label === "measured" ? "" : off(row.value)])),
    folded("What the replay assumes", table([["", "text"], ["", "text wide"]], said)),
  ];
}

function comparisonPanel(data) {
  const found = data.against;
  if (!found) return [missing("No other run was given: byteprophet report RUN --against OTHER.")];
  const text = (row, value) => (value === null ? "–" : row.unit === "ns" ? ms(value) : percent(value));
  const change = (row) => {
    if (row.this === null || row.other === null) return "–";
    const value = row.this - row.other;
    return signed(row.unit === "ns" ? ms(value) : percent(value), value);
  };
  const rows = (list) => table([["", "text wide"], ["this run"], ["other"], ["change"]], list.map((row) => [row.what, text(row, row.this), text(row, row.other), change(row)]));
  const parts = found.parts.filter((row) => row.this || row.other);
  const bars = [...parts, found.iteration].map((row) => ({ label: row.what, value: row.this - row.other }));
  return [
    html("p", null, `Against ${found.run}: iterations take ${found.ratio.toFixed(3)} times as long (${found.ratio_low.toFixed(3)} to ${found.ratio_high.toFixed(3)}, from the spread of iterations alone).`),
    ...found.notes.map((note) => html("p", null, `Note: ${note}.`)),
    html("h3", null, "Change of the mean iteration, by part, over all workers"),
    changeBars("Changes of parts", bars),
    html("div", { class: "columns" },
      html("div", null, html("h3", null, "Parts"), rows([...parts, found.iteration])),
      html("div", null, html("h3", null, "Waits of computation"), found.waits.length ? rows(found.waits.slice(0, 12)) : missing("Nobody waited for anything.")),
      html("div", null, html("h3", null, "How busy"), rows(found.shares))),
  ];
}

// All panels of the page, in order.
const PANELS = [
  ["summary", "Summary", summary],
  ["breakdown", "Where the time went", breakdown],
  ["timeline", "Timeline", timelinePanel],
  ["path", "Critical path", pathPanel],
  ["gradients", "Waits per gradient", gradientsPanel],
  ["bandwidth", "Bandwidth and utilisation", bandwidthPanel],
  ["stragglers", "Stragglers", stragglersPanel],
  ["prediction", "Prediction and measurement", predictionPanel],
  ["comparison", "Comparison", comparisonPanel],
];
