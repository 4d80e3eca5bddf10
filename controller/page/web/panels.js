// The views beside the picture, and what is told of a selected node, link or transfer.

import { DOWN } from "./model.js";

const MOST_OPEN = 64; // metadata servers up to which the whole tree is unfolded
const MOST_BLOCKS = 24; // that are shown of one
const SILENT_SECONDS = 5;

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(element.dataset, value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function scaled(value, unit, step) {
  if (value === null || value === undefined) return "–";
  let prefix = 0;
  while (value >= step && prefix < 5) [value, prefix] = [value / step, prefix + 1];
  const digits = value < 10 && prefix ? 1 : 0;
  const letters = step === 1024 ? ["", "Ki", "Mi", "Gi", "Ti", "Pi"] : ["", "k", "M", "G", "T", "P"];
  return `${value.toFixed(digits)} ${letters[prefix]}${unit}`;
}

export const rate = (bps) => scaled(bps, "bit/s", 1000);
export const size = (bytes) => scaled(bytes, "B", 1024);
export const percent = (part) => part === null ? "–" : part === DOWN ? "down" : `${Math.round(100 * part)} %`;
const seconds = (value) => value === null ? "–" : value < 100 ? `${value.toFixed(2)} s` : `${Math.round(value)} s`;
const age = (value) => value < 90 ? `${Math.round(value)} s` : `${Math.round(value / 60)} min`;

function table(columns, rows, caption) {
  if (!rows.length) return h("p", { className: "dim" }, caption);
  const cell = (tag, value, index) => h(tag, { className: columns[index].startsWith("#") ? "number" : "" }, value);
  return h("table", {}, h("thead", {}, h("tr", {}, columns.map((name, index) => cell("th", name.replace("#", ""), index)))),
    h("tbody", {}, rows.map(({ key, pick, selected, cells }) => h("tr", {
      ...(pick ? { tabIndex: 0, onclick: pick, data: { key, hover: key } } : {}), className: selected ? "selected" : "",
    }, cells.map((value, index) => cell("td", value ?? "–", index))))));
}

const more = (list, shown) => list && list.total > shown
  ? h("p", { className: "dim" }, `${shown} of ${list.total} are shown.`) : null;

// That there are transfers of which the page is not told: any of them may go over a link.
function notAll(app, frame, link = null) {
  const left = app.model.left(frame, link);
  if (!left.length) return null;
  if (link !== null && app.model.found?.link === link) return showMore(app);
  const lists = left.map(([name, list, shown]) => `${shown} of ${list.total} ${name}`);
  return h("p", { className: "dim" }, `Only ${lists.join(" and ")} are followed here: others may go over it, too.`);
}

function showMore({ model }) {
  return model.hasMore ? h("p", {}, h("button", { onclick: () => model.findMore() }, "Show more")) : null;
}

function flowRows(app, flows) {
  return flows.map((flow) => ({
    key: flow.key, pick: () => app.pick({ kind: "flow", flow: flow.key }), selected: app.isPicked(flow.key),
    cells: [flow.kind, `${flow.from} → ${flow.to}`, rate(flow.rate), rate(flow.share)],
  }));
}

// --- views ---

function reads(app, frame) {
  const all = frame.reads?.reads ?? [];
  const rows = all.map((read) => {
    const done = read.parts.reduce((sum, part) => sum + part.transferred_bytes, 0);
    const running = read.parts.filter((part) => !part.ended), key = `${read.id}/`;
    return {
      key, pick: () => app.pick({ kind: "flow", flow: key }), selected: app.isPicked(key),
      cells: [
        `${read.parts.map((part) => part.replica.host_name).join(", ") || "waits"} → ${read.client_name}`,
        `${read.placement_id ? "write" : "read"}${read.parts.length > 1 ? `, ${read.parts.length} parts` : ""}`,
        rate(running.reduce((sum, part) => sum + (part.measured_bps ?? 0), 0)),
        rate(running.reduce((sum, part) => sum + (part.share_bps ?? 0), 0)),
        h("meter", { max: read.size_bytes, value: done, title: `${size(done)} of ${size(read.size_bytes)}`,
          ariaLabel: `${percent(done / read.size_bytes)} of ${size(read.size_bytes)}` }),
      ],
    };
  });
  return [table(["from → to", "", "#measured", "#share", "done"], rows, "No read runs."), more(frame.reads, all.length)];
}

function coflows(app, frame) {
  if (!frame.coflows) return [h("p", { className: "dim" }, "Coflows are not scheduled here: set coflow_key_file.")];
  const members = new Map((frame.members ?? []).map((coflow) => [coflow.id, coflow.members]));
  const rows = frame.coflows.coflows.map((coflow) => {
    const queues = [...new Set((members.get(coflow.id) ?? []).map((member) => member.queue))].join(", ");
    const key = `${coflow.id}/`;
    return {
      key, pick: () => app.pick({ kind: "flow", flow: key }), selected: app.isPicked(key),
      cells: [coflow.position === null ? "–" : coflow.position + 1, `${coflow.id.slice(-8)} ${coflow.state}`,
        queues || "–", coflow.flows, rate(coflow.rate_bps), size(coflow.remaining_bytes)],
    };
  });
  return [table(["#order", "coflow", "queue", "#flows", "#rate", "#left"], rows, "No coflow is live."),
    more(frame.coflows, rows.length)];
}

function placements(app, frame) {
  const all = frame.placements?.placements ?? [];
  return [h("p", { className: "dim" }, `Policy: ${frame.health.policies.placement_policy}. Transfers that are expected to run.`),
    table(["writer → replicas", "#size", "#rate", "#since", "#flows"], all.map((each) => ({
      cells: [`${each.writer_name} → ${each.destination_names.join(" → ")}`, size(each.size_bytes), rate(each.rate_bps),
        `${age(each.age_seconds)} of ${age(each.expected_seconds)}`, each.flows],
    })), "No placement is expected to be written."), more(frame.placements, all.length)];
}

function metadata(app, frame) {
  const servers = frame.metadata?.servers ?? [];
  if (!servers.length) return [h("p", { className: "dim" }, "No metadata server has announced itself: names are looked up at the nameserver.")];
  const lost = (app.model.blocks ?? []).filter((block) => !block.host);
  return [
    h("p", { className: "dim" }, `${servers.length} servers; the busiest has ${
      frame.metadata.busiest_over_mean?.toFixed(2) ?? "–"} times the mean. Requests go down this tree, from the core to the server that owns the key.`),
    lost.length ? h("p", { className: "bad" }, `Nobody owns ${lost.map((block) => block.block).join(", ")}.`) : null,
    treeNode(app, metadataTree(app, servers), 0, servers.length),
  ];
}

// The B-tree over the topology: servers are its leaves, and the switches above them that lead to the same places one node.
function metadataTree(app, servers) {
  const { nodes, links, numbers } = app.model.fabric;
  const above = (node) => node.links.map((number) => nodes[links[number].a === node.number ? links[number].b : links[number].a])
    .filter((other) => other.tier === node.tier + 1);
  const root = { name: "all servers", children: new Map(), servers: [] };
  for (const server of servers) {
    const way = [];
    for (let row = above(nodes[numbers.get(server.host)] ?? { links: [], tier: 0 }); row.length; row = [...new Set(row.flatMap(above))]) {
      way.unshift(row.map((node) => node.name).sort());
    }
    let node = root;
    node.servers.push(server);
    for (const names of way) {
      const name = names.length > 1 ? `${names[0]} … ${names.at(-1)} (${names.length})` : names[0];
      if (!node.children.has(name)) node.children.set(name, { name, children: new Map(), servers: [] });
      node = node.children.get(name);
      node.servers.push(server);
    }
    node.children.set(server.host, { server });
  }
  return root.children.size === 1 && root.children.values().next().value.children ? root.children.values().next().value : root;
}

function treeNode(app, node, depth, servers, path = "") {
  if (node.server) return leaf(app, node.server);
  const name = `${path}/${node.name}`, share = node.servers.reduce((sum, server) => sum + server.share, 0);
  const blocks = node.servers.reduce((sum, server) => sum + server.blocks.length, 0);
  const element = h("details", { className: "tree", open: app.folds.get(name) ?? (depth < 2 || servers <= MOST_OPEN) },
    h("summary", { data: { key: name } }, `${node.name} `, h("span", { className: "dim" }, `${percent(share)}, ${blocks} blocks`)),
    [...node.children.values()].map((child) => treeNode(app, child, depth + 1, servers, name)));
  element.addEventListener("click", (event) => {
    if (event.target.closest("details") === element && event.target.closest("summary")) app.folds.set(name, !element.open);
  });
  return element;
}

function leaf(app, server) {
  const moving = new Map((app.model.blocks ?? []).filter((block) => block.moving_to).map((block) => [block.block, block]));
  const blocks = server.blocks.slice(0, MOST_BLOCKS).map((block) => {
    const move = moving.get(block);
    return h("code", { className: move ? "moving" : "" }, move ? `${block} → ${move.moving_to}, ${move.phase}` : block);
  });
  return h("div", { className: "leaf" },
    h("span", { className: server.state === "silent" ? "bad" : "" }, `${server.host_name} ${server.state} `),
    h("span", { className: "dim" }, percent(server.share)), h("div", {}, blocks,
      server.blocks.length > MOST_BLOCKS ? ` and ${server.blocks.length - MOST_BLOCKS} more` : ""));
}

function turns(app, frame) {
  const said = frame.turns;
  if (!said || said.heard_seconds_ago === null) {
    return [h("p", { className: "dim" }, "No scheduler of turns has been heard of: hosts send when they like.")];
  }
  const silent = said.heard_seconds_ago > SILENT_SECONDS;
  const { numbers } = app.model.fabric;
  const pick = (address) => () => numbers.has(address) && app.pick({ kind: "node", node: numbers.get(address) });
  return [
    h("p", { className: silent ? "bad" : "dim" }, silent ? `The scheduler is silent for ${age(said.heard_seconds_ago)}: all hosts are free.`
      : `${said.policy}, slices of ${Math.round(1000 * said.slice_seconds)} ms, ${said.agents} agents. Pairs that nothing congests are free and not listed.`),
    table(["sender → receiver", "slice now", "#waited", "#queued"], silent ? [] : said.turns.map((turn) => ({
      key: `turn ${turn.source} ${turn.destination}`, pick: pick(turn.source),
      cells: [`${turn.source_name} → ${turn.destination_name}`, turn.rate_bps ? rate(turn.rate_bps) : "holds",
        turn.rate_bps ? "–" : `${Math.round(1000 * turn.waited_seconds)} ms`, size(turn.queued_bytes)],
    })), "No link is contended: all hosts are free."),
    more(said, said.turns.length),
  ];
}

function storage(app, frame) {
  const said = frame.storage;
  if (!said?.nameservers.length) return [h("p", { className: "dim" }, "No nameserver has reported to this controller.")];
  const { namespace } = said, { numbers } = app.model.fabric;
  return [
    table(["nameserver", "state", "#heard"], said.nameservers.map((each) => ({
      cells: [each.address, h("span", { className: { leads: "good", silent: "bad" }[each.state] ?? "" }, each.state),
        `${age(each.heard_seconds_ago)} ago`],
    })), ""),
    namespace ? h("p", {}, `${namespace.files} files in ${namespace.directories} directories; ${size(namespace.available_bytes)} of ${
      size(namespace.capacity_bytes)} free; ${namespace.replication} replicas, of which a change needs ${namespace.min_replicas}.`) : null,
    namespace?.unwritable_files ? h("p", { className: "bad" }, `${namespace.unwritable_files} files have too few live replicas to be changed.`) : null,
    (namespace?.warnings ?? []).map((warning) => h("p", { className: "bad" }, warning)),
    h("h3", {}, `Dataservers: ${namespace?.dataservers_alive ?? 0} of ${namespace?.dataservers_known ?? 0} alive`),
    table(["dataserver", "state", "fill", "#free", "#replicas"], said.dataservers.map((each) => {
      const used = each.capacity_bytes - each.available_bytes;
      const state = !each.alive ? `dead, ${age(each.heard_seconds_ago)}` : each.failed_directories
        ? `${each.failed_directories} ${each.failed_directories > 1 ? "disks" : "disk"} failed` : each.draining ? "draining" : "alive";
      return {
        key: `dataserver ${each.id}`, pick: () => numbers.has(each.host) && app.pick({ kind: "node", node: numbers.get(each.host) }),
        cells: [each.id, h("span", { className: state === "alive" ? "" : "bad" }, state),
          h("meter", { max: each.capacity_bytes || 1, value: used, high: 0.9 * each.capacity_bytes, ariaLabel: `${
            percent(each.capacity_bytes ? used / each.capacity_bytes : null)} full` }), size(each.available_bytes), each.replicas],
      };
    }), "No dataserver is known."), more({ total: namespace?.dataservers_known }, said.dataservers.length),
  ].flat();
}

function links(app, frame) {
  const { links: all, nodes } = app.model.fabric;
  const ways = all.flatMap((link) => [[link, 0, link.a, link.b], [link, 1, link.b, link.a]])
    .map(([link, way, from, to]) => ({ link, way, from, to, load: app.model.load(frame, link.number, way) }));
  const down = ways.filter((each) => each.load === DOWN && each.way === 0);
  const busy = ways.filter((each) => each.load > 0).sort((a, b) => b.load - a.load).slice(0, 40);
  return [table(["link", "#load", "#rate", "#capacity"], [...down, ...busy].map(({ link, way, from, to, load }) => ({
    key: `link ${link.number} ${way}`, pick: () => app.pick({ kind: "link", link: link.number }),
    cells: [`${nodes[from].name} → ${nodes[to].name}`, percent(load),
      load === DOWN ? "–" : rate(load * link.capacity[way]), rate(link.capacity[way])],
  })), "No link carries anything.")];
}

function health(app, frame) {
  const said = frame.health;
  return [
    h("p", {}, `Controller ${said.version}, up for ${age(said.uptime_seconds)}. Switches: ${said.switches_connected} of ${
      said.switches_known} connected. Last poll of all: ${said.last_poll_age_seconds === null ? "none yet"
      : `${said.last_poll_age_seconds.toFixed(1)} s ago`}.`),
    h("p", {}, `Policies: replicas ${said.policies.replica_policy}, paths ${said.policies.path_policy}, placements ${
      said.policies.placement_policy}.`),
    h("h3", {}, "Troubles"),
    table(["what", "problem", "#since"], said.troubles.map((each) => ({
      cells: [each.name, each.problem, age(each.age_seconds)],
    })), "None."),
  ];
}

export const VIEWS = [
  { id: "reads", name: "Reads", draw: reads, count: (frame) => frame.reads?.total },
  { id: "coflows", name: "Coflows", draw: coflows, count: (frame) => frame.coflows?.total },
  { id: "turns", name: "Turns", draw: turns, count: (frame) => frame.turns?.total || undefined },
  { id: "placements", name: "Placements", draw: placements, count: (frame) => frame.placements?.total },
  { id: "metadata", name: "Metadata", draw: metadata, count: (frame) => frame.metadata?.servers.length || undefined },
  { id: "storage", name: "Storage", draw: storage, count: (frame) => frame.storage?.total || undefined },
  { id: "links", name: "Links", draw: links, count: () => undefined },
  { id: "health", name: "Health", draw: health, count: (frame) => frame.health?.troubles.length || undefined },
];

// --- what is selected ---

export function detail(app, frame, selection) {
  if (selection.kind === "link") return linkDetail(app, frame, app.model.fabric.links[selection.link]);
  if (selection.kind === "node") return nodeDetail(app, frame, app.model.fabric.nodes[selection.node]);
  return flowDetail(app, frame, selection.flow);
}

function linkDetail(app, frame, link) {
  const { nodes } = app.model.fabric;
  const flows = app.model.flows(frame).filter((flow) => flow.path.some((node, index) => index > 0
    && app.model.fabric.link(flow.path[index - 1], node) === link.number));
  const rest = notAll(app, frame, link.number), { found } = app.model;
  const way = (index, from, to) => {
    const load = app.model.load(frame, link.number, index);
    const carried = load === null || load === DOWN ? "–" : rate(load * link.capacity[index]);
    return h("p", {}, `${nodes[from].name} → ${nodes[to].name}: ${percent(load)}, ${carried} of ${rate(link.capacity[index])}`);
  };
  return [`Link ${nodes[link.a].name} – ${nodes[link.b].name}`, way(0, link.a, link.b), way(1, link.b, link.a),
    table(["", "transfer", "#measured", "#share"], flowRows(app, flows), rest || found?.isAsked ? "" : "No transfer that the controller steers goes over it."), rest,
    found?.isAsked ? h("p", { className: "dim" }, "Transfers beyond those of the views are shown as they were when the link was chosen.") : null];
}

function nodeDetail(app, frame, node) {
  const flows = app.model.flows(frame).filter((flow) => flow.path.includes(node.number));
  const neighbours = node.links.map((number) => {
    const link = app.model.fabric.links[number], out = link.a === node.number ? 0 : 1;
    const other = app.model.fabric.nodes[out ? link.a : link.b];
    return { key: `link ${number}`, pick: () => app.pick({ kind: "link", link: number }), other,
      load: app.model.busiest(frame, number),
      cells: [other.name, percent(app.model.load(frame, number, out)), percent(app.model.load(frame, number, 1 - out))] };
  }).sort((a, b) => b.load - a.load);
  return [`${node.tier ? "Switch" : "Host"} ${node.name}`, h("p", { className: "dim" }, node.id),
    table(["link to", "#sends", "#receives"], neighbours, "It has no links."),
    flows.length ? table(["", "transfer", "#measured", "#share"], flowRows(app, flows), "") : null, notAll(app, frame)];
}

function flowDetail(app, frame, key) {
  const flows = app.model.flows(frame).filter((flow) => key.endsWith("/") ? flow.key.startsWith(key) : flow.key === key);
  if (!flows.length) return ["This transfer", h("p", { className: "dim" }, "It has ended, or is not told of at this time.")];
  const { read, member: first } = flows[0];
  if (first) {
    return [`Coflow ${first.coflow.slice(-8)}`, h("p", {}, first.position === null ? first.coflow_state
      : `${first.coflow_state}, number ${first.position + 1} in the order of service.`),
      table(["flow", "queue", "#rate", "path"], flows.map(({ member }) => ({
        cells: [`${member.source_name} → ${member.destination_name}`, member.queue, rate(member.rate_bps),
          member.path_names.slice(1, -1).join(" → ") || member.state],
      })), ""), key.endsWith("/") ? showMore(app) : null];
  }
  const named = read.file_id ? ` of ${read.file_id}` : "";
  return [`${read.placement_id ? "Write" : "Read"} by ${read.client_name}${named}`,
    h("p", {}, `${size(read.size_bytes)}, chosen by ${read.replica_policy} (replica) and ${read.path_policy} (path), ${
      age(read.age_seconds)} ago.`),
    flows.map(({ part }) => partDetail(part, read))];
}

function partDetail(part, read) {
  const cost = (each) => each.cost_seconds ?? Infinity;
  const weighed = [...part.considered].sort((a, b) => cost(a) - cost(b));
  const chosen = part.replica.host, plus = read.replica_policy === "mayflower-plus";
  const least = plus ? weighed[0]?.cost_seconds : part.cost_seconds;
  return h("div", { className: "part" },
    h("h3", {}, `Part ${part.number + 1}: from ${part.replica.host_name}`),
    h("p", {}, part.path_names.join(" → ") || "on the same host"),
    h("p", {}, `Measured ${rate(part.measured_bps)}, share ${rate(part.share_bps)}${part.frozen ? " (estimate, frozen)" : ""}; ${
      size(part.transferred_bytes)} of ${size(part.size_bytes)}${part.reroutes ? `; moved ${part.reroutes} times` : ""}.`),
    weighed.length > 1 ? h("h3", {}, "Why this replica") : null,
    weighed.length > 1 ? table(["replica", plus ? "#alone" : "#cost when chosen", ""], weighed.map((each) => ({
      cells: [each.host_name, `${!plus && each.host !== chosen && each.cost_seconds > least ? "≥ " : ""}${seconds(each.cost_seconds)}`,
        each.host === chosen ? "taken" : each.cost_seconds === null ? "nothing free" : each.cost_seconds > least
          ? `+ ${seconds(each.cost_seconds - least)}` : "as good"],
    })), "") : null,
    h("p", { className: "dim" }, weighed.length < 2 ? weighed.length ? "It was the only replica to choose from."
      : `${read.replica_policy} does not tell costs of single replicas.`
      : plus ? "Taken: most to spare on its freest path. The time is that of the whole read with this alone." : ""));
}
