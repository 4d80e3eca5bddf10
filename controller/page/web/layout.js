// Where nodes are: tiers from the core down to the hosts, each in the order of what is below it.
// x is in places of hosts, y a part of the height. Zooming stretches x alone: the tiers always fill the height.

const natural = new Intl.Collator("en", { numeric: true });

export function place({ nodes, links }) {
  const tiers = [];
  for (const node of nodes) (tiers[node.tier] ??= []).push(node);
  for (let tier = 0; tier < tiers.length; tier++) (tiers[tier] ??= []).sort((a, b) => natural.compare(a.name, b.name));
  const others = (node, tier) => node.links
    .map((number) => nodes[links[number].a === node.number ? links[number].b : links[number].a])
    .filter((other) => other.tier === tier);
  const mean = (some) => some.reduce((sum, node) => sum + node.x, 0) / some.length;

  // Hosts go below their edge switch; edge switches stay in the order of their names.
  const hosts = [], seen = new Set();
  for (const edge of tiers[1] ?? []) {
    const below = others(edge, 0).filter((host) => !seen.has(host)).sort((a, b) => natural.compare(a.name, b.name));
    below.forEach((host) => seen.add(host));
    hosts.push(...(below.length ? below : [null])); // a switch without hosts has a place too
    if (hosts.at(-1) !== undefined) hosts.push(undefined); // a gap between racks
  }
  hosts.push(...(tiers[0] ?? []).filter((host) => !seen.has(host)));
  let x = 0;
  const gap = 0.6, empty = [];
  for (const host of hosts) {
    if (host === undefined) x += gap;
    else if (host === null) empty.push(x++);
    else host.x = x++;
  }
  const width = Math.max(x - gap, 1);
  for (const edge of tiers[1] ?? []) {
    const below = others(edge, 0).filter((host) => host.x !== undefined);
    edge.x = below.length ? mean(below) : empty.shift();
  }
  for (let tier = 2; tier < tiers.length; tier++) {
    const row = tiers[tier];
    for (const node of row) {
      const below = others(node, tier - 1);
      node.wish = below.length ? mean(below) : width / 2;
    }
    row.sort((a, b) => a.wish - b.wish || natural.compare(a.name, b.name));
    row.forEach((node, index) => { node.x = (index + 0.5) * width / row.length - 0.5; });
  }
  const top = Math.max(tiers.length - 1, 1);
  for (const node of nodes) node.y = 1 - node.tier / top;
  // Two rows do not overlap at a glance if those of one tier are in one row: sort them for the arrow keys.
  const rows = tiers.map((row) => row.toSorted((a, b) => a.x - b.x)).reverse().filter((row) => row.length);
  return { width, rows };
}
