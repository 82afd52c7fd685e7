// Charts, drawn by uPlot. Each function returns a figure, which is drawn as soon as it has a width.

const NARROW = 560;
const MOST_CHARTS = 8; // of workers, where each one has its own
const FONT = "12px system-ui, 'DejaVu Sans', sans-serif";
const WHOLE = [1, 2, 5].flatMap((factor) => Array.from({ length: 9 }, (_, power) => factor * 10 ** power)).sort((a, b) => a - b);

// label: what the chart shows, for who does not see it. told(x, y, plot): what the tooltip says
// there; x in the unit of its axis, y in pixels from the top. begin: what is shown first, if not all.
function chart(label, height, options, data, told, begin = null) {
  if (!data.every((values) => values.every((value) => value === null || value === undefined || Number.isFinite(value)))) throw new Error(`${label}: not a number`);
  const figure = html("figure", { role: "img", "aria-label": label });
  const make = (width) => {
    figure.plot = new uPlot({ ...options, width, height, legend: { show: false } }, data, figure);
    if (begin) figure.plot.setScale("x", begin);
    const { over } = figure.plot;
    over.addEventListener("pointermove", (event) => {
      const text = event.buttons ? "" : told(figure.plot.posToVal(event.offsetX, "x"), event.offsetY, figure.plot);
      showTip(text, event.clientX, event.clientY);
    });
    over.addEventListener("pointerleave", () => showTip("", 0, 0));
  };
  figure.redraw = () => {
    const width = Math.floor(figure.clientWidth);
    if (width <= 0) return;
    if (!figure.plot) make(width);
    else if (figure.plot.width !== width) figure.plot.setSize({ width, height });
  };
  new ResizeObserver(figure.redraw).observe(figure);
  return figure;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const figure of document.querySelectorAll("figure")) figure.plot?.redraw();
});

const axis = (more) => ({
  font: FONT, labelFont: FONT, size: 22, labelSize: 18, labelGap: 0, gap: 5, stroke: () => paint("var(--soft)"),
  grid: { stroke: () => paint("var(--grid)"), width: 1 }, ticks: { show: false },
  values: (_, splits) => splits.map(tidy), ...more,
});

// An axis of x from least to most. Of it, no less than shortest can be shown.
const xScale = (least, most, shortest = (most - least) / 1e6) => ({
  time: false,
  range: (plot, from, to) => {
    if (from <= plot.data[0][0] && to >= plot.data[0].at(-1)) return [least, most];
    const length = Math.min(most - least, Math.max(shortest, to - from));
    const begin = Math.min(Math.max(least, from), most - length);
    return [begin, begin + length];
  },
});

const cursor = (more) => ({ y: false, drag: { x: true, y: false, dist: 4 }, ...more });

// Calls draw(pen, x, wide) with pixels that count from the upper left corner of the plot, which is so
// wide, and to the left of which nothing is drawn; x(value): its place.
function within(plot, draw) {
  const { ctx: pen, bbox, scales } = plot;
  const wide = bbox.width / uPlot.pxRatio;
  pen.save();
  pen.translate(bbox.left, bbox.top);
  pen.scale(uPlot.pxRatio, uPlot.pxRatio);
  pen.beginPath();
  pen.rect(0, 0, plot.width, plot.height);
  pen.clip();
  pen.font = FONT;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  draw(pen, (value) => ((value - scales.x.min) * wide) / (scales.x.max - scales.x.min), wide);
  pen.restore();
}

function drawMarks(plot, marks) {
  within(plot, (pen, x, wide) => {
    for (const { value, name, stroke, dash } of marks) {
      const at = x(value);
      if (at < -1 || at > wide) continue;
      pen.strokeStyle = pen.fillStyle = paint(stroke);
      pen.lineWidth = 1.5;
      pen.setLineDash(dash);
      pen.beginPath();
      pen.moveTo(at, 0);
      pen.lineTo(at, plot.bbox.height);
      pen.stroke();
      if (name) pen.fillText(name, at + 4, 9);
    }
  });
}

// Lines over an axis. sets: {points: [[x, y]], stroke, fill, dash, dots, stepped}; marks: x of dotted
// lines; told(x): the tooltip; bare: dots without a line. Charts of one sync show the same part of x, and the same place.
function lines(label, sets, { xUnit, yUnit, xLeast = 0, xMost, yMost, whole = false, marks = [], height = 180, told, sync }) {
  const shown = sets.filter((set) => set.points.length);
  const series = shown.map(({ stroke, fill, dash = [], dots, stepped, bare }) => ({
    stroke: () => paint(stroke), fill: fill ? () => `${paint(fill)}40` : null, width: 1.5, dash, spanGaps: true,
    points: { show: Boolean(dots), size: 6, fill: () => paint(stroke) },
    paths: bare ? () => null : stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
  }));
  const dotted = marks.map((value) => ({ value, stroke: "var(--line)", dash: [2, 3] }));
  return chart(label, height, {
    padding: [10, 14, 0, 0], series: [{}, ...series],
    cursor: cursor(sync ? { sync: { key: sync } } : {}),
    scales: { x: xScale(xLeast, xMost), y: { range: [0, 1.08 * Math.max(yMost, 1e-9)] } },
    axes: [axis({ label: xUnit, incrs: whole ? WHOLE : undefined, grid: { show: false } }), axis({ label: yUnit, size: 44 })],
    hooks: { drawAxes: [(plot) => drawMarks(plot, dotted)] },
  }, uPlot.join(shown.map(({ points }) => [points.map(([x]) => x), points.map(([, y]) => y)])), told);
}

// Two stacked values per place, and a dot: rows of {name, size_bytes, wait_ns, transfer_ns, exposed_ns}.
function gradientBars(label, rows) {
  const bars = (fill) => ({ fill: () => paint(fill), width: 0, paths: uPlot.paths.bars({ size: [0.9, Infinity] }), points: { show: false } });
  const dots = { stroke: () => paint("var(--panel)"), paths: () => null, points: { show: true, size: 8, width: 1, fill: () => paint("var(--others)") } };
  const sums = rows.map((row) => row.wait_ns + row.transfer_ns);
  return chart(label, 260, {
    padding: [10, 14, 0, 0], series: [{}, bars("var(--forward)"), bars("var(--queued)"), dots],
    cursor: cursor({ points: { show: false } }),
    scales: { x: xScale(-0.5, rows.length - 0.5, 1), y: { range: [0, 1.05 * largest([...sums, ...rows.map((row) => row.exposed_ns)], 1) / 1e6] } },
    axes: [axis({ label: "gradient, in forward order", incrs: WHOLE, grid: { show: false } }), axis({ label: "ms", size: 44 })],
  }, [
    rows.map((_, place) => place), sums.map((ns) => ns / 1e6), rows.map((row) => row.wait_ns / 1e6),
    rows.map((row) => (row.exposed_ns > 0 ? row.exposed_ns / 1e6 : null)),
  ], (x) => {
    const place = Math.round(x);
    const row = rows[place];
    return row ? `${place}: ${row.name}, ${bytes(row.size_bytes)}\nwaits ${duration(row.wait_ns)}, travels ${duration(row.transfer_ns)}\nkeeps computation waiting ${duration(row.exposed_ns)}` : "";
  });
}
