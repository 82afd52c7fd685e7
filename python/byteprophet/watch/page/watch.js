// Asks for the state every second while the page is visible, and has every panel draw it. <html> says
// in data-states how many states were drawn, and in data-errors how many errors there were; a section
// without data has data-empty. A panel that fails says so, and the others are drawn.

const PERIOD_MS = 1000;
const TIMEOUT_MS = 10_000;
const root = document.documentElement;

function badge(state) {
  const texts = {
    running: "running", done: "done", failed: "failed", interrupted: "interrupted", unknown: "nothing new yet",
    restarting: "starting again",
    silent: `silent for ${Math.round(state.silent_s ?? 0)} s`,
  };
  const line = document.getElementById("status");
  line.replaceChildren(html("span", { class: `badge ${state.status}` }, texts[state.status] ?? state.status), state.failed ?? "");
}

function lost(text) {
  document.getElementById("status").replaceChildren(html("span", { class: "badge lost" }, "no answer"), text);
}

function makePanels() {
  return PANELS.map(([id, title, make]) => {
    const body = html("div");
    const section = html("section", { id, "aria-labelledby": `${id}-title` }, html("h2", { id: `${id}-title` }, title), body);
    document.querySelector("main").append(section);
    document.querySelector("nav").append(html("a", { href: `#${id}` }, title));
    const update = make();
    return (state) => {
      try {
        // Functions are called when all elements have their place, and so their width.
        const content = update(state).flat(2).filter(Boolean);
        const elements = content.filter((one) => typeof one !== "function");
        body.replaceChildren(...elements);
        for (const draw of content.filter((one) => typeof one === "function")) draw();
        section.toggleAttribute("data-empty", elements.length === 1 && elements[0].className === "missing");
        section.dataset.drawn = "true";
      } catch (error) {
        body.replaceChildren(missing(`This could not be drawn: ${error.message}.`));
        reportError(error); // watch.html counts it
      }
    };
  });
}

async function main() {
  const panels = makePanels();
  for (;;) {
    if (!document.hidden) {
      try {
        const answer = await fetch(`state${location.search}`, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
        const text = await answer.text();
        if (!answer.ok) throw new Error(text);
        const state = JSON.parse(text);
        document.title = `byteprophet: ${state.run}`;
        document.querySelector("h1").textContent = state.run;
        badge(state);
        for (const draw of panels) draw(state);
        root.dataset.states = String(Number(root.dataset.states) + 1);
      } catch (error) {
        lost(`The viewer does not answer: ${error.message}`);
      }
    }
    await new Promise((done) => setTimeout(done, PERIOD_MS));
  }
}

main();
