// The panels. Each one is a function that makes its body's elements and returns what updates them:
// update(state) returns the elements that are shown, in order. Figures stay the same elements.

const known = (value, text) => (value === null || value === undefined ? "–" : text(value));
const titled = (title, figure) => html("div", null, html("h3", null, title), figure);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// What stands below charts if there are more workers than charts.
const leftOut = (workers) => (workers.length > MOST_CHARTS ? html("p", { class: "soft" }, `The charts are of the first ${MOST_CHARTS} of ${workers.length} workers. The table has all.`) : null);

function card(name, value, note) {
  return html("div", { class: "card" }, name, html("b", null, value), note ? html("small", null, note) : null);
}

function summary() {
  return (state) => {
    const { iteration, workers, plans, warnings } = state;
    const waits = workers.map((worker) => worker.wait_share).filter((share) => share !== null);
    const count = warnings.counts.reduce((sum, row) => sum + row.count, 0);
    const ratio = iteration.bound_ns && iteration.median_ns ? `${(iteration.median_ns / iteration.bound_ns).toFixed(2)} × the bound` : null;
    const cards = [
      card("iterations", String(iteration.count), iteration.median_ns ? `${(1e9 / iteration.median_ns).toFixed(2)} per second` : null),
      card("iteration", known(iteration.median_ns, duration), ratio ?? "median of the slowest worker"),
      card("lower bound", known(iteration.bound_ns, duration), iteration.bound_ns ? `from ${iteration.bound_why}` : iteration.bound_why),
      card("predicted", known(iteration.predicted_ns, duration), iteration.predicted_by ?? "there is no plan in use"),
      card("waits", waits.length ? percent(largest(waits)) : "–", waits.length ? "of the worker that waits most" : "not known"),
      card("straggler", state.straggler ?? "none", state.straggler ? "the others wait for it" : null),
      card("plans adopted", String(plans.adopted), plans.no_plan ?? (plans.current ? `number ${plans.current} is in use` : null)),
      card("warnings", String(count), null),
    ];
    return [html("div", { class: "cards" }, cards), ...facts(state)];
  };
}

function facts(state) {
  const { facts: about } = state;
  const settings = Object.entries(about.settings ?? {}).map(([name, value]) => `${name} ${value}`);
  const parts = [
    about.scheduler ? `scheduler ${about.scheduler}` : about.workers ? "no servers" : null,
    about.workers ? plural(about.workers, "worker") : null, about.servers ? plural(about.servers, "server") : null,
    about.bandwidth_bps ? `links of ${mbit(about.bandwidth_bps)}` : null,
    ...Object.entries(about.worker_bandwidth_bps ?? {}).map(([worker, rate]) => `that of worker-${worker} ${mbit(rate)}`), ...settings,
  ].filter(Boolean);
  const lines = [parts.join(" · "), about.command].filter(Boolean);
  return lines.map((line) => html("p", { class: "soft" }, line));
}

function iterations() {
  let shown = [[], [], [], []];
  const figure = liveLines("Iteration times of the slowest worker", {
    xUnit: "iteration", yUnit: "ms", height: 230,
    series: [{ stroke: "var(--forward)" }, { stroke: "var(--bound)", dash: [6, 4] }, { stroke: "var(--update)", dash: [2, 3] }],
    told: (place) => (shown[1][place] === undefined ? "" : `iteration ${shown[0][place]}: ${shown[1][place].toFixed(1)} ms`),
  });
  return ({ iteration }) => {
    if (!iteration.numbers.length) return [missing("No worker has told of two iterations yet.")];
    const { bound_ns: bound, predicted_ns: predicted, numbers } = iteration;
    shown = [numbers, iteration.slowest_ns.map((ns) => ns / 1e6), flat(numbers, bound && bound / 1e6), flat(numbers, predicted && predicted / 1e6)];
    const entries = [["slowest worker", "var(--forward)"]];
    if (bound) entries.push([`lower bound, ${duration(bound)}`, "var(--bound)", true]);
    if (predicted) entries.push([`predicted by ${iteration.predicted_by}, ${duration(predicted)}`, "var(--update)", true]);
    return [legend(entries), figure, () => figure.show(shown)];
  };
}

const age = (worker) => worker.series.unix_s.map((time) => time - worker.series.unix_s.at(-1));

function links() {
  const state = new Map();
  const figures = gallery((role) => liveLines(`Bandwidth of ${role}`, {
    xUnit: "s", yUnit: "Mbit/s", height: 160,
    series: [{ stroke: "var(--push)", fill: true }, { stroke: "var(--pull)" }, { stroke: "var(--bound)", dash: [6, 4] }],
    told: (place) => {
      const columns = state.get(role);
      return columns?.[0][place] === undefined ? "" : `${role}, ${columns[0][place].toFixed(1)} s\npush ${columns[1][place].toFixed(0)}, pull ${columns[2][place].toFixed(0)} Mbit/s`;
    },
  }));
  return ({ workers }) => {
    const able = workers.filter((worker) => worker.series.unix_s.length > 1);
    const drawn = able.slice(0, MOST_CHARTS);
    if (!drawn.length) return [missing("Nothing is known of the links yet. Workers tell it while they are watched.")];
    for (const worker of drawn) {
      const x = age(worker);
      const mbits = (values) => values.map((value) => value / 1e6);
      state.set(worker.role, [x, mbits(worker.series.push_bps), mbits(worker.series.pull_bps), flat(x, worker.limit_bps && worker.limit_bps / 1e6)]);
    }
    const entries = [["push", "var(--push)"], ["pull", "var(--pull)"]];
    if (drawn.some((worker) => worker.limit_bps)) entries.push(["limit of the link, payload", "var(--bound)", true]);
    return [
      html("p", { class: "soft" }, "Payload over the last minutes. Below, \"busy\" is the rate while anything was in flight, \"window\" the most bytes in flight at once, \"estimate\" the network monitor's."),
      legend(entries), html("div", { class: "columns wide-columns" }, drawn.map(({ role }) => titled(role, figures(role)))), leftOut(able), linksTable(workers),
      () => drawn.forEach(({ role }) => figures(role).show(state.get(role))),
    ];
  };
}

function linksTable(workers) {
  const rows = workers.flatMap((worker) => worker.links.map((link) => {
    const estimate = (direction) => worker.estimates.find((one) => one.server === link.server && one.direction === direction)?.bandwidth_bps;
    return [
      worker.role, link.server === null ? "interfaces" : String(link.server), mbit(link.push_bps), known(link.push_busy_bps, mbit), known(estimate("push"), mbit),
      mbit(link.pull_bps), known(link.pull_busy_bps, mbit), known(estimate("pull"), mbit), known(link.in_flight_bytes, bytes),
    ];
  }));
  if (!rows.length) return missing("No worker reports its rates now.");
  const heads = ["worker", "server", "push", "busy", "estimate", "pull", "busy", "estimate", "window"];
  return table(heads.map((head, place) => [head, place < 2 ? "text" : ""]), rows);
}

function workersPanel() {
  const state = new Map();
  const figures = gallery((role) => liveLines(`Waits of ${role}`, {
    xUnit: "s", yUnit: "% waits", height: 120, series: [{ stroke: "var(--communication)", fill: true }],
    told: (place) => {
      const columns = state.get(role);
      return Number.isFinite(columns?.[1][place]) ? `${role}, ${columns[0][place].toFixed(1)} s: ${columns[1][place].toFixed(1)} %` : "";
    },
  }));
  return ({ workers, straggler }) => {
    if (!workers.length) return [missing("No worker has written a status file.")];
    const able = workers.filter((worker) => worker.series.wait_share.filter((share) => share !== null).length > 1);
    const drawn = able.slice(0, MOST_CHARTS);
    for (const worker of drawn) state.set(worker.role, [age(worker), worker.series.wait_share.map((share) => (share === null ? null : 100 * share))]);
    const rows = workers.map((worker) => [
      worker.role, String(worker.iterations), known(worker.median_ns, duration), known(worker.wait_share, percent),
      known(worker.late, ({ last, of }) => `${last} of ${of}`), known(worker.late, ({ behind_ns: behind }) => duration(behind)),
      known(worker.held_ns, duration), known(worker.travel_ns, duration), known(worker.peers_ns, duration), told(worker),
    ]);
    const heads = ["worker", "iterations", "iteration", "waits", "came last", "behind", "held", "travels", "of it, after ack", "status"];
    const shown = table(heads.map((head, place) => [head, place === 0 || place === 9 ? "text" : ""]), rows);
    shown.querySelectorAll("tbody tr").forEach((row, place) => row.classList.toggle("marked", workers[place].role === straggler));
    return [
      html("p", { class: "soft" }, "Share of time in which the training waited for parameters; how often a worker began its iteration last, and its median delay; means per partition: held by the policy, and on its way from there to the answer; of that, the part after the acknowledgement, in which other workers were missing."),
      html("div", { class: "columns wide-columns" }, drawn.map(({ role }) => titled(role, figures(role)))), leftOut(able), shown, ...longest(workers),
      () => drawn.forEach(({ role }) => figures(role).show(state.get(role))),
    ];
  };
}

function told(worker) {
  if (worker.ended) return "has left the job";
  return worker.age_s > 3 ? `silent for ${worker.age_s.toFixed(0)} s` : worker.watching ? "reporting" : "not reporting yet";
}

function longest(workers) {
  const waits = workers.flatMap((worker) => worker.waits.map((wait) => [worker.role, wait])).sort(([, one], [, other]) => other.wait_ns - one.wait_ns).slice(0, 12);
  const tensors = workers.flatMap((worker) => worker.tensors.map((tensor) => [worker.role, tensor])).sort(([, one], [, other]) => other.held_ns + other.travel_ns - one.held_ns - one.travel_ns).slice(0, 12);
  const columns = [];
  if (waits.length) {
    columns.push(html("div", null, html("h3", null, "Longest waits of the last seconds"), table(
      [["worker", "text"], ["parameter", "text wide"], ["waits", ""], ["mean", ""]],
      waits.map(([role, wait]) => [role, wait.name, String(wait.count), duration(wait.wait_ns / Math.max(1, wait.count))]),
    )));
  }
  if (tensors.length) {
    columns.push(html("div", null, html("h3", null, "Slowest tensors of the last seconds"), table(
      [["worker", "text"], ["tensor", "text wide"], ["held", ""], ["travels", ""]],
      tensors.map(([role, tensor]) => [role, tensor.name, duration(tensor.held_ns), duration(tensor.travel_ns)]),
    )));
  }
  return columns.length ? [html("div", { class: "columns wide-columns" }, columns)] : [];
}

function plansPanel() {
  return ({ plans, tuning }) => {
    const parts = [];
    if (tuning) parts.push(html("p", null, `${tuning.chosen ? "Tuning has chosen" : "Tuning tries"} ${Object.entries(tuning.settings).map(([name, value]) => `${name} ${value}`).join(", ")} since iteration ${tuning.iteration}: ${duration(tuning.iteration_ns)}.`));
    if (plans.latest.length) {
      const heads = ["plan", "from iteration", "adopted by", "predicted", "measured", "error", "reason"];
      const rows = [...plans.latest].reverse().map((plan) => [
        plan.withdrawn ? `${plan.number}, withdrawn` : String(plan.number), String(plan.at_iteration), `${plan.adopted} of ${plan.workers}`,
        duration(plan.predicted_ns), known(plan.measured_ns, duration), known(plan.error, (error) => signed(percent(error), error)), plan.reason,
      ]);
      parts.push(table(heads.map((head, place) => [head, place === 6 ? "text wide" : ""]), rows));
    }
    for (const { by, reason, count } of plans.refused) parts.push(html("p", { class: "soft" }, `Refused by ${by}: ${reason} (${count}×)`));
    if (plans.no_plan) parts.push(html("p", { class: "soft" }, `No plan: ${plans.no_plan}`));
    return parts.length ? parts : [missing("The job has no controller, or no plan yet.")];
  };
}

function warningsPanel() {
  return ({ warnings, problems, failed }) => {
    const lines = [...warnings.latest].reverse().map(({ role, level, text }) => html("li", null, html("b", { class: level }, role), text));
    if (failed) lines.unshift(html("li", null, html("b", { class: "error" }, "job"), failed));
    const unreadable = problems.map((text) => html("li", null, html("b", null, "viewer"), text));
    if (!lines.length && !unreadable.length) return [missing("There are none.")];
    return [html("ul", { class: "log" }, unreadable, lines)];
  };
}

function eventsPanel() {
  const clock = (time) => (time === null ? "earlier" : new Date(1000 * time).toLocaleTimeString());
  return ({ happened }) => {
    if (!happened.length) return [missing("Nothing has happened yet.")];
    return [html("ul", { class: "log" }, [...happened].reverse().slice(0, 20).map((one) => html("li", null, html("b", { class: "calm" }, clock(one.unix_s)), one.text)))];
  };
}

function rolesPanel() {
  return ({ roles }) => {
    if (!roles.length) return [missing("The run directory has no logs.")];
    const rows = roles.map((role) => [role.name, known(role.exit_status, (status) => (status === 0 ? "done" : `ended with ${status}`)), known(role.cpu_s, (seconds) => `${seconds.toFixed(1)} s`)]);
    return [table([["role", "text"], ["end", "text"], ["processor time", ""]], rows)];
  };
}

const PANELS = [
  ["summary", "Summary", summary], ["iterations", "Iterations", iterations], ["links", "Links", links],
  ["workers", "Waits and stragglers", workersPanel], ["plans", "Plans", plansPanel],
  ["events", "Events", eventsPanel], ["warnings", "Warnings", warningsPanel], ["roles", "Roles", rolesPanel],
];
