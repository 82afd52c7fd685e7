// The timeline: lanes of all roles, with what moves it. Dragging over a part, or the wheel with Ctrl,
// zooms in; a double click shows all; a wheel that turns sideways moves; arrow keys, + and - do what the
// buttons do.

const SHORTEST = 20; // units: as far as one can zoom in

// Of slices, each of which begins so long after the end of the one before.
function boxesOf(slices) {
  const boxes = [...slices];
  let end = 0;
  for (let at = 0; at < boxes.length; at += FIELDS) {
    boxes[at] += end;
    end = boxes[at] + boxes[at + 1];
  }
  return boxes;
}

// marks: lines over all lanes; by default, where iterations begin.
function timelineChart(data, marks = null) {
  const unit = data.unit_ns / 1e6;
  const [first] = data.iterations.slice(-2);
  const figure = lanes("Timeline of all roles. Arrow keys move, plus and minus zoom.", data.lanes.map(({ slices, ...lane }) => ({ ...lane, boxes: boxesOf(slices) })), {
    step: 19, unit, most: data.length * unit, timeline: true, shortest: SHORTEST * unit,
    begin: { min: (first?.[1] ?? 0) * unit, max: data.length * unit },
    fills: data.kinds.map(colour),
    named: ({ boxes }, at) => data.names[boxes[at + 3]],
    marks: marks ?? data.iterations.map(([number, begin]) => ({ value: begin * unit, name: `iteration ${number}`, stroke: "var(--text)", dash: [] })),
    told: ({ boxes }, at) => {
      const [begin, length, kind, name, size] = boxes.slice(at, at + FIELDS);
      const what = `${data.kinds[kind]} ${data.names[name]}`.trim();
      return `${what}\n${duration(length * data.unit_ns)}${size ? `, ${bytes(size)}` : ""}, at ${ms(begin * data.unit_ns, 2)}`;
    },
  });
  figure.tabIndex = 0;
  const show = (min, max) => figure.plot.setScale("x", { min, max });
  // By so much of what is shown; at: the place that stays, from 0 to 1.
  const zoom = (factor, at = 0.5) => {
    const { min, max } = figure.plot.scales.x;
    const middle = min + at * (max - min);
    const length = Math.max(SHORTEST * unit, (max - min) * factor);
    show(middle - at * length, middle + (1 - at) * length);
  };
  const move = (share) => {
    const { min, max } = figure.plot.scales.x;
    show(min + share * (max - min), max + share * (max - min));
  };
  const keys = { ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.6), "-": () => zoom(1.6) };
  figure.addEventListener("keydown", (event) => {
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  figure.addEventListener("wheel", (event) => {
    const { over } = figure.plot;
    if (event.target !== over || !(event.ctrlKey || event.metaKey || event.deltaX)) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX / over.clientWidth);
    else move(event.deltaX / over.clientWidth);
  }, { passive: false });
  const button = (text, label, action) => {
    const element = html("button", { type: "button", "aria-label": label, title: label }, text);
    element.addEventListener("click", action);
    return element;
  };
  const all = data.length * unit;
  const last = data.iterations.at(-1);
  return [
    html("div", { class: "controls" },
      button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)),
      button("◀", "Earlier", () => move(-0.25)), button("▶", "Later", () => move(0.25)),
      button("all", "Show all", () => show(0, all)),
      last && data.iterations.length > 1 ? button("one iteration", "Show the last iteration", () => show(last[1] * unit, last[2] * unit)) : null,
      html("span", { class: "soft" }, "Drag over a part, or Ctrl and wheel, to zoom; double click for all.")),
    figure,
  ];
}
