// The panels of a simulated job: its time, what that is spent on, its timeline and critical path.
// Those of its memory, and the list of all panels, are in simulation_memory.js.

// What a part of an iteration means for who wants to be faster.
const USES = {
  forward: "the forward pass: matrix products, attention, and what memory bandwidth limits",
  backward: "the backward pass",
  recompute: "forward passes that run again, because their activations were not kept",
  "waits for the host": "the GPU waits until the host has launched the next operator: operators are too small",
  optimizer: "the update of the parameters",
  "all-reduce": "all-reduces that nothing hides: of tensor parallelism, or of gradients behind the last backward pass",
  "all-gather": "all-gathers that nothing hides: of activations, or of parameters that are sharded",
  "reduce-scatter": "reduce-scatters that nothing hides: of activations, or of gradients",
  "all-to-all": "exchanges of tokens between experts that nothing hides",
  "point-to-point": "transfers of activations between pipeline ranks that nothing hides",
  "copies for collectives": "copies into and out of the buffers that collectives send",
  "slowed by overlap": "computation that takes longer because collectives run beside it",
  "pipeline bubble": "waits of a pipeline rank for the work of others",
};

const GIB = 2 ** 30;
const gib = (count) => `${(count / GIB).toFixed(2)} GiB`;
const many = (value) => value.toLocaleString("en", { maximumFractionDigits: 0 });
const card = (value, text) => html("div", { class: "card" }, html("b", null, value), html("span", { class: "soft" }, text));
const onGpus = ([first, last]) => (first === last ? `GPU ${first}` : `GPUs ${many(first)} to ${many(last)}`);
const ofRank = ({ rank, gpus }) => `pipeline rank ${rank} (${onGpus(gpus)})`;

const often = (data) => (data.level === 0.9 ? "nine times in ten" : `in ${percent(data.level, 0)} of jobs`);

function summary(data) {
  const [part, ns] = Object.entries(data.by_use).reduce((most, one) => (one[1] > most[1] ? one : most));
  const worst = data.ranks[data.worst.rank];
  const cards = [
    card(duration(data.iteration_ns), `an iteration of ${many(data.samples)} samples; ${duration(data.low_ns)} to ${duration(data.high_ns)} ${often(data)}`),
    card(many(data.per_s), `${data.items} per second`),
    card(percent(data.mfu), "model FLOPs utilisation: FLOPs that the model needs, of the GPUs' peak"),
    card(gib(worst.memory.total), `peak memory, on ${ofRank(worst)}; a GPU has ${gib(data.limit_bytes)}${data.fits ? "" : ": it does not fit"}`),
  ];
  return [
    html("div", { class: "cards" }, cards),
    data.fits ? null : html("p", null, html("b", null, "Out of memory. "), exceeded(data)),
    html("p", null, `The largest part of an iteration, ${percent(ns / data.iteration_ns, 0)}: ${USES[part] ?? part}.`),
    facts(data),
  ];
}

function facts(data) {
  const rows = [
    ["model", `${data.model}, ${(data.parameters / 1e9).toPrecision(3)} billion parameters`],
    ["cluster", `${data.gpus} GPUs of ${data.cluster}`],
    ...Object.entries(data.strategy),
  ];
  return html("div", { class: "scroll" }, html("table", null, html("tbody", null, rows.map(([name, value]) =>
    html("tr", null, html("th", { scope: "row" }, name), html("td", { class: "text wide" }, value))))));
}

function breakdown(data) {
  const names = Object.keys(data.by_use);
  const rows = data.ranks.map(({ rank, by_use: parts }) => ({ label: `rank ${rank}`, parts: names.map((kind) => ({ kind, value: parts[kind] ?? 0 })) }));
  return [
    html("p", { class: "soft" }, "What each pipeline rank does during one iteration. Communication is shown as far as it is exposed: what other work hides takes no time here. Ranks of one pipeline rank do the same."),
    legend(names.map((name) => [name, colour(name)])),
    stackedBars("What an iteration is spent on, by pipeline rank", rows),
    table([["mean of all ranks"], ["time"], ["share"], ["", "bars"], ["", "text wide"]], names.map((name) => [
      name, duration(data.by_use[name]), percent(data.by_use[name] / data.iteration_ns), shareBar(data.by_use[name] / data.iteration_ns, colour(name)), USES[name] ?? ""])),
  ];
}

function timelinePanel(data) {
  const { timeline } = data;
  if (!timeline.lanes.length) return [missing("No operation takes time.")];
  const cut = timeline.begin_ns ? ` The iteration has too many operations to show all: the first ${duration(timeline.begin_ns)} are left out, and times count from there.` : "";
  return [
    html("p", { class: "soft" }, `What pipeline ranks compute, and the transfers that they take part in.${cut}`),
    legend(timeline.kinds.map((kind) => [kind, colour(kind)])),
    timelineChart(timeline),
    html("p", { class: "soft" }, `${data.trace}, beside this page, has the same for https://ui.perfetto.dev.`),
  ];
}

function pathPanel(data) {
  const { path } = data;
  const names = Object.keys(path.by_use);
  const span = ({ first, last, count }) => (count > 1 ? `${first} … ${last} (${count} operations)` : first);
  return [
    html("p", { class: "soft" }, "The chain of operations that each waited for the one before: only what is on it can make an iteration shorter. It has no bubble, since it follows the rank that the others wait for."),
    legend(names.map((name) => [name, colour(name)])),
    stackedBars("Critical path", [{ label: "path", parts: names.map((kind) => ({ kind, value: path.by_use[kind] })) }]),
    table([["part"], ["time"], ["share"]], names.map((name) => [name, duration(path.by_use[name]), percent(path.by_use[name] / data.iteration_ns)])),
    folded(`Its ${path.steps.length === path.count ? "" : `${path.steps.length} longest of ${path.count} `}steps`,
      table([["from"], ["takes"], ["pipeline rank"], ["does", "text"], ["of", "text wide"]], path.steps.map((step) => [
        ms(step.begin_ns), duration(step.end_ns - step.begin_ns), step.rank, step.act, span(step)]))),
  ];
}

// Where the interval comes from.
function surePanel(data) {
  const [faster, slower] = data.of_model;
  const shown = data.constants.filter((one) => one.part >= 0.0005);
  const most = largest(shown.map((one) => one.part), 1e-9);
  const value = (one) => (one.value < 1 ? one.value.toPrecision(3) : many(one.value));
  return [
    html("p", null, `Nine jobs in ten are expected to take ${duration(data.low_ns)} to ${duration(data.high_ns)}. What is not known exactly about the cluster makes the time uncertain by ${percent(data.of_constants)}. The simulator itself is taken to be wrong by ${percent(faster, 0)} for jobs that are faster, and ${percent(slower, 0)} for those that are slower: what it leaves out costs time. All of these are standard deviations.`),
    intervalBars("Iteration time with its interval", [{ label: "iteration", value: data.iteration_ns, low: data.low_ns, high: data.high_ns, fill: "var(--forward)", note: "with the interval that holds nine times in ten" }]),
    shown.length ? table([["constant"], ["value"], ["uncertain by"], ["effect on the time"], ["", "bars"], ["source", "text wide"]], shown.map((one) => [
      one.name, value(one), percent(one.uncertainty), percent(one.part, 2), shareBar(one.part / most), one.source])) : missing("No constant of the cluster is uncertain."),
    html("p", { class: "soft" }, "One measured run of any strategy narrows this: byteprophet simulate … --calibrate FILE."),
  ];
}
