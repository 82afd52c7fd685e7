// Lines whose data changes: figure.show(columns) draws [x, y of each series], null where there is none.

// series: {stroke, dash, fill} of each; told(place): the tooltip at a place of the columns.
function liveLines(label, { xUnit, yUnit, series, height = 190, told }) {
  const figure = html("figure", { role: "img", "aria-label": label });
  let columns = null;
  const make = (width) => {
    figure.plot = new uPlot({
      width, height, padding: [10, 14, 0, 0], legend: { show: false },
      cursor: cursor({ points: { size: 6 } }),
      series: [{}, ...series.map(({ stroke, dash = [], fill }) => ({
        stroke: () => paint(stroke), fill: fill ? () => `${paint(stroke)}30` : null, width: 1.5, dash,
        points: { show: false },
      }))],
      scales: {
        x: { time: false, range: (_, from, to) => (from === null ? [0, 1] : from === to ? [from - 1, to + 1] : [from, to]) },
        y: { range: (_, from, to) => [0, 1.08 * Math.max(to ?? 0, 1e-9)] },
      },
      axes: [axis({ label: xUnit, grid: { show: false } }), axis({ label: yUnit, size: 52 })],
    }, columns, figure);
    const { over } = figure.plot;
    over.addEventListener("pointermove", (event) => {
      const place = figure.plot.cursor.idx;
      showTip(event.buttons || place === null || place === undefined ? "" : told(place), event.clientX, event.clientY);
    });
    over.addEventListener("pointerleave", () => showTip("", 0, 0));
  };
  const draw = () => {
    const width = Math.floor(figure.clientWidth);
    if (!columns || width <= 0) return;
    if (!figure.plot) {
      make(width);
      return;
    }
    if (figure.plot.width !== width) figure.plot.setSize({ width, height });
    figure.plot.setData(columns);
  };
  new ResizeObserver(draw).observe(figure);
  figure.show = (next) => {
    if (!next.every((values) => values.every((value) => value === null || Number.isFinite(value)))) throw new Error(`${label}: not a number`);
    columns = next;
    draw();
  };
  return figure;
}

const flat = (xs, value) => xs.map(() => value);

// Figures by name, which are made when they are first asked for.
function gallery(make) {
  const made = new Map();
  return (name) => {
    if (!made.has(name)) made.set(name, make(name));
    return made.get(name);
  };
}
