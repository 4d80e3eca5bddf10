import { DOWN, Model } from "./model.js";
import { detail, h, percent, VIEWS } from "./panels.js";
import { Picture } from "./picture.js";

const find = (id) => document.getElementById(id);
const SHORTCUTS = {
  "← →": "next node of the tier", "↑ ↓": "node above or below; next row of a table", "Enter": "busiest link of the node; open a row",
  "+ −": "zoom", "0": "all of the fabric", [`1 … ${VIEWS.length}`]: "views", "[ ]": "a second back, forward", "{ }": "a minute back, forward",
  "L": "live", "Esc": "nothing selected", "?": "this list",
};

class App {
  model = new Model();
  picture = new Picture(find("picture"), this.model);
  view = VIEWS.find((view) => view.id === location.hash.slice(1)) ?? VIEWS[0];
  folds = new Map(); // what was opened or closed by hand, by name
  #isPressed = false;

  constructor() {
    this.model.addEventListener("renumbered", () => this.pick(null));
    this.model.addEventListener("fabric", () => this.picture.fabricChanged());
    // A click is lost if what was pressed is replaced before it is let go.
    this.model.addEventListener("frame", () => this.#isPressed || this.draw());
    find("side").addEventListener("pointerdown", (event) => { this.#isPressed = event.button === 0; });
    for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { this.#isPressed = false; });
    this.model.addEventListener("connection", () => this.#drawStatus());
    this.picture.addEventListener("pick", (event) => this.pick(event.detail));
    find("tabs").append(...VIEWS.map((view) => h("button", {
      role: "tab", id: `tab-${view.id}`, onclick: () => this.open(view), ariaSelected: String(view === this.view),
    })));
    find("help").querySelector("dl").append(...Object.entries(SHORTCUTS).flatMap(([key, text]) => [h("dt", {}, key), h("dd", {}, text)]));
    find("help-open").onclick = () => find("help").showModal();
    find("live").onclick = () => this.model.look(this.model.isLive ? this.model.position - 1 : null);
    find("time").oninput = (event) => this.model.look(Number(event.target.value));
    for (const button of document.querySelectorAll("[data-zoom]")) button.onclick = () => this.#zoom(button.dataset.zoom);
    for (const area of [find("panel"), find("detail")]) {
      area.addEventListener("mouseover", (event) => this.#hover(event.target.closest("[data-hover]")));
      area.addEventListener("focusin", (event) => this.#hover(event.target.closest("[data-hover]")));
      area.addEventListener("mouseleave", () => this.#hover(null));
    }
    document.addEventListener("keydown", (event) => this.#key(event));
    this.model.addEventListener("stranger", () => find("login").showModal());
    find("login").addEventListener("cancel", (event) => event.preventDefault());
    find("login").querySelector("form").onsubmit = (event) => this.#logIn(event);
    this.model.connect();
  }

  async #logIn(event) {
    event.preventDefault();
    const field = event.target.querySelector("input"), body = JSON.stringify({ token: field.value.trim() });
    const answer = await fetch("/v1/session", { method: "POST", headers: { "Content-Type": "application/json" }, body }).catch(() => null);
    find("login-problem").textContent = answer?.ok ? "" : answer ? (await answer.json()).detail : "The controller does not answer.";
    field.value = "";
    if (!answer?.ok) return;
    find("login").close();
    this.model.connect();
  }

  get selection() {
    return this.picture.selection;
  }

  isPicked(key) {
    return this.selection?.kind === "flow" && (key.startsWith(this.selection.flow) || this.selection.flow.startsWith(key));
  }

  pick(selection) {
    this.picture.selection = selection;
    this.model.find(selection);
    this.draw();
  }

  open(view) {
    this.view = view;
    history.replaceState(null, "", `#${view.id}`);
    this.draw();
  }

  draw() {
    this.picture.draw();
    this.#drawStatus();
    this.#drawTime();
    const { frame, fabric } = this.model;
    if (!frame || !fabric || frame.epoch !== fabric.epoch) return;
    const focused = document.activeElement?.dataset?.key;
    for (const view of VIEWS) {
      const tab = find(`tab-${view.id}`), count = view.count(frame);
      tab.textContent = count === undefined ? view.name : `${view.name} ${count}`;
      tab.ariaSelected = String(view === this.view);
    }
    find("panel").replaceChildren(...this.view.draw(this, frame).filter(Boolean));
    find("panel").setAttribute("aria-labelledby", `tab-${this.view.id}`);
    this.#drawDetail(frame);
    if (focused) document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    this.#drawSummary(frame);
  }

  #drawDetail(frame) {
    const area = find("detail"), { selection } = this;
    area.hidden = !selection;
    if (!selection) return;
    const scrolled = area.scrollTop, [title, ...content] = detail(this, frame, selection);
    area.replaceChildren(h("h2", {}, title, h("button", { onclick: () => this.pick(null), ariaLabel: "Close", title: "Close (Esc)" }, "×")),
      ...content.flat().filter(Boolean));
    area.scrollTop = scrolled;
  }

  #drawStatus() {
    const badge = find("status"), health = this.model.frame?.health, { standsBy } = this.model;
    const text = this.model.connected ? health?.status ?? "connecting"
      : standsBy ? `standing by: ${standsBy.leader ? `open ${standsBy.leader}` : "no controller leads"}` : "connection lost, trying again";
    if (badge.textContent !== text) badge.textContent = text;
    badge.className = !this.model.connected ? "bad" : { ok: "ok", degraded: "bad" }[health?.status] ?? "warn";
    if (!health) return;
    find("counts").textContent = `${health.switches_connected} switches · ${health.hosts} hosts · ${health.reads} reads${
      health.troubles.length ? ` · ${health.troubles.length} troubles` : ""}`;
  }

  #drawTime() {
    const { model } = this, slider = find("time"), last = model.frames.length - 1;
    slider.max = Math.max(last, 0);
    slider.value = model.position;
    find("live").setAttribute("aria-pressed", String(model.isLive));
    if (!model.frame) return;
    const clock = new Date(1000 * model.frame.at).toLocaleTimeString([], { hour12: false });
    const behind = Math.round(model.frames[last].at - model.frame.at);
    const text = model.isLive ? clock : `${clock} (−${Math.floor(behind / 60)}:${String(behind % 60).padStart(2, "0")})`;
    find("clock").textContent = slider.ariaValueText = text;
  }

  #drawSummary(frame) {
    const { links, nodes } = this.model.fabric;
    let most = null, down = 0;
    for (const link of links) {
      const load = this.model.busiest(frame, link.number);
      if (load === DOWN) down++;
      else if (!most || load > most.load) most = { load, link };
    }
    const busiest = most ? `Busiest link: ${nodes[most.link.a].name} – ${nodes[most.link.b].name}, ${percent(most.load)}.` : "No links yet.";
    find("summary").textContent = `${busiest}${down ? ` ${down} links are down.` : ""}`;
  }

  #hover(row) {
    this.picture.hovered = row?.dataset.hover ?? null;
    this.picture.draw();
  }

  #zoom(how) {
    if (how === "fit") this.picture.fit();
    else this.picture.zoom(how === "in" ? 1.5 : 1 / 1.5);
  }

  // --- keyboard ---

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const row = event.target.closest?.("tr[tabindex]");
    const isHandled = row ? this.#rowKey(row, event.key) : event.target === find("picture") && this.#pictureKey(event.key);
    if (isHandled || this.#pageKey(event)) event.preventDefault();
  }

  #rowKey(row, key) {
    const other = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[key];
    if (key === "Enter" || key === " ") row.click();
    else if (other) other.focus();
    else return false;
    return true;
  }

  #pictureKey(key) {
    const { nodes } = this.model.fabric ?? {};
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (!nodes || !(key in steps || key === "Enter")) return false;
    const from = this.selection?.kind === "node" ? nodes[this.selection.node] : null;
    if (key === "Enter") {
      if (from) find("detail").querySelector("tr[tabindex]")?.click();
      return true;
    }
    const node = this.picture.step(from, ...steps[key]);
    if (node) {
      this.pick({ kind: "node", node: node.number });
      this.picture.show(node);
    }
    return true;
  }

  #pageKey(event) {
    const { model } = this, { key } = event, inSlider = event.target === find("time");
    const minute = model.frame ? this.#frameAt(model.frame.at + (key === "{" ? -60 : 60)) : 0;
    const actions = {
      "+": () => this.#zoom("in"), "=": () => this.#zoom("in"), "-": () => this.#zoom("out"), 0: () => this.#zoom("fit"),
      "[": () => model.look(model.position - 1), "]": () => model.look(model.position + 1),
      "{": () => model.look(minute), "}": () => model.look(minute), l: () => model.look(null), L: () => model.look(null),
      "?": () => find("help").showModal(), Escape: () => this.pick(null),
    };
    VIEWS.forEach((view, index) => { actions[index + 1] = () => this.open(view); });
    if (event.target.role === "tab" && (key === "ArrowRight" || key === "ArrowLeft")) {
      const index = VIEWS.indexOf(this.view) + (key === "ArrowRight" ? 1 : VIEWS.length - 1);
      this.open(VIEWS[index % VIEWS.length]);
      find(`tab-${this.view.id}`).focus();
      return true;
    }
    if (inSlider || !(key in actions)) return false;
    actions[key]();
    return true;
  }

  #frameAt(at) {
    const index = this.model.frames.findIndex((frame) => frame.at >= at);
    return index < 0 ? this.model.frames.length - 1 : index;
  }
}

// For the console: what is shown, and where.
window.speedwell = new App();
