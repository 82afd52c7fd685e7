// The panels that show the two jobs, what was tried and measured, and the list of all panels.

function timelinePanel(data) {
  const { timeline } = data;
  if (!timeline.lanes.length) return [missing("The replay has nothing that could be drawn.")];
  const unit = timeline.unit_ns / 1e6;
  const marks = Object.entries(timeline.ends).map(([role, end]) => ({
    value: end * unit, name: "", stroke: "var(--bound)", dash: [5, 3], tip: `${role}: the iteration ends at ${ms(end * timeline.unit_ns)}`,
  }));
  const ends = Object.entries(timeline.ends).map(([role, end]) => `${role} ${ms(end * timeline.unit_ns)} (${timeline.roles[role]})`);
  return [
    html("p", { class: "soft" }, `One replayed iteration of the slowest worker, the same one before and after, on the same axis. Dashed lines: where it ends, ${ends.join(", ")}. What is sent at its begin belongs to the iteration before.`),
    sides(data).map(([title, job]) => (job.accumulation > 1 ? html("p", null, `${title}, it has ${job.accumulation} of the script's steps, of which only the last exchanges gradients. All other times on this page are of one step.`) : null)),
    legend(timeline.kinds.map((kind) => [kind === "pull" ? "answer" : kind, colour(kind)])),
    timelineChart(timeline, marks),
    html("p", { class: "soft" }, "before.json and after.json, beside this page, have the last iterations of all roles; open them in Perfetto."),
  ];
}

function bucketsPanel(data) {
  if (data.before.policy) return policies(data);
  return [
    html("p", { class: "soft" }, "A bucket holds gradients that travel together. They stand in the order in which their reduce-scatters are sent; the number is the bucket's name in the timeline."),
    sides(data).map(([title, job]) => html("div", null,
      html("h3", null, `${title}: runtime ${job.runtime}, ${job.buckets.length} bucket${job.buckets.length === 1 ? "" : "s"}`), bucketTable(job))),
  ];
}

// What is shown before and after; without a gain there is nothing after.
const sides = (data) => [["Before", data.before], ["After", data.after]].slice(0, data.gains ? 2 : 1);

function bucketTable(job) {
  if (!job.buckets.length) return missing("The recorded job named no buckets.");
  const most = largest(job.buckets.map((bucket) => bucket.size_bytes), 1);
  const gathers = job.buckets.map((bucket) => bucket.gather_place).sort((a, b) => a - b);
  const rows = job.buckets.map((bucket) => [
    bucket.number, bytes(bucket.size_bytes), shareBar(bucket.size_bytes / most), bucket.parameters.length,
    gathers.indexOf(bucket.gather_place) + 1, bucket.sharded ? "each rank its shard" : "all ranks",
    bucket.parameters.length === 1 ? bucket.parameters[0] : `${bucket.parameters[0]} … ${bucket.parameters.at(-1)}`,
  ]);
  return table([["bucket"], ["size"], ["", "bars"], ["gradients"], ["order of all-gather"], ["updated by", "text"], ["gradients from … to", "text wide"]], rows);
}

function policies(data) {
  const all = sides(data).map(([, job]) => ({ policy: job.policy.name, partition_bytes: bytes(job.policy.partition_bytes), ...job.policy.settings }));
  const names = [...new Set(all.flatMap((row) => Object.keys(row)))];
  return [
    html("p", { class: "soft" }, "This job has servers and so no buckets: a policy decides which partition of a gradient each worker pushes next."),
    table([["setting"], ...sides(data).map(([title]) => [title.toLowerCase(), "text"])], names.map((name) => [name.replaceAll("_", " "), ...all.map((row) => String(row[name] ?? "–"))])),
  ];
}

function regionsPanel(data) {
  const { regions, autocast } = data.after;
  const memory = data.memory ? html("p", null, `Tensors on a rank take at most ${bytes(data.memory.predicted)}; the budget is ${bytes(data.memory.budget)}.${data.memory.baseline === null ? "" : ` The recorded job takes ${bytes(data.memory.baseline)}.`}`) : null;
  if (!regions.length && !autocast) return [memory, missing("No module is compiled or recomputed: the model computes as its script says.")];
  const took = data.compile_ns ? html("p", null, `Compiling takes ${(data.compile_ns / 1e9).toFixed(0)} s before the job trains${data.pays_after === null ? "" : `, which has paid after ${data.pays_after} iterations`}.`) : null;
  return [
    memory,
    autocast ? html("p", null, "The model computes in bfloat16 where torch's autocast does so.") : null,
    took,
    regions.length ? table([["region"], ["mode", "text"], ["modules", "text wide"]], regions.map((region, place) => [place + 1, region.mode, region.modules.join(", ")])) : null,
  ];
}

function trialsPanel(data) {
  if (!data.trials.length) return [missing("No candidate was tried before the decision: byteprophet optimize RUN --trials N.")];
  return [
    html("p", { class: "soft" }, `The best candidate of each runtime or policy ran once, beside the recorded job. ${data.gains ? "The fastest was taken." : "None was fast enough to take its place."}`),
    table([["candidate", "text wide"], ["of the recorded job's time"], ["", "bars"], ["taken"]], data.trials.map((row) => [
      row.what, percent(row.ratio), shareBar(row.ratio), row.chosen ? "yes" : ""])),
  ];
}

function measuredPanel(data) {
  const found = data.measured;
  if (!found) return [missing("The strategy has not been measured: byteprophet optimize RUN --apply.")];
  const rows = found.rounds.map((row, place) => [place + 1, ms(row.baseline_ns), ms(row.optimised_ns), faster(row.baseline_ns, row.optimised_ns)]);
  return [
    html("p", null, `Predicted: ${faster(data.baseline_ns, data.predicted_ns)} as fast. Measured: ${faster(found.baseline_ns, found.optimised_ns)}. The interval, ${ms(found.low_ns)} to ${ms(found.high_ns)} for the recorded job of these rounds, ${found.held ? "held" : "did not hold"}.`),
    table([["round"], ["as recorded"], ["optimised"], ["as fast"]], [...rows, ["all", ms(found.baseline_ns), ms(found.optimised_ns), faster(found.baseline_ns, found.optimised_ns)]]),
  ];
}

const PANELS = [
  ["summary", "Summary", summary],
  ["decisions", "Decisions", decisions],
  ["timeline", "Timeline before and after", timelinePanel],
  ["path", "What limits an iteration", pathPanel],
  ["buckets", "What is sent", bucketsPanel],
  ["regions", "Compiled regions", regionsPanel],
  ["trials", "Trials", trialsPanel],
  ["measured", "Predicted and measured", measuredPanel],
];
