// Draws all panels: PANELS has [id, title, function] of each. <html> says in data-errors how many errors there were, and each section in
// data-drawn that it is done; a section without data has data-empty. A panel that fails says so, and
// the others are drawn.

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
      for (const one of section.querySelectorAll("figure")) one.redraw();
      if (content.length === 1 && content[0].className === "missing") section.dataset.empty = "true";
      section.dataset.drawn = "true";
    } catch (error) {
      section.replaceChildren(section.firstChild, missing(`This could not be drawn: ${error.message}.`));
      reportError(error); // page.html counts it
    }
  }
  document.documentElement.dataset.done = "true";
}

main();
