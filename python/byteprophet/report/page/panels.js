// What each panel shows: functions from the page's data to elements. A panel that has no data says
// why. More of them are in more_panels.js.

const KEY = {
  forward: "forward", backward: "backward", update: "update", computation: "other computation",
  communication: "waiting for communication", others: "waiting for other workers", other: "other",
};

const STEPS = {
  "forward, backward, update, computation": "of a layer or parameter, in the worker's threads",
  push: "passed the link to the server: of the worker whose push came last",
  "link busy": "a push was ready, or an answer had left, and the link carried the partition that is named",
  queued: "a push was ready, and the link carried nothing",
  "to sum": "it had come, and waited for its sum",
  sum: "it was added up",
  answer: "the sum waited for its turn to be sent back",
  pull: "the answer passed the worker's link",
  collective: "from when the last rank began it",
  communication: "a wait of which no more was recorded",
  other: "the script's own time between layers, and threads that wake up",
};

// Of iterations one by one the page has only the last.
const shownOf = (data) => (data.counted > data.iterations.length ? `: the last ${data.iterations.length} of ${data.counted}` : "");

function summary(data) {
  const times = data.iteration_ns;
  const settled = data.settled;
  const which = settled.iterations < data.counted ? ` (the last ${settled.iterations} iterations, of ${ms(settled.median_ns)})` : "";
  const card = (value, text) => html("div", { class: "card" }, html("b", null, value), html("span", { class: "soft" }, text));
  const kinds = data.path.kinds.filter((row) => row.share >= 0.05).slice(0, 3).map((row) => `${row.kind} ${percent(row.share, 0)}`);
  const cards = [
    card(ms(times.median), `iteration, median of ${data.counted}; ${ms(times.p10)} to ${ms(times.p90)} (10 to 90 %)`),
    data.bound_ns ? card(`${(settled.median_ns / data.bound_ns).toFixed(3)} ×`, `the lower bound, ${ms(data.bound_ns)}: no schedule is faster${which}`) : card("–", "lower bound not known"),
    data.prediction ? card(signed(percent(data.prediction.error, 1), data.prediction.error), `error of the replay${which}`) : null,
    card(percent(data.path.kinds[0]?.share ?? 0, 0), `of the critical path: ${kinds.join(", ")}`),
  ];
  const iterations = data.iterations_ns.map((ns, index) => [data.iterations[index], ns / 1e6]);
  const [first, last] = [data.iterations[0], data.iterations.at(-1)];
  const sets = [{ points: iterations, stroke: "var(--forward)", dots: iterations.length < 80 }];
  if (data.bound_ns) sets.push({ points: [[first, data.bound_ns / 1e6], [last, data.bound_ns / 1e6]], stroke: "var(--bound)", dash: [5, 3] });
  return [
    html("div", { class: "cards" }, cards),
    facts(data),
    data.notes.map((note) => missing(`${note[0].toUpperCase()}${note.slice(1)}.`)),
    data.lost || data.cut_off.length ? missing(`${data.lost} rows were lost; cut off: ${data.cut_off.join(", ") || "none"}.`) : null,
    html("h3", null, `Iterations${shownOf(data)}`),
    legend([["iteration", "var(--forward)"], ...(data.bound_ns ? [["lower bound", "var(--bound)", true]] : [])]),
    lines("Iteration times over their number", sets, {
      xUnit: "number of the iteration", whole: true, xLeast: first, xMost: Math.max(first + 1, last), yUnit: "ms", yMost: largest(data.iterations_ns) / 1e6, height: 190,
      told: (x) => {
        const at = iterations.find(([number]) => number === Math.round(x));
        return at ? `iteration ${at[0]}: ${at[1].toFixed(1)} ms` : "";
      },
    }),
  ];
}

function facts(data) {
  const known = data.facts;
  const link = known.bandwidth_bps ? mbit(known.bandwidth_bps) : known.scheduler ? "not limited" : null;
  const own = Object.entries(known.worker_bandwidth_bps ?? {}).map(([worker, rate]) => `worker ${worker}: ${rate ? mbit(rate) : "not limited"}`);
  const machine = known.machine && `${known.machine.cores} cores, ${known.machine.cpu}, ${(known.machine.memory_bytes / 2 ** 30).toFixed(0)} GiB, Linux ${known.machine.kernel}, byteprophet ${known.machine.byteprophet}`;
  const settings = Object.entries(known.settings ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");
  const rows = [
    ["scheduler", known.scheduler], ["workload", known.workload],
    ["compute", known.paced ? "paced: timed waits, real bytes" : known.scheduler ? "as recorded" : null],
    [known.local_ranks > 1 ? "processes, servers" : "workers, servers", `${known.workers}, ${known.servers ?? "not known"}`],
    ["local ranks of a worker", known.local_ranks > 1 ? String(known.local_ranks) : null],
    ["link of each worker", [link, ...own].filter(Boolean).join("; ")],
    ["steps", (known.steps ?? []).join(", ")],
    ["partition", known.partition_bytes ? bytes(known.partition_bytes) : null],
    ["settings", settings], ["status", known.status],
    ["machine", machine ?? `${known.machines} of which runs say nothing more`],
  ].filter(([, value]) => value);
  return html("div", { class: "scroll" }, html("table", null, html("tbody", null, rows.map(([name, value]) =>
    html("tr", null, html("th", { scope: "row" }, name), html("td", { class: "text wide" }, value))))));
}

function breakdown(data) {
  const { parts, mean_ns, parts_ns, waits } = data.breakdown;
  const used = parts.filter((_, place) => mean_ns.some((row) => row[place] > 0));
  const bars = (label, values) => ({ label, parts: parts.map((kind, place) => ({ kind, value: values[place] })) });
  const holder = html("div");
  const choose = (worker) => holder.replaceChildren(stackedBars(
    `Parts of each iteration of ${data.workers[worker]}`,
    data.iterations.slice(-parts_ns[worker].length).map((number, index) => bars(`iteration ${number}`, parts_ns[worker][index]))));
  choose(0);
  return [
    html("p", { class: "soft" }, "Where the thread that computes spends an iteration. Every instant is counted once; what runs behind computation costs nothing and is not shown."),
    legend(used.map((part) => [KEY[part], colour(part)])),
    stackedBars("Parts of the mean iteration per worker", data.workers.map((role, worker) => bars(role, mean_ns[worker])), data.bound_ns ? [{ label: "lower bound", value: data.bound_ns }] : []),
    data.bound_ns ? html("p", { class: "soft" }, "Dashed: the lower bound of the iteration.") : null,
    folded("Numbers", table([["worker"], ...used.map((part) => [KEY[part]]), ["sum"]], data.workers.map((role, worker) =>
      [role, ...used.map((part) => ms(mean_ns[worker][parts.indexOf(part)], 2)), ms(mean_ns[worker].reduce((sum, value) => sum + value, 0), 2)]))),
    folded("Each of the last iterations", html("div", { class: "controls" }, chooser("Of", data.workers, 0, choose)), holder),
    waits.length ? folded("What computation waited for", table([["gradient", "text"], ["per iteration"]], waits.map((row) => [row.name, ms(row.mean_ns, 2)]))) : null,
  ];
}

function timelinePanel(data) {
  const shown = data.timeline;
  if (!shown.lanes.length) return [missing("Nothing was recorded that could be drawn.")];
  return [
    html("p", { class: "soft" }, `The last ${shown.iterations.length} iterations${shown.left_out ? ` (${shown.left_out} earlier ones are left out to keep the page small)` : ""}, of which the picture opens with two. Links are shown as if they carried one partition at a time.${shown.roles_left_out ? ` The last ${shown.roles_left_out} roles are left out, for which a picture has no room.` : ""}`),
    legend(shown.kinds.map((kind) => [kind, colour(kind)])),
    timelineChart(shown),
  ];
}

function pathPanel(data) {
  const { path } = data;
  const bar = [{ label: "mean iteration", parts: path.kinds.map((row) => ({ kind: row.kind, value: row.mean_ns })) }];
  const shares = (rows, name) => table([[name, "text wide"], ["per iteration"], ["share"], ["", "bars"]],
    rows.map((row) => [row[name] || "(no name)", ms(row.mean_ns, 2), percent(row.share), shareBar(row.share)]));
  const top = table([["step", "text"], ["of", "text wide"], ["where", "text"], ["per iteration"], ["share"], ["", "bars"]],
    path.top.map((row) => [row.kind, row.name, row.where, ms(row.mean_ns, 2), percent(row.share), shareBar(row.share, colour(row.kind))]));
  return [
    html("p", { class: "soft" }, `Walked back from the end of ${data.workers[path.worker]}'s last iteration: each step is what the next one waited for. Only what is on the path can make iterations shorter.`),
    legend(path.kinds.filter((row) => row.share > 0.001).map((row) => [`${row.kind} ${percent(row.share)}`, colour(row.kind)])),
    stackedBars("Steps of the critical path", bar),
    folded("What the steps are", html("dl", null, Object.entries(STEPS).map(([kind, text]) => [html("dt", null, kind), html("dd", null, text)]).flat())),
    html("h3", null, "The operations to blame"), top,
    html("div", { class: "columns" },
      html("div", null, html("h3", null, "By link or role"), shares(path.where.map((row) => ({ ...row, place: row.where })), "place")),
      html("div", null, html("h3", null, "By layer, tensor or collective"), shares(path.names.map((row) => ({ ...row, operation: row.name })), "operation"))),
  ];
}
