// Reads a plot under the pointer: what each of its lines was, and when.

const HIGH = 1000;
// Where nothing is known, the nearest step that is known stands for it, if it is as near as this.
const NEAR = 5;
const read = new WeakMap();
let pointer = null;

document.addEventListener("pointermove", (event) => point(event.target, event.clientX));
document.addEventListener("pointerdown", (event) => point(event.target, event.clientX));

// A plot that was replaced under a pointer that rests is read again.
document.addEventListener("replaced", () => {
  if (pointer) {
    point(document.elementFromPoint(pointer.x, pointer.y), pointer.x);
  }
});

function point(target, x) {
  const area = target instanceof Element ? target.closest("svg.area") : null;
  document.querySelectorAll(".readout, .cursor").forEach((each) => each.remove());
  pointer = area ? { x, y: area.getBoundingClientRect().top + 1 } : null;
  if (area) {
    show(area, x);
  }
}

function show(area, x) {
  const box = area.getBoundingClientRect();
  const steps = area.viewBox.baseVal.width;
  const step = Math.round(Math.min(Math.max((x - box.left) / box.width, 0), 1) * steps);
  const figure = area.closest(".plot");
  const names = [...figure.querySelectorAll(".ends dt")].map((each) => each.textContent);
  const rows = [...area.querySelectorAll(".line")].map((line, place) => {
    const height = nearest(heights(line), step);
    return [names[place], height === undefined ? "–" : written(figure, (1 - height / HIGH) * figure.dataset.top)];
  });
  const agoS = (1 - step / steps) * figure.dataset.seconds;
  const at = new Date((figure.dataset.end - agoS) * 1000);
  mark(area, step);
  tell(figure, box, x, at.toLocaleString([], { dateStyle: "short", timeStyle: "medium" }), rows);
}

function written(figure, value) {
  if (figure.dataset.unit === "ms") {
    return value < 1000 ? `${value.toPrecision(3)} ms` : `${(value / 1000).toPrecision(3)} s`;
  }
  return `${Math.round(value).toLocaleString("en")}/s`;
}

function nearest(known, step) {
  for (let away = 0; away <= NEAR; away++) {
    const found = known.get(step - away) ?? known.get(step + away);
    if (found !== undefined) {
      return found;
    }
  }
  return undefined;
}

// The heights of a line by step; a path is a start, then ways of one step each.
function heights(line) {
  const d = line.getAttribute("d");
  if (read.get(line)?.d !== d) {
    const found = new Map();
    for (const run of d.split("M").slice(1)) {
      const [start, ways = ""] = run.split(/[lh]/);
      let [at, height] = start.split(" ").map(Number);
      found.set(at, height);
      const numbers = run.includes("l") ? ways.split(" ").map(Number) : [];
      for (let place = 1; place < numbers.length; place += 2) {
        found.set(++at, (height += numbers[place]));
      }
    }
    read.set(line, { d, found });
  }
  return read.get(line).found;
}

function mark(area, step) {
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("d", `M${step} 0V${HIGH}`);
  area.append(cursor);
}

function tell(figure, box, x, when, rows) {
  const readout = document.createElement("div");
  readout.className = "readout";
  for (const words of [[when], ...rows]) {
    const row = document.createElement("p");
    row.replaceChildren(...words.map((word) => Object.assign(document.createElement("span"), { textContent: word })));
    readout.append(row);
  }
  figure.append(readout);
  const left = x - figure.getBoundingClientRect().left;
  const isRight = x > box.left + box.width / 2;
  readout.style.left = `${isRight ? left - readout.offsetWidth - 12 : left + 12}px`;
}
