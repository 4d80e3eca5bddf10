// The fabric on a canvas: as much of it as fits, with names where there is room for them.

import { place } from "./layout.js";
import { DOWN } from "./model.js";

const STEPS = 12;
const SHOWN_BOTH_WAYS = 400; // links up to which each direction has a line of its own
const SHOWN_FLOWS = 24; // transfers up to which all paths are drawn
const NEAR = 12;
const PAD = { left: 78, right: 26, top: 54, bottom: 70 };
const TIER_NAMES = { 0: "hosts", 1: "edge", 2: "aggregation" };

export class Picture extends EventTarget {
  #canvas;
  #model;
  #context;
  #layout = null;
  #view = { scale: 1, x: 0 };
  #fits = true;
  #asked = false;
  #pointers = new Map();
  #moved = 0;
  selection = null; // { kind: "node" | "link" | "flow", ... }
  hovered = null;

  constructor(canvas, model) {
    super();
    this.#canvas = canvas;
    this.#model = model;
    this.#context = canvas.getContext("2d");
    new ResizeObserver(() => this.#resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    for (const name of ["down", "move", "up", "cancel", "leave"]) {
      canvas.addEventListener(`pointer${name}`, (event) => this.#pointer(name, event));
    }
  }

  fabricChanged() {
    this.#layout = place(this.#model.fabric);
    if (this.#fits) this.fit();
    this.draw();
  }

  draw() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      this.#paint();
    });
  }

  // --- what is seen of it ---

  fit() {
    this.#fits = true;
    this.#view = { scale: this.#least, x: 0 };
    this.draw();
  }

  zoom(factor, at = this.#canvas.clientWidth / 2) {
    const before = (at - PAD.left) / this.#view.scale + this.#view.x;
    this.#view.scale = Math.min(Math.max(this.#view.scale * factor, this.#least), 160);
    this.#fits = this.#view.scale === this.#least;
    this.#view.x = before - (at - PAD.left) / this.#view.scale;
    this.#stay();
  }

  // Bring a node into sight.
  show(node) {
    const x = this.#x(node);
    if (x < PAD.left || x > this.#canvas.clientWidth - PAD.right) {
      this.#view.x = node.x - (this.#canvas.clientWidth - PAD.left) / 2 / this.#view.scale;
    }
    this.#stay();
  }

  // Where a node or the middle of a link is, in pixels of the window.
  whereIs(thing) {
    const { left, top } = this.#canvas.getBoundingClientRect();
    const ends = thing.a === undefined ? [thing] : [this.#node(thing.a), this.#node(thing.b)];
    const mean = (of) => ends.reduce((sum, node) => sum + of.call(this, node), 0) / ends.length;
    return { x: left + mean(this.#x), y: top + mean(this.#y) };
  }

  // The next node in a direction: along its tier, or in the tier above or below.
  step(node, across, up) {
    const rows = this.#layout?.rows ?? [];
    if (!node) return rows[0]?.[0];
    const row = rows.findIndex((nodes) => nodes.includes(node));
    if (across) {
      const index = rows[row].indexOf(node) + across;
      return rows[row][Math.min(Math.max(index, 0), rows[row].length - 1)];
    }
    const next = rows[row - up];
    return next?.reduce((best, other) => Math.abs(other.x - node.x) < Math.abs(best.x - node.x) ? other : best) ?? node;
  }

  get #least() {
    return Math.max(this.#canvas.clientWidth - PAD.left - PAD.right, 50) / (this.#layout?.width ?? 1);
  }

  #stay() {
    const shown = (this.#canvas.clientWidth - PAD.left - PAD.right) / this.#view.scale;
    this.#view.x = Math.min(Math.max(this.#view.x, 0), Math.max((this.#layout?.width ?? 1) - shown, 0));
    this.draw();
  }

  #resize() {
    const ratio = devicePixelRatio || 1;
    this.#canvas.width = Math.round(this.#canvas.clientWidth * ratio);
    this.#canvas.height = Math.round(this.#canvas.clientHeight * ratio);
    if (this.#fits) this.fit();
    this.#paint();
  }

  #x(node) {
    return PAD.left + (node.x + 0.5 - this.#view.x) * this.#view.scale;
  }

  #y(node) {
    return PAD.top + node.y * (this.#canvas.clientHeight - PAD.top - PAD.bottom);
  }

  #node(number) {
    return this.#model.fabric.nodes[number];
  }

  // --- pointer ---

  #wheel(event) {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.#view.x += event.deltaX / this.#view.scale;
      this.#stay();
    } else {
      this.zoom(Math.exp(-event.deltaY / 400), event.offsetX);
    }
  }

  #pointer(name, event) {
    const known = this.#pointers.get(event.pointerId);
    if (name === "down") {
      this.#moved = 0;
      this.#pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    } else if (name === "move" && known) {
      this.#drag(known, event);
    } else if (name === "move") {
      const hit = this.#hit(event.offsetX, event.offsetY);
      this.#canvas.classList.toggle("hit", Boolean(hit));
      this.#canvas.title = hit ? this.#name(hit) : "";
    } else if (known) {
      this.#pointers.delete(event.pointerId);
      if (name === "up" && this.#moved < 6) {
        this.dispatchEvent(new CustomEvent("pick", { detail: this.#hit(event.offsetX, event.offsetY) }));
      }
    }
  }

  #drag(known, event) {
    const other = [...this.#pointers].find(([id]) => id !== event.pointerId)?.[1];
    this.#moved += Math.abs(event.offsetX - known.x) + Math.abs(event.offsetY - known.y);
    if (other) { // two fingers
      const before = Math.abs(known.x - other.x), after = Math.abs(event.offsetX - other.x);
      if (before > 10 && after > 10) this.zoom(after / before, (event.offsetX + other.x) / 2);
    } else if (this.#moved >= 6) {
      this.#view.x -= (event.offsetX - known.x) / this.#view.scale;
      this.#stay();
    }
    Object.assign(known, { x: event.offsetX, y: event.offsetY });
  }

  #hit(x, y) {
    if (!this.#layout) return null;
    let best = null, least = NEAR;
    for (const node of this.#model.fabric.nodes) {
      const away = Math.hypot(this.#x(node) - x, this.#y(node) - y);
      if (away < least) [best, least] = [{ kind: "node", node: node.number }, away];
    }
    if (best) return best;
    least = NEAR / 2;
    for (const link of this.#model.fabric.links) {
      const away = this.#distance(link, x, y);
      if (away < least) [best, least] = [{ kind: "link", link: link.number }, away];
    }
    return best;
  }

  #distance(link, x, y) {
    const a = this.#node(link.a), b = this.#node(link.b);
    const ax = this.#x(a), ay = this.#y(a), dx = this.#x(b) - ax, dy = this.#y(b) - ay;
    const along = Math.min(Math.max(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1), 0), 1);
    return Math.hypot(ax + along * dx - x, ay + along * dy - y);
  }

  #name(hit) {
    if (hit.kind === "node") return this.#node(hit.node).name;
    const { a, b, number } = this.#model.fabric.links[hit.link], frame = this.#model.frame;
    const load = frame ? this.#model.busiest(frame, number) : null;
    return `${this.#node(a).name} – ${this.#node(b).name}: ${load === DOWN ? "down" : `${Math.round(100 * load)} %`}`;
  }

  // --- painting ---

  #paint() {
    const context = this.#context, ratio = devicePixelRatio || 1, frame = this.#model.frame;
    const width = this.#canvas.clientWidth, height = this.#canvas.clientHeight;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    if (!this.#layout || !frame || frame.epoch !== this.#model.fabric.epoch) return;
    const style = getComputedStyle(this.#canvas);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const theme = { ramp: [0, 1, 2, 3, 4].map((step) => colour(`load${step}`)), ink: colour("ink"), dim: colour("dim"),
      down: colour("down"), flow: colour("flow"), ground: colour("ground"), node: colour("node") };
    const links = this.#model.fabric.links.filter((link) => this.#isSeen(link, width));
    this.#paintLinks(context, frame, links, theme);
    this.#paintFlows(context, frame, theme);
    this.#paintNodes(context, frame, width, theme);
    this.#paintTiers(context, theme);
    const { fabric } = this.#model;
    Object.assign(this.#canvas.dataset, { nodes: fabric.nodes.length, links: fabric.links.length, drawn: links.length });
    if (!this.#canvas.dataset.firstMs) this.#canvas.dataset.firstMs = Math.round(performance.now());
  }

  #isSeen(link, width) {
    const a = this.#x(this.#node(link.a)), b = this.#x(this.#node(link.b));
    return Math.max(a, b) > 0 && Math.min(a, b) < width;
  }

  #paintLinks(context, frame, links, theme) {
    const bothWays = links.length <= SHOWN_BOTH_WAYS;
    const lines = Array.from({ length: STEPS + 1 }, () => new Path2D()), down = new Path2D();
    for (const link of links) {
      const busiest = this.#model.busiest(frame, link.number);
      if (busiest === DOWN) this.#line(down, link, 0);
      else if (!bothWays) this.#line(lines[this.#step(busiest)], link, 0);
      else {
        for (const way of [0, 1]) {
          const load = this.#model.load(frame, link.number, way);
          if (load === DOWN) this.#line(down, link, way ? 1.5 : -1.5);
          else this.#line(lines[this.#step(load ?? 0)], link, way ? 1.5 : -1.5);
        }
      }
    }
    lines.forEach((line, step) => {
      context.strokeStyle = ramp(theme.ramp, step / STEPS);
      context.lineWidth = (bothWays ? 1.2 : 0.7) + (bothWays ? 2.2 : 1.6) * step / STEPS;
      context.stroke(line);
    });
    context.setLineDash([4, 4]);
    context.strokeStyle = theme.down;
    context.lineWidth = 1.5;
    context.stroke(down);
    context.setLineDash([]);
    if (this.selection?.kind === "link") {
      const line = new Path2D();
      this.#line(line, this.#model.fabric.links[this.selection.link], 0);
      context.globalAlpha = 0.35;
      context.strokeStyle = theme.flow;
      context.lineWidth = 12;
      context.stroke(line);
      context.globalAlpha = 1;
    }
  }

  #step(load) {
    return Math.min(Math.round(load * STEPS), STEPS);
  }

  #line(path, link, aside) {
    const a = this.#node(link.a), b = this.#node(link.b);
    const ax = this.#x(a), ay = this.#y(a), bx = this.#x(b), by = this.#y(b);
    const length = Math.hypot(bx - ax, by - ay) || 1, dx = aside * (ay - by) / length, dy = aside * (bx - ax) / length;
    path.moveTo(ax + dx, ay + dy);
    path.lineTo(bx + dx, by + dy);
  }

  #paintFlows(context, frame, theme) {
    const flows = this.#model.flows(frame), selected = this.selection, hovered = this.hovered;
    const isMeant = (flow) => (selected?.kind === "flow" && flow.key.startsWith(selected.flow))
      || (hovered !== null && flow.key.startsWith(hovered));
    context.strokeStyle = context.fillStyle = theme.flow;
    context.lineJoin = "round";
    for (const flow of flows) {
      const meant = isMeant(flow);
      if (!meant && flows.length > SHOWN_FLOWS) continue;
      const points = flow.path.map((number) => [this.#x(this.#node(number)), this.#y(this.#node(number))]);
      context.globalAlpha = meant ? 0.95 : 0.45;
      context.lineWidth = meant ? 3.5 : 1.5;
      context.setLineDash(meant ? [] : [6, 4]);
      context.beginPath();
      points.forEach(([x, y], index) => index ? context.lineTo(x, y) : context.moveTo(x, y));
      context.stroke();
      context.setLineDash([]);
      if (meant) points.slice(1).forEach((point, index) => arrow(context, points[index], point));
    }
    context.globalAlpha = 1;
  }

  #paintNodes(context, frame, width, theme) {
    const gone = (node) => node.links.length > 0
      && node.links.every((number) => this.#model.busiest(frame, number) === DOWN);
    context.textAlign = "center";
    for (const row of this.#layout.rows) {
      const spacing = row.length > 1 ? (this.#x(row.at(-1)) - this.#x(row[0])) / (row.length - 1) : width;
      context.font = "11px system-ui, sans-serif";
      const longest = Math.max(...row.map((node) => node.name.length)) * 6.2;
      for (const node of row) {
        const x = this.#x(node), y = this.#y(node);
        if (x < -60 || x > width + 60) continue;
        const size = Math.min(Math.max(spacing * 0.34, 1), node.tier ? 9 : 5);
        const load = node.tier ? null : Math.max(0, ...node.links.map((link) => this.#model.busiest(frame, link)));
        const isSelected = this.selection?.kind === "node" && this.selection.node === node.number;
        context.fillStyle = gone(node) ? theme.down : node.tier ? theme.node : ramp(theme.ramp, Math.min(load, 1));
        context.beginPath();
        if (node.tier) context.roundRect(x - size * 1.3, y - size * 0.8, size * 2.6, size * 1.6, size / 2);
        else if (size > 2.5) context.arc(x, y, size, 0, 7);
        else context.rect(x - size / 2, y - 5, size, 10);
        context.fill();
        context.strokeStyle = isSelected ? theme.flow : theme.ground;
        context.lineWidth = isSelected ? 3 : 1;
        if (isSelected || size > 3) context.stroke();
        context.fillStyle = isSelected ? theme.ink : theme.dim;
        if (spacing > longest + 8 || isSelected) context.fillText(node.name, x, node.tier ? y - 13 : y + 19);
        else if (!node.tier && spacing > 13) this.#slanted(context, node.name, x, y);
      }
    }
  }

  #slanted(context, text, x, y) {
    context.save();
    context.translate(x + 3, y + 10);
    context.rotate(Math.PI / 3.2);
    context.textAlign = "left";
    context.fillText(text, 0, 4);
    context.restore();
  }

  #paintTiers(context, theme) {
    context.textAlign = "left";
    context.font = "12px system-ui, sans-serif";
    const top = this.#layout.rows[0]?.[0].tier ?? 0;
    for (const row of this.#layout.rows) {
      const tier = row[0].tier, text = tier === top && tier > 1 ? "core" : TIER_NAMES[tier] ?? `tier ${tier}`;
      const y = this.#y(row[0]);
      context.fillStyle = theme.ground;
      context.fillRect(0, y - 18, 70, 32);
      context.fillStyle = theme.dim;
      context.fillText(text, 8, y);
      context.fillText(`${row.length}`, 8, y + 14);
    }
  }
}

function arrow(context, [ax, ay], [bx, by]) {
  const angle = Math.atan2(by - ay, bx - ax), x = ax + (bx - ax) * 0.55, y = ay + (by - ay) * 0.55;
  context.beginPath();
  context.moveTo(x + 8 * Math.cos(angle), y + 8 * Math.sin(angle));
  context.lineTo(x + 7 * Math.cos(angle + 2.5), y + 7 * Math.sin(angle + 2.5));
  context.lineTo(x + 7 * Math.cos(angle - 2.5), y + 7 * Math.sin(angle - 2.5));
  context.fill();
}

// A colour between five given as #rrggbb.
function ramp(colours, part) {
  const at = part * (colours.length - 1), low = Math.min(Math.floor(at), colours.length - 2), rest = at - low;
  const [a, b] = [colours[low], colours[low + 1]].map((text) => parseInt(text.slice(1), 16));
  const mix = (shift) => Math.round(((a >> shift) & 255) * (1 - rest) + ((b >> shift) & 255) * rest);
  return `rgb(${mix(16)}, ${mix(8)}, ${mix(0)})`;
}
