// Keeps a page fresh: the server sends the parts that have changed, over one stream that it ends now and then.

const WORDS = { live: "live", away: "reconnecting", ended: "not live" };
const RETRY_MS = 5000;

const main = document.querySelector("main[data-live]");
const pending = new Map();
let source = null;

if (main) {
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", stop);
  addEventListener("pageshow", follow);
  follow();
}

function follow() {
  if (document.hidden) {
    stop();
  } else if (!source) {
    source = new EventSource(location.href);
    source.addEventListener("open", () => show("live"));
    source.addEventListener("blocks", (event) => replace(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      show("away");
      if (source && source.readyState === EventSource.CLOSED) {
        stop();
        show("ended");
        setTimeout(follow, RETRY_MS);
      }
    });
  }
}

function stop() {
  if (source) {
    source.close();
    source = null;
  }
}

function show(state) {
  const shown = document.getElementById("live-state");
  shown.hidden = false;
  shown.dataset.state = state;
  document.getElementById("live-word").textContent = WORDS[state];
}

function replace(blocks) {
  for (const [id, html] of Object.entries(blocks)) {
    pending.set(id, html);
  }
  for (const [id, html] of pending) {
    const element = document.getElementById(id);
    if (element && !isSelecting(element)) {
      pending.delete(id);
      fill(element, html);
    }
  }
  document.dispatchEvent(new Event("replaced"));
}

// What somebody is copying stays until they are done.
function isSelecting(element) {
  const selection = getSelection();
  return !selection.isCollapsed && selection.anchorNode && element.contains(selection.anchorNode);
}

function fill(element, html) {
  const links = () => [...element.querySelectorAll("a, button, input, [tabindex]")];
  const focused = element.contains(document.activeElement) ? links().indexOf(document.activeElement) : -1;
  const scrolled = [...element.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  const template = document.createElement("template");
  template.innerHTML = html;
  element.replaceChildren(template.content);
  element.querySelectorAll(".scroll").forEach((each, place) => { each.scrollLeft = scrolled[place] ?? 0; });
  if (focused >= 0) {
    links()[focused]?.focus({ preventScroll: true });
  }
}
