// Pictures of numbers. Each returns a figure that draws itself again when its width changes.

const MARGIN = { left: 62, right: 14, top: 10, bottom: 34 };
const NARROW = 560;

// draw(width): an svg element. label: what the picture shows, for who does not see it.
function figure(label, draw) {
  const holder = html("figure", { role: "img", "aria-label": label });
  let width = 0;
  const again = () => {
    const now = Math.floor(holder.clientWidth);
    if (now > 0 && now !== width) {
      width = now;
      holder.replaceChildren(draw(width));
    }
  };
  new ResizeObserver(again).observe(holder);
  holder.redraw = again;
  return holder;
}

const frame = (width, height, ...children) =>
  svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, ...children);

function clipped(text, most) {
  return text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text;
}

// first: what counts from a number, in whole steps, as iterations do.
function xAxis(width, height, most, unit, margin, first = null) {
  const wide = width - margin.left - margin.right;
  const bottom = height - margin.bottom;
  return [
    ticks(most, width < NARROW ? 4 : 8).filter((value) => first === null || Number.isInteger(value)).map((value) => {
      const x = margin.left + (wide * value) / most;
      return [
        svg("line", { x1: x, x2: x, y1: margin.top, y2: bottom, stroke: "var(--grid)" }),
        svg("text", { x, y: bottom + 15, "text-anchor": "middle", class: "soft" }, tidy(first + value)),
      ];
    }).flat(),
    svg("text", { x: width - margin.right, y: bottom + 30, "text-anchor": "end", class: "soft" }, unit),
  ].flat();
}

function yAxis(width, height, most, unit, margin) {
  const high = height - margin.top - margin.bottom;
  const bottom = height - margin.bottom;
  const marks = ticks(most, 4).map((value) => {
    const y = bottom - (high * value) / most;
    return [
      svg("line", { x1: margin.left, x2: width - margin.right, y1: y, y2: y, stroke: "var(--grid)" }),
      svg("text", { x: margin.left - 6, y: y + 4, "text-anchor": "end", class: "soft" }, tidy(value)),
    ];
  });
  const middle = margin.top + high / 2;
  const name = svg("text", { x: 13, y: middle, "text-anchor": "middle", class: "soft", transform: `rotate(-90 13 ${middle})` }, unit);
  return [marks, name].flat(2);
}

// Bars of parts: rows of {label, parts: [{kind, value}], mark}; values in ns. mark: a dashed line.
function stackedBars(label, rows, marks = []) {
  const most = 1.03 * largest([...rows.map((row) => row.parts.reduce((sum, part) => sum + part.value, 0)), ...marks.map((mark) => mark.value)], 1);
  return figure(label, (width) => {
    const longest = largest(rows.map((row) => row.label.length));
    const margin = { ...MARGIN, left: Math.min(width * 0.3, 12 + 7 * longest) };
    const step = rows.length > 12 ? 16 : 30;
    const height = margin.top + margin.bottom + step * rows.length;
    const scale = (width - margin.left - margin.right) / most;
    const bars = rows.map((row, place) => {
      let x = margin.left;
      const y = margin.top + step * place + step * 0.12;
      const boxes = row.parts.filter((part) => part.value > 0).map((part) => {
        const box = svg("rect", {
          x, y, width: Math.max(0.4, part.value * scale), height: step * 0.76, fill: colour(part.kind),
          "data-tip": `${row.label}\n${part.kind}: ${duration(part.value)}`,
        });
        x += part.value * scale;
        return box;
      });
      const text = clipped(row.label, Math.floor((margin.left - 8) / 6.6));
      return [svg("text", { x: margin.left - 6, y: y + step * 0.38 + 4, "text-anchor": "end" }, text), boxes];
    });
    const lines = marks.map((mark) => {
      const x = margin.left + mark.value * scale;
      return svg("line", { x1: x, x2: x, y1: margin.top, y2: height - margin.bottom, stroke: "var(--bound)", "stroke-dasharray": "5 3", "stroke-width": 1.6, "data-tip": `${mark.label}: ${duration(mark.value)}` });
    });
    return frame(width, height, xAxis(width, height, most / 1e6, "ms", margin).flat(), bars.flat(2), lines);
  });
}

// Bars with an interval: rows of {label, value, low, high, fill, note}, in ns.
function intervalBars(label, rows) {
  const most = largest(rows.map((row) => row.high ?? row.value), 1);
  return figure(label, (width) => {
    const margin = { ...MARGIN, left: Math.min(width * 0.3, 130), right: 90 };
    const step = 34;
    const height = margin.top + margin.bottom + step * rows.length;
    const scale = (width - margin.left - margin.right) / most;
    const bars = rows.map((row, place) => {
      const y = margin.top + step * place + 7;
      const end = margin.left + row.value * scale;
      const low = margin.left + (row.low ?? row.value) * scale;
      const high = margin.left + (row.high ?? row.value) * scale;
      const whisker = row.low === undefined ? [] : [
        svg("path", { d: `M${low} ${y + 10}H${high}M${low} ${y + 5}v10M${high} ${y + 5}v10`, stroke: "var(--text)", "stroke-width": 1.5, fill: "none" }),
      ];
      return [
        svg("text", { x: margin.left - 6, y: y + 14, "text-anchor": "end" }, row.label),
        svg("rect", { x: margin.left, y, width: end - margin.left, height: 20, fill: row.fill, "data-tip": `${row.label}: ${duration(row.value)}\n${row.note ?? ""}`.trim() }),
        whisker,
        svg("text", { x: high + 6, y: y + 14 }, ms(row.value)),
      ];
    });
    return frame(width, height, xAxis(width, height, most / 1e6, "ms", margin).flat(), bars.flat(2));
  });
}

// Lines over an x axis. sets: {label, points: [[x, y]], stroke, fill, dash, dots}; marks: x of thin lines.
function lines(label, sets, { xUnit, yUnit, xMost, yMost, xFirst = null, marks = [], height = 180, tips = null }) {
  const most = { x: xMost, y: 1.08 * Math.max(yMost, 1e-9) };
  return figure(label, (width) => {
    const margin = MARGIN;
    const x = (value) => margin.left + ((width - margin.left - margin.right) * value) / most.x;
    const y = (value) => height - margin.bottom - ((height - margin.top - margin.bottom) * Math.min(value, most.y)) / most.y;
    const starts = marks.map((mark) => svg("line", { x1: x(mark), x2: x(mark), y1: margin.top, y2: height - margin.bottom, stroke: "var(--line)", "stroke-dasharray": "2 3" }));
    const drawn = sets.filter((set) => set.points.length).map((set) => {
      const path = set.points.map(([a, b], index) => `${index ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
      const [first, last] = [set.points[0], set.points[set.points.length - 1]];
      return [
        set.fill ? svg("path", { d: `${path}L${x(last[0])} ${y(0)}L${x(first[0])} ${y(0)}Z`, fill: set.fill, "fill-opacity": 0.25 }) : null,
        svg("path", { d: path, fill: "none", stroke: set.stroke, "stroke-width": 1.5, "stroke-dasharray": set.dash ?? null }),
        set.dots ? set.points.map(([a, b]) => svg("circle", { cx: x(a), cy: y(b), r: 3, fill: set.stroke })) : null,
      ];
    });
    const targets = (tips ?? []).map(([from, to, text]) =>
      svg("rect", { x: x(from), y: margin.top, width: Math.max(1, x(to) - x(from)), height: height - margin.top - margin.bottom, fill: "transparent", "data-tip": text }));
    return frame(width, height, yAxis(width, height, most.y, yUnit, margin), xAxis(width, height, most.x, xUnit, margin, xFirst).flat().filter((e) => e.tagName === "text"), starts, drawn.flat(2), targets);
  });
}

// Two stacked values per place, and a dot: rows of {label, wait, transfer, exposed}, in ns.
function gradientBars(label, rows) {
  const most = 1.05 * largest(rows.map((row) => Math.max(row.wait_ns + row.transfer_ns, row.exposed_ns)), 1);
  return figure(label, (width) => {
    const margin = MARGIN;
    const height = 260;
    const wide = (width - margin.left - margin.right) / rows.length;
    const y = (value) => height - margin.bottom - ((height - margin.top - margin.bottom) * value) / most;
    const bar = (left, from, to, fill) => svg("rect", { x: left, y: y(to), width: Math.max(0.6, wide - (wide > 4 ? 1 : 0)), height: Math.max(0, y(from) - y(to)), fill });
    const bars = rows.map((row, place) => {
      const left = margin.left + wide * place;
      const sum = row.wait_ns + row.transfer_ns;
      const text = `${place}: ${row.name}, ${bytes(row.size_bytes)}\nwaits ${duration(row.wait_ns)}, travels ${duration(row.transfer_ns)}\nkeeps computation waiting ${duration(row.exposed_ns)}`;
      return [
        bar(left, 0, row.wait_ns, "var(--queued)"),
        bar(left, row.wait_ns, sum, "var(--forward)"),
        row.exposed_ns > 0 ? svg("circle", { cx: left + wide / 2, cy: y(row.exposed_ns), r: 3.5, fill: "var(--others)", stroke: "var(--panel)" }) : null,
        svg("rect", { x: left, y: margin.top, width: wide, height: height - margin.top - margin.bottom, fill: "transparent", "data-tip": text }),
      ];
    });
    const every = Math.ceil(rows.length / (width < NARROW ? 5 : 12));
    const numbers = rows.map((_, place) => place).filter((place) => place % every === 0).map((place) =>
      svg("text", { x: margin.left + wide * (place + 0.5), y: height - margin.bottom + 15, "text-anchor": "middle", class: "soft" }, place));
    const name = svg("text", { x: width - margin.right, y: height - 4, "text-anchor": "end", class: "soft" }, "gradient, in forward order");
    return frame(width, height, yAxis(width, height, most / 1e6, "ms", margin), bars.flat(), numbers, name);
  });
}

// Changes to both sides of a line: rows of {label, value}, in ns.
function changeBars(label, rows) {
  const most = largest(rows.map((row) => Math.abs(row.value)), 1);
  return figure(label, (width) => {
    const left = Math.min(width * 0.3, 130);
    const step = 26;
    const height = 8 + step * rows.length;
    const middle = left + (width - left) / 2;
    const scale = ((width - left) / 2 - 72) / most; // room for numbers on both sides
    const bars = rows.map((row, place) => {
      const y = 4 + step * place;
      const long = Math.abs(row.value) * scale;
      const right = row.value >= 0;
      return [
        svg("text", { x: left - 8, y: y + 16, "text-anchor": "end" }, clipped(row.label, Math.floor(left / 6.6))),
        svg("rect", { x: right ? middle : middle - long, y: y + 3, width: Math.max(0.5, long), height: step - 8, fill: right ? "var(--others)" : "var(--backward)" }),
        svg("text", { x: right ? middle + long + 5 : middle - long - 5, y: y + 16, "text-anchor": right ? "start" : "end", class: "soft" }, signed(ms(row.value), row.value)),
      ];
    });
    return frame(width, height, svg("line", { x1: middle, x2: middle, y1: 0, y2: height, stroke: "var(--soft)" }), bars.flat());
  });
}
