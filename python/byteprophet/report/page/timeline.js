// The timeline: lanes of slices on a canvas. Drag or arrow keys move, buttons, + and -, or the wheel
// with Ctrl zoom, a double click shows all.

const LANE = 19;
const RULER = 24;
const FIELDS = 5; // of a slice: begin, length, kind, name, bytes
const SHORTEST = 20; // units: as far as one can zoom in

class Timeline {
  constructor(data) {
    this.data = data;
    this.canvas = html("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline of all roles. Arrow keys move, plus and minus zoom." });
    const [first] = data.iterations.slice(-2);
    this.from = first ? first[1] : 0;
    this.to = data.length;
    this.rows = [];
    let y = RULER;
    let role = null;
    for (const lane of data.lanes) {
      if (role !== null && lane.role !== role) y += 7;
      this.rows.push({ ...lane, y, first: lane.role !== role });
      role = lane.role;
      y += LANE;
    }
    this.height = y + 4;
    this.listen();
    this.canvas.addEventListener("draw", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  controls() {
    const button = (text, label, action) => {
      const element = html("button", { type: "button", "aria-label": label, title: label }, text);
      element.addEventListener("click", () => { action(); this.draw(); });
      return element;
    };
    return html("div", { class: "controls" },
      button("+", "Zoom in", () => this.zoom(0.5, 0.5)),
      button("−", "Zoom out", () => this.zoom(2, 0.5)),
      button("◀", "Earlier", () => this.move(-0.25)),
      button("▶", "Later", () => this.move(0.25)),
      button("all", "Show all", () => this.show(0, this.data.length)),
      this.data.iterations.length > 1 ? button("one iteration", "Show the last iteration", () => this.show(...this.data.iterations.at(-1).slice(1))) : null,
      html("span", { class: "soft" }, "Drag to move, Ctrl and wheel to zoom, double click for all."));
  }

  show(from, to) {
    const length = Math.min(this.data.length, Math.max(SHORTEST, to - from));
    this.from = Math.min(Math.max(0, from), this.data.length - length);
    this.to = this.from + length;
  }

  zoom(factor, at) {
    const middle = this.from + at * (this.to - this.from);
    const length = Math.max(SHORTEST, (this.to - this.from) * factor);
    this.show(middle - at * length, middle + (1 - at) * length);
  }

  move(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  get left() { return this.canvas.clientWidth < NARROW ? 96 : 158; }
  get scale() { return (this.canvas.clientWidth - this.left) / (this.to - this.from); }

  listen() {
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, from: this.from, to: this.to };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => { held = null; });
    canvas.addEventListener("pointercancel", () => { held = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (held) {
        const by = (held.x - event.clientX) / this.scale;
        this.show(held.from + by, held.to + by);
        this.draw();
      }
      showTip(held ? "" : this.told(event.offsetX, event.offsetY), event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => showTip("", 0, 0));
    canvas.addEventListener("dblclick", () => { this.show(0, this.data.length); this.draw(); });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const at = Math.max(0, event.offsetX - this.left) / (canvas.clientWidth - this.left);
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
      this.draw();
    }, { passive: false });
    const keys = { ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2), "+": () => this.zoom(0.6, 0.5), "-": () => this.zoom(1.6, 0.5) };
    canvas.addEventListener("keydown", (event) => {
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
      this.draw();
    });
  }

  // The first slice of a lane that ends after a time; slices do not overlap.
  static after(slices, moment) {
    let [low, high] = [0, slices.length / FIELDS];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (slices[middle * FIELDS] + slices[middle * FIELDS + 1] <= moment) low = middle + 1;
      else high = middle;
    }
    return low * FIELDS;
  }

  // What there is under a place of the canvas; a pixel to the left also counts.
  told(x, y) {
    const row = this.rows.find((one) => y >= one.y && y < one.y + LANE);
    if (!row || x < this.left) return "";
    const moment = this.from + (x - this.left) / this.scale;
    const at = Timeline.after(row.slices, moment - 1 / this.scale);
    if (at >= row.slices.length || row.slices[at] > moment + 1 / this.scale) return "";
    const [begin, length, kind, name, size] = row.slices.slice(at, at + FIELDS);
    const unit = this.data.unit_ns;
    const what = `${this.data.kinds[kind]} ${this.data.names[name]}`.trim();
    return `${what}\n${duration(length * unit)}${size ? `, ${bytes(size)}` : ""}, at ${ms(begin * unit, 2)}`;
  }

  draw() {
    const { canvas, data } = this;
    const width = canvas.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    canvas.style.height = `${this.height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(this.height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    const fills = data.kinds.map((kind) => value(colour(kind).slice(4, -1)));
    this.drawRuler(pen, width, value);
    pen.save();
    pen.beginPath();
    pen.rect(this.left, RULER, width - this.left, this.height - RULER);
    pen.clip();
    for (const row of this.rows) {
      pen.fillStyle = value("--bar");
      pen.fillRect(this.left, row.y + 1, width - this.left, LANE - 3);
      this.drawSlices(pen, row, fills);
    }
    pen.restore();
    this.drawLabels(pen, value);
    // Looked at once: reading pixels back makes what is drawn later slow.
    canvas.dataset.painted ??= String(Timeline.painted(pen, canvas));
  }

  drawSlices(pen, row, fills) {
    const { scale, from, to, left } = this;
    const { slices } = row;
    for (let at = Timeline.after(slices, from); at < slices.length && slices[at] < to; at += FIELDS) {
      const x = left + (slices[at] - from) * scale;
      const wide = slices[at + 1] * scale;
      pen.fillStyle = fills[slices[at + 2]];
      // A hair's breadth between neighbours, where there is room for it.
      pen.fillRect(x, row.y + 1, Math.max(0.7, wide > 3 ? wide - 0.8 : wide), LANE - 3);
      if (wide > 46) {
        pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--ground");
        const text = this.data.names[slices[at + 3]];
        pen.fillText(clipped(text, Math.floor((wide - 6) / 6.2)), Math.max(x, left) + 4, row.y + 13);
      }
    }
  }

  drawRuler(pen, width, value) {
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    pen.fillStyle = value("--panel");
    pen.fillRect(0, 0, width, this.height);
    const unit = this.data.unit_ns / 1e6;
    const [step] = ticks((this.to - this.from) * unit, width < NARROW ? 4 : 8).slice(1);
    for (let mark = Math.ceil((this.from * unit) / step) * step; mark <= this.to * unit; mark += step) {
      const x = this.left + (mark / unit - this.from) * this.scale;
      pen.fillStyle = value("--soft");
      pen.fillText(`${tidy(mark)} ms`, x + 3, 12);
      pen.fillStyle = value("--grid");
      pen.fillRect(x, 2, 1, this.height);
    }
    for (const [number, begin] of this.data.iterations) {
      const x = this.left + (begin - this.from) * this.scale;
      if (x < this.left - 1 || x > width) continue;
      pen.fillStyle = value("--text");
      pen.fillRect(x, 14, 1.5, this.height);
      pen.fillText(`iteration ${number}`, x + 4, 22);
    }
  }

  drawLabels(pen, value) {
    pen.fillStyle = value("--panel");
    pen.fillRect(0, 0, this.left, this.height);
    const narrow = this.left < 100;
    const short = (role) => (role === "critical path" ? "path" : role.replace(/^(.)[^-]*-/, "$1"));
    for (const row of this.rows) {
      pen.fillStyle = value("--text");
      pen.font = `${row.first ? "600 " : ""}12px system-ui, 'DejaVu Sans', sans-serif`;
      if (row.first && !narrow) pen.fillText(row.role, 6, row.y + 13);
      pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
      pen.textAlign = "right";
      pen.fillStyle = value("--soft");
      pen.fillText(narrow ? `${short(row.role)} ${row.label}` : row.label, this.left - 6, row.y + 13);
      pen.textAlign = "left";
    }
  }

  // Whether there is more than one colour beside the labels.
  static painted(pen, canvas) {
    const pixels = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return new Set(pixels.filter((_, place) => place % 101 === 0)).size > 3;
  }
}
