// Charts of rows, one below the other, with boxes in them: the timeline, and bars that lie.

const FIELDS = 5; // of a box: begin, length, kind, name, bytes

// The first box of a row that ends after a time; boxes are in order and apart.
function firstAfter(boxes, moment) {
  let [low, high] = [0, boxes.length / FIELDS];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (boxes[middle * FIELDS] + boxes[middle * FIELDS + 1] <= moment) low = middle + 1;
    else high = middle;
  }
  return low * FIELDS;
}

const clipped = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);

// rows: {label, boxes, whisker: [low, high], end: [place, text]}; their times are in units, of which
// one is unit ms. fills: of kinds. told(row, at): the tooltip of the box that begins at this index of
// row.boxes. marks: {value, name, stroke, dash, tip} with values in ms. timeline: whether rows have a
// role, and boxes a name, named(row, at), and the chart begins with a part, begin, that can be moved.
function lanes(label, rows, { step, unit, least = 0, most, fills, told, marks = [], right = 14, timeline = false, named, shortest, begin, axisName = "ms" }) {
  if (!rows.every((row) => row.boxes.every(Number.isFinite))) throw new Error(`${label}: not a number`);
  const high = Math.round(0.8 * step);
  const { placed, bottom } = stacked(rows, step, timeline ? 19 : 4);
  return chart(label, bottom + (timeline ? 26 : 44), {
    padding: [timeline ? 0 : 4, right, 0, 0], series: [{}, { paths: () => null, points: { show: false } }],
    cursor: cursor({ x: timeline, points: { show: false }, drag: { x: timeline, y: false, dist: 4 } }),
    scales: { x: xScale(least, most, shortest), y: { range: [0, bottom], dir: -1 } },
    axes: [
      axis(timeline ? { side: 0, space: 80, values: (_, splits) => splits.map((value) => `${tidy(value)} ms`) } : { label: axisName }),
      ...(timeline ? roleAxes(placed, high) : [labelAxis(placed, high)]),
    ],
    hooks: {
      draw: [(plot) => {
        within(plot, (pen, x, wide) => {
          const { min, max } = plot.scales.x;
          const view = {
            x: (value) => x(value * unit), wide, high, from: min / unit, to: max / unit,
            fills: fills.map(paint), text: paint("var(--text)"), ground: paint("var(--ground)"),
          };
          const empty = paint("var(--bar)");
          for (const row of placed) {
            pen.fillStyle = empty;
            if (timeline) pen.fillRect(0, row.top, wide, high);
            drawBoxes(pen, row, view, named);
            drawEnd(pen, row, view);
          }
        });
        drawMarks(plot, marks);
      }],
    },
  }, [[least, most], [null, null]], (x, y, plot) => {
    const pixel = (plot.scales.x.max - plot.scales.x.min) / plot.over.clientWidth;
    const mark = marks.find((one) => one.tip && Math.abs(one.value - x) < 3 * pixel);
    const row = placed.find((one) => y >= one.top && y < one.top + step);
    if (mark || !row) return mark?.tip ?? "";
    const at = firstAfter(row.boxes, (x - pixel) / unit);
    return at < row.boxes.length && row.boxes[at] * unit <= x + pixel ? told(row, at) : "";
  }, begin);
}

// Rows with their places, first below top, and where they end; between two roles there is more room.
function stacked(rows, step, top) {
  const placed = [];
  for (const row of rows) {
    const first = row.role !== placed.at(-1)?.role;
    if (placed.length && first) top += 7;
    placed.push({ ...row, first, top });
    top += step;
  }
  return { placed, bottom: top + 2 };
}

// An axis that names rows.
const rowAxis = (rows, high, more) => axis({ scale: "y", side: 3, splits: () => rows.map((row) => row.top + high / 2), grid: { show: false }, ...more });

function labelAxis(rows, high) {
  const longest = largest(rows.map((row) => row.label.length));
  const size = (plot) => Math.min(0.3 * plot.width, 12 + 7 * longest);
  const values = (plot) => rows.map((row) => clipped(row.label, Math.floor((size(plot) - 8) / 6.6)));
  return rowAxis(rows, high, { size, values, stroke: () => paint("var(--text)") });
}

// Two: roles, and what each lane has. Where there is little room, one.
function roleAxes(rows, high) {
  const narrow = (plot) => plot.width < NARROW;
  const short = (role) => (role === "critical path" ? "path" : role.replace(/^(.)[^-]*-/, "$1"));
  return [
    rowAxis(rows, high, { size: (plot) => (narrow(plot) ? 96 : 74), values: (plot) => rows.map((row) => (narrow(plot) ? `${short(row.role)} ${row.label}` : row.label)) }),
    rowAxis(rows, high, {
      size: (plot) => (narrow(plot) ? 0 : 84), align: 1, gap: 80, font: `600 ${FONT}`, stroke: () => paint("var(--text)"),
      values: (plot) => rows.map((row) => (row.first && !narrow(plot) ? row.role : null)),
    }),
  ];
}

// view: where and how rows are drawn; its times are in units, its lengths in pixels.
function drawBoxes(pen, row, { x, wide, high, from, to, fills, ground }, named) {
  const { boxes, top } = row;
  for (let at = firstAfter(boxes, from); at < boxes.length && boxes[at] < to; at += FIELDS) {
    const left = Math.max(0, x(boxes[at]));
    const long = Math.min(wide, x(boxes[at] + boxes[at + 1])) - left;
    pen.fillStyle = fills[boxes[at + 2]];
    // A hair's breadth between neighbours, where there is room for it.
    pen.fillRect(left, top, Math.max(0.7, named && long > 3 ? long - 0.8 : long), high);
    if (!named || long <= 46) continue;
    pen.fillStyle = ground;
    pen.fillText(clipped(named(row, at), Math.floor((long - 6) / 7)), left + 4, top + high / 2);
  }
}

function drawEnd(pen, { top, whisker, end }, { x, high, text }) {
  const middle = top + high / 2;
  pen.fillStyle = pen.strokeStyle = text;
  if (whisker) {
    const [from, to] = whisker.map(x);
    pen.lineWidth = 1.5;
    pen.stroke(new Path2D(`M${from} ${middle}H${to}M${from} ${middle - 5}v10M${to} ${middle - 5}v10`));
  }
  if (end) pen.fillText(end[1], x(end[0]) + 6, middle);
}

const NS = 1e-6; // ms

// Bars of parts: rows of {label, parts: [{kind, value}]}, all of the same kinds; marks: dashed lines,
// {label, value}. Values are in ns, unless another unit and its text are given.
function stackedBars(label, rows, marks = [], { unit = NS, axisName = "ms", text = duration } = {}) {
  const sum = (parts) => parts.reduce((total, part) => total + part.value, 0);
  const kinds = rows[0]?.parts.map((part) => part.kind) ?? [];
  const shown = rows.map(({ label: name, parts }) => ({
    label: name,
    boxes: parts.flatMap((part, kind) => (part.value > 0 ? [sum(parts.slice(0, kind)), part.value, kind, 0, 0] : [])),
  }));
  return lanes(label, shown, {
    step: rows.length > 12 ? 16 : 30, unit, axisName, fills: kinds.map(colour),
    most: 1.03 * unit * largest([...rows.map((row) => sum(row.parts)), ...marks.map((mark) => mark.value)], 1),
    marks: marks.map((mark) => ({ value: mark.value * unit, stroke: "var(--bound)", dash: [5, 3], tip: `${mark.label}: ${text(mark.value)}` })),
    told: (row, at) => `${row.label}\n${kinds[row.boxes[at + 2]]}: ${text(row.boxes[at + 1])}`,
  });
}

// Bars with an interval: rows of {label, value, low, high, fill, note}, in ns.
function intervalBars(label, rows) {
  const shown = rows.map(({ value, low, high, ...row }, kind) => ({
    label: row.label, boxes: [0, value, kind, 0, 0], note: row.note ?? "",
    whisker: low === undefined ? null : [low, high], end: [high ?? value, ms(value)],
  }));
  return lanes(label, shown, {
    step: 34, unit: NS, right: 90, fills: rows.map((row) => row.fill),
    most: NS * largest(rows.map((row) => row.high ?? row.value), 1),
    told: (row) => `${row.label}: ${duration(row.boxes[1])}\n${row.note}`.trim(),
  });
}

// Changes to both sides of a line: rows of {label, value}, in ns.
function changeBars(label, rows) {
  const most = NS * largest(rows.map((row) => Math.abs(row.value)), 1);
  const shown = rows.map(({ label: name, value }) => ({
    label: name, boxes: [Math.min(0, value), Math.abs(value), value < 0 ? 0 : 1, 0, 0], end: [Math.max(0, value), signed(ms(value), value)],
  }));
  return lanes(label, shown, {
    step: 26, unit: NS, right: 80, least: -most, most, fills: ["var(--backward)", "var(--others)"],
    marks: [{ value: 0, stroke: "var(--soft)", dash: [] }],
    told: (row) => `${row.label}: ${row.end[1]}`,
  });
}
