// Draws all panels. <html> says in data-errors how many errors there were, and each section in
// data-drawn that it is done; a section without data has data-empty. A panel that fails says so, and
// the others are drawn.

const PANELS = [
  ["summary", "Summary", summary],
  ["breakdown", "Where the time went", breakdown],
  ["timeline", "Timeline", timelinePanel],
  ["path", "Critical path", pathPanel],
  ["gradients", "Waits per gradient", gradientsPanel],
  ["bandwidth", "Bandwidth and utilisation", bandwidthPanel],
  ["stragglers", "Stragglers", stragglersPanel],
  ["prediction", "Prediction and measurement", predictionPanel],
  ["comparison", "Comparison", comparisonPanel],
];

function main() {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.querySelector("h1").textContent = data.run;
  for (const [id, title, draw] of PANELS) {
    const section = html("section", { id, "aria-labelledby": `${id}-title` }, html("h2", { id: `${id}-title` }, title));
    document.querySelector("main").append(section);
    document.querySelector("nav").append(html("a", { href: `#${id}` }, title));
    try {
      const content = draw(data).flat(2).filter(Boolean);
      section.append(...content);
      for (const one of section.querySelectorAll("figure")) one.redraw?.();
      if (content.length === 1 && content[0].className === "missing") section.dataset.empty = "true";
      section.dataset.drawn = "true";
    } catch (error) {
      section.replaceChildren(section.firstChild, missing(`This could not be drawn: ${error.message}.`));
      reportError(error); // page.html counts it
    }
  }
  for (const canvas of document.querySelectorAll("canvas")) canvas.dispatchEvent(new Event("draw"));
  document.documentElement.dataset.done = "true";
}

main();
