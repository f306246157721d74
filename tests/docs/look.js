// Looks at the page that is open: what is wrong with it, by kind. The browser tests run it on every page.

const done = arguments[0];
const all = (where) => [...document.querySelectorAll(where)];
const told = (element) => `${element.tagName} ${element.className.baseVal ?? element.className}: ${element.textContent.trim().slice(0, 60)}`;
const found = { sideways: [], broken: [], nameless: [], small: [], tiny: [], faint: [], "no button": [] };

all("details").forEach((fold) => (fold.open = true));

// ---- sideways ----

const BOXES = `html, .content, article pre, article .line:not(.rule), .src, .place, .note,
  article .table-wrapper, article table, article td, article img`;
for (const box of all(BOXES))
  if (box.clientWidth && box.scrollWidth > box.clientWidth + 1)
    found.sideways.push(`${told(box)}: ${box.scrollWidth} in ${box.clientWidth}`);
for (const picture of all("article img"))
  if (picture.getBoundingClientRect().right > innerWidth) found.sideways.push(told(picture));

// ---- breaks inside a name ----

const range = document.createRange();
const onSeveralLines = () => new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1;
for (const code of all("article :is(pre, code), .piece .src, .piece .file, h1.path")) {
  const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    range.selectNodeContents(text);
    if (!onSeveralLines()) continue;
    for (const name of text.data.matchAll(/[A-Za-z_]\w*/g)) {
      range.setStart(text, name.index);
      range.setEnd(text, name.index + name[0].length);
      if (onSeveralLines()) found.broken.push(name[0]);
    }
  }
}

// ---- buttons ----

const BUTTONS = `button, summary, [role=button], .marker, .note .back, .twins-bar a, .pieces a, .sidebar-tree label`;
for (const button of all(BUTTONS)) {
  const { width, height } = button.getBoundingClientRect();
  if (!width) continue;
  if (!(button.ariaLabel || button.textContent.trim())) found.nameless.push(button.outerHTML.slice(0, 80));
  if (Math.min(width, height) < 24) found.small.push(`${told(button)}: ${width} by ${height}`);
}
for (const code of all(".highlight > pre:not(.side)"))
  if (!code.parentElement.querySelector(".copy")) found["no button"].push(told(code));
for (const place of all(".piece .place:not(.missing)"))
  if (!place.querySelector(".copy")) found["no button"].push(told(place));

// ---- charts ----

const channels = (colour) => (colour.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
const light = (colour) => {
  const linear = channels(colour).slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const contrast = (one, other) => {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};

// Whether a shape's filled part covers a point of the screen; a `use` shows a path that stands elsewhere
function covers(shape, x, y) {
  const path = shape.tagName === "use" ? document.querySelector(shape.href.baseVal) : shape;
  const point = new DOMPoint(x, y).matrixTransform(shape.getScreenCTM().inverse());
  if (shape !== path) [point.x, point.y] = [point.x - shape.x.baseVal.value, point.y - shape.y.baseVal.value];
  return path.isPointInFill(point);
}

// The colour below the middle of a text: the page's, and over it each filled shape of the chart, as opaque as it is
function ground(text, shapes) {
  const { x, y, width, height } = text.getBoundingClientRect();
  let colour = channels(getComputedStyle(document.body).backgroundColor);
  for (const shape of shapes.filter((shape) => covers(shape, x + width / 2, y + height / 2))) {
    const { fill, fillOpacity, opacity } = getComputedStyle(shape);
    const share = fillOpacity * opacity;
    colour = channels(fill).map((channel, i) => share * channel + (1 - share) * colour[i]);
  }
  return `rgb(${colour.slice(0, 3)})`;
}

async function look(picture) {
  const answer = await fetch(picture.src);
  const place = document.createElement("div");
  place.innerHTML = await answer.text();
  const chart = place.querySelector("svg");
  const { width, height } = picture.getBoundingClientRect();
  chart.setAttribute("width", width);
  chart.setAttribute("height", height);
  picture.replaceWith(chart);
  const shapes = [...chart.querySelectorAll("path, use")].filter((shape) => !shape.closest("defs") && getComputedStyle(shape).fill !== "none");
  const texts = [...chart.querySelectorAll("text")];
  if (!texts.length) found.tiny.push(`${picture.src} has no words`);
  for (const text of texts) {
    const size = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b);
    if (size < 9) found.tiny.push(`${text.textContent}: ${size} pixels`);
  }
  for (const theme of ["light", "dark"]) {
    document.body.dataset.theme = theme;
    for (const text of texts) {
      const ratio = contrast(getComputedStyle(text).fill, ground(text, shapes));
      if (ratio < 3) found.faint.push(`${text.textContent} in the ${theme}: ${ratio}`);
    }
  }
}

const pictures = all('article img[src$=".svg"]');
Promise.all(pictures.map((picture) => picture.decode())).then(async () => {
  for (const picture of pictures) await look(picture);
  done(found);
});
