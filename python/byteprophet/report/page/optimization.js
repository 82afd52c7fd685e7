// The panels of an optimisation: what was recorded and decided, predicted and measured, and what
// limits an iteration. Those of the two jobs are in optimization_jobs.js.

// What a part of the critical path means for who wants to be faster.
const LIMITS = {
  forward: "the forward pass: computation, which no schedule makes shorter",
  backward: "the backward pass: computation, which no schedule makes shorter",
  updates: "the optimizer's updates",
  "reduce-scatters": "reduce-scatters: gradients that are still on the links when computation needs their result",
  "all-gathers": "all-gathers: the next forward pass waits for parameters or gradients that are still on the links",
  pushes: "pushes: gradients on their way to the servers",
  servers: "the servers: sums, requests and acknowledgements",
  answers: "answers: sums on their way back from the servers",
  "waits for cores": "servers that get no core while all workers compute on them",
  other: "delays between operations",
};

const faster = (was, is) => `${(was / is).toFixed(2)} ×`;
const card = (value, text) => html("div", { class: "card" }, html("b", null, value), html("span", { class: "soft" }, text));
const limitOf = (parts) => Object.entries(parts)[0] ?? ["other", 1];

function summary(data) {
  const { measured } = data;
  const [part, share] = limitOf(data.gains ? data.path.after : data.path.before);
  const cards = [
    card(ms(data.baseline_ns), `an iteration as recorded, in the median; the replay of it was ${signed(percent(data.replay_error), data.replay_error)} off`),
    data.gains
      ? card(ms(data.predicted_ns), `predicted: ${faster(data.baseline_ns, data.predicted_ns)} as fast; ${ms(data.low_ns)} to ${ms(data.high_ns)} nine times in ten`)
      : card("no gain", "was found: the job stays as it was recorded"),
    measured ? card(ms(measured.optimised_ns), `measured: ${faster(measured.baseline_ns, measured.optimised_ns)} as fast as the recorded job beside it; the interval ${measured.held ? "held" : "did not hold"}`) : null,
    card(ms(data.bound_ns), `lower bound, ${percent(1 - data.bound_ns / data.predicted_ns)} below what is predicted: no schedule is faster`),
    card(percent(share, 0), `of the critical path is now ${part}`),
  ];
  return [
    html("div", { class: "cards" }, cards),
    html("p", null, `What limits an iteration now: ${LIMITS[part] ?? part}.`),
    timesPicture(data),
    facts(data),
  ];
}

function timesPicture(data) {
  const { measured } = data;
  const rows = [{ label: "recorded", value: data.baseline_ns, fill: "var(--forward)", note: "as the run took it" }];
  if (data.gains) rows.push({ label: "predicted", value: data.predicted_ns, low: data.low_ns, high: data.high_ns, fill: "var(--backward)", note: "with the interval that holds nine times in ten" });
  if (measured) {
    rows.push(
      { label: "recorded job again", value: measured.baseline_ns, fill: "var(--forward)", note: "measured beside the optimised job" },
      { label: "optimised, measured", value: measured.optimised_ns, low: measured.low_ns, high: measured.high_ns, fill: "var(--update)", note: "the interval is what was predicted, from the time of the recorded job beside it" });
  }
  rows.push({ label: "lower bound", value: data.bound_ns, fill: "var(--computation)", note: "no schedule is faster" });
  return [html("h3", null, "An iteration"), intervalBars("Iteration times: recorded, predicted, measured, lower bound", rows),
    data.gains ? html("p", { class: "soft" }, `The thin lines are the predicted interval.${measured ? " Beside the measured bar it starts from the recorded job of the same rounds, so that a faster or slower machine does not count." : ""}`) : null];
}

// In which type a job's gradients travel, and how often.
function changed(job) {
  const type = job.reduce_dtype ? `travel as ${job.reduce_dtype}` : "travel in their own type";
  return job.accumulation > 1 ? `${type}, once in ${job.accumulation} steps` : `${type}, in every step`;
}

function facts(data) {
  const rates = [...new Set(data.link_bps)].map((bps) => (bps ? mbit(bps) : "not limited"));
  const rows = [
    ["recorded job", data.before.title],
    ["optimised job", data.gains ? data.after.title : "none"],
    ["model", `${data.parameters} parameters, ${bytes(data.model_bytes)} of gradients`],
    ["link of each worker, payload", rates.join("; ")],
    ["gradients", data.gains && changed(data.before) !== changed(data.after) ? `${changed(data.before)}; after: ${changed(data.after)}` : changed(data.before)],
    ["recorded iterations", String(data.iterations)],
    ["replays of the search", String(data.replays)],
  ];
  return html("div", { class: "scroll" }, html("table", null, html("tbody", null, rows.map(([name, value]) =>
    html("tr", null, html("th", { scope: "row" }, name), html("td", { class: "text wide" }, value))))));
}

// What each theorem of dPRO expects, in its repaired form (docs/optimizer.md).
const THEOREMS = {
  "Theorem 1": "modules become one region: that saves more than it costs that their gradients are complete later",
  "Theorem 2": "two buckets become one, or one is split, so that the link is through with both earlier",
  "Theorem 3": "the gradients of one region are complete together, so they share a bucket: one message, not several",
};

function decisions(data) {
  const without = additions(data);
  if (!data.decisions.length) return [missing("Nothing better than the recorded job was found."), ...without];
  const most = largest(data.decisions.map((row) => row.gain_ns), 1);
  return [
    html("p", { class: "soft" }, "What each pass changed, and what that brought in the search, per iteration."),
    table([["pass"], ["brings"], ["", "bars"], ["decision", "text wide"], ["why", "text wide"]], data.decisions.map((row) => [
      row.pass, ms(row.gain_ns), shareBar(Math.max(0, row.gain_ns / most)), row.what, row.why])),
    ...reasons(data),
    ...without,
  ];
}

// The same moves by the theorem that expected them to pay, and how often it was right.
function reasons(data) {
  if (!data.reasons.some((row) => row.theorem)) return [];
  const most = largest(data.reasons.map((row) => row.gain_ns), 1);
  return [
    html("h3", null, "By theorem"),
    html("p", { class: "soft" }, "The moves that led to the result, by what expected them to pay. A replay decided in any case: of all moves that a theorem expected to pay, this many were replayed, and this many paid."),
    table([["expected by"], ["moves"], ["bring"], ["", "bars"], ["replayed"], ["paid"], ["because", "text wide"]], data.reasons.map((row) => [
      row.theorem ?? "no theorem", row.moves, ms(row.gain_ns), shareBar(Math.max(0, row.gain_ns / most)),
      row.replayed ?? "–", row.paid ?? "–", THEOREMS[row.theorem] ?? "the replay said so"])),
  ];
}

// What passes would add that the user has not allowed.
function additions(data) {
  if (!data.would_add.length) return [];
  const adds = ({ ratio }) => (ratio === null ? "not known" : ratio === 1 ? "nothing" : `${ratio.toFixed(2)} ×`);
  const how = (row) => row.why_not ?? row.decisions.filter((one) => one.pass === row.pass).map((one) => one.what).join("; ");
  return [
    html("h3", null, "What other passes would add"),
    html("p", { class: "soft" }, "These passes change the parameters that training ends with, so they are used only if you allow them. For each of them alone, the search went on from the best job: so many times as fast would that be, by replay."),
    table([["pass"], ["its effect", "text"], ["times as fast"], ["by", "text wide"], ["to allow it", "text"]], data.would_add.map((row) => [
      row.pass, row.effect, adds(row), how(row), html("code", null, row.allowed_by)])),
  ];
}

// Milliseconds of a part in an iteration that takes so long.
function pathPanel(data) {
  const names = Object.keys({ ...data.path.before, ...data.path.after });
  const sides = [["before", data.path.before, data.baseline_ns], ["after", data.path.after, data.predicted_ns]].slice(0, data.gains ? 2 : 1);
  const bars = sides.map(([label, shares, ns]) => ({ label, parts: names.map((kind) => ({ kind, value: (shares[kind] ?? 0) * ns })) }));
  const cells = (name) => sides.flatMap(([, shares, ns]) => [ms((shares[name] ?? 0) * ns), percent(shares[name] ?? 0)]);
  const change = (name) => {
    const value = (data.path.after[name] ?? 0) * data.predicted_ns - (data.path.before[name] ?? 0) * data.baseline_ns;
    return signed(ms(value), value);
  };
  const words = sides.map(([label, shares]) => {
    const [part, share] = limitOf(shares);
    return html("p", null, `${label === "before" ? "Before" : "After"}, the largest part is ${percent(share, 0)}: ${LIMITS[part] ?? part}.`);
  });
  return [
    html("p", { class: "soft" }, "The chain of operations that each waited for the one before: only what is on it can make iterations shorter. Shares are of the replayed job, times of the recorded and the predicted iteration."),
    words,
    legend(names.map((name) => [name, colour(name)])),
    stackedBars("Critical path before and after", bars),
    table([["part"], ["before"], ["share"], ...(data.gains ? [["after"], ["share"], ["change"]] : [])],
      names.map((name) => [name, ...cells(name), ...(data.gains ? [change(name)] : [])])),
  ];
}
