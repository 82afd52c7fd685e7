// Elements, numbers and colours: what all pictures are made with. No text is ever parsed as HTML.

function html(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const ms = (ns, digits = 1) => `${(ns / 1e6).toFixed(digits)} ms`;
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
const signed = (text, value) => (value > 0 ? `+${text}` : text);
const mbit = (bps) => `${(bps / 1e6).toFixed(bps < 1e7 ? 2 : 0)} Mbit/s`;

function bytes(count) {
  if (count < 1e3) return `${count} B`;
  return count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(2)} MB`;
}

// A duration in the unit that suits it.
function duration(ns) {
  if (Math.abs(ns) >= 1e9) return `${(ns / 1e9).toFixed(3)} s`;
  return Math.abs(ns) >= 1e6 ? ms(ns, 2) : `${(ns / 1e3).toFixed(1)} µs`;
}

const COLOURS = {
  link_busy: "communication", collective: "communication", compute: "computation",
  send: "push", receive: "pull", "reduce-scatter": "push", "all-gather": "pull",
  updates: "update", "reduce-scatters": "push", "all-gathers": "pull", pushes: "push", servers: "sum", answers: "pull", waits_for_cores: "others",
  optimizer: "update", recompute: "queued", waits_for_the_host: "others", slowed_by_overlap: "others", pipeline_bubble: "other", gradients_of_parameters: "forward",
  "all-reduce": "communication", "all-to-all": "computation", "point-to-point": "sum",
  parameters: "forward", gradients: "backward", optimizer_state: "update", activations: "communication", transient: "queued", reserved: "other",
};

// The colour of a part, step or slice: a CSS variable, so that it follows light and dark.
function colour(kind) {
  const name = kind.replaceAll(" ", "_");
  return `var(--${COLOURS[name] ?? name})`;
}

// The value of such a variable now, for a canvas, which does not know variables.
const paint = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable.slice(4, -1)).trim();

// Of any number of values, which Math.max(...values) does not take.
const largest = (values, least = 0) => values.reduce((most, value) => Math.max(most, value), least);

const tidy = (value) => String(Number(value.toPrecision(6)));

function legend(entries) {
  const row = ([label, fill, dash]) => {
    const key = dash ? html("i", { class: "dash", style: `border-color:${fill}` }) : html("i", { style: `background:${fill}` });
    return html("li", null, key, label);
  };
  return html("ul", { class: "legend" }, entries.map(row));
}

// Rows of texts or elements; columns: [heading, class].
function table(columns, rows) {
  const head = html("tr", null, columns.map(([label, kind]) => html("th", { class: kind, scope: "col" }, label)));
  const body = rows.map((row) => html("tr", null, row.map((cell, place) => html("td", { class: columns[place][1] }, cell))));
  return html("div", { class: "scroll" }, html("table", null, html("thead", null, head), html("tbody", null, body)));
}

const folded = (label, ...children) => html("details", null, html("summary", null, label), ...children);
const missing = (text) => html("p", { class: "missing" }, text);

const shareBar = (share, fill) =>
  html("span", { class: "share", style: `width:${(100 * Math.min(1, share)).toFixed(2)}%;background:${fill ?? "var(--accent)"}` });

function chooser(label, options, chosen, change) {
  const select = html("select", { "aria-label": label }, options.map((text, index) => html("option", { value: index }, text)));
  select.value = String(chosen);
  select.addEventListener("change", () => change(Number(select.value)));
  return html("label", null, `${label} `, select);
}

// One tooltip for the page.
const tip = document.getElementById("tip");

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = !text;
  if (!text) return;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
}
