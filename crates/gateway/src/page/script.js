// Swaps in the part of the page that changes, gives orders, and plays two devices.
import { connect } from "./distlock-gateway.js";

const byId = (id) => document.getElementById(id);
const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });

// A time in an element of its own, which is never broken into two lines.
function time(text) {
  const it = document.createElement("time");
  it.textContent = text;
  return it;
}
const clockTime = (ms) => time(clock(ms));
const dayTime = (ms) => time(new Date(ms).toLocaleString([], { hour12: false }));

let answeredAt = Date.now();

function live(text, broken) {
  const line = byId("live");
  line.textContent = text;
  line.toggleAttribute("data-broken", broken);
  byId("state").toggleAttribute("data-stale", broken);
}

// What was true of a node that is silent now must not look as if it still were.
function silent() {
  live(`no answer since ${clock(answeredAt)}; what is below is from then`, true);
  byId("state").querySelectorAll(".tiles dd").forEach((value, at) => {
    value.textContent = at === 0 ? "no answer" : "?";
    value.parentElement.toggleAttribute("data-warns", at === 0);
  });
}

async function refresh() {
  try {
    // A node that is stopped, or out of reach, would never refuse.
    const answer = await fetch("/page/state", { signal: AbortSignal.timeout(10_000) });
    if (answer.status === 401) return location.reload();
    const part = await answer.json();
    answeredAt = Date.now();
    byId("state").innerHTML = part.html;
    takeovers(part.takeovers);
    offer(part.nodes);
    listNodes(part.sessions);
    labelCells();
    live("live", false);
  } catch {
    silent();
  }
  setTimeout(refresh, 1000);
}

// On a narrow screen a cell stands beside the name of its column: see style.css.
function labelCells() {
  for (const table of document.querySelectorAll("table")) {
    const names = [...table.tHead.rows[0].cells].map((it) => it.textContent);
    for (const line of table.tBodies[0].rows)
      [...line.cells].forEach((cell, at) => (cell.dataset.column = names[at]));
  }
}

// Every node that says where its clients connect, the second device on another node than the first.
function offer(nodes) {
  document.querySelectorAll(".device select").forEach((select, at) => {
    const known = [...select.options].map((option) => option.textContent + option.value);
    const now = nodes.map(({ node, front }) => node + address(front));
    if (known.join() === now.join()) return;
    const chosen = select.options.length > 1 ? select.selectedOptions[0].textContent : null;
    select.replaceChildren(...nodes.map(({ node, front }) => new Option(node, address(front))));
    const before = nodes.findIndex(({ node }) => node === chosen);
    select.selectedIndex = before >= 0 ? before : at % Math.max(nodes.length, 1);
  });
}

// A node that listens everywhere is reached under the name that this page was reached by.
function address(front) {
  const [, host, port] = /^(.*):(\d+)$/.exec(front) ?? [null, front, "80"];
  const everywhere = host === "0.0.0.0" || host === "[::]";
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  return `${scheme}://${everywhere ? location.hostname : host}:${port}/ws`;
}

// The newest takeovers of all nodes, each with the time at the node that saw it.
function takeovers(newest) {
  if (newest.length === 0) return;
  const place = (device, node) => (device ? `${device} on ${node}` : node);
  const took = (us) => (us === null ? "" : `${(us / 1000).toFixed(1)} ms`);
  byId("takeovers").replaceChildren(
    ...newest.map((it) => {
      const from = place(it.from_device, it.from_node);
      const to = place(it.to_device, it.to_node);
      const line = row([clockTime(it.at_ms), it.uid, from, to, it.seen_by, took(it.took_us)]);
      line.lastElementChild.className = "n";
      return line;
    }),
  );
}

// A line of a table; each part is a text or an element.
function row(parts, cell = "td") {
  const line = document.createElement("tr");
  for (const part of parts) {
    const it = document.createElement(cell);
    it.append(part);
    line.append(it);
  }
  return line;
}

// The half of the pass that this tab keeps. A browser sends the cookie, the other half, to every
// port of the host, so orders need both.
const PASS = "distlock-pass";

async function ask(method, path, body) {
  const pass = sessionStorage.getItem(PASS) ?? "";
  const headers = { "x-distlock-pass": pass, "x-distlock-actor": "page" };
  if (body) headers["content-type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const says = await answer.json();
  if (answer.status === 401) locked();
  if (!answer.ok) throw new Error(says.error);
  return says;
}

function locked() {
  byId("locked").hidden = false;
  byId("sign-out").hidden = true;
  for (const button of byId("orders").querySelectorAll("button")) button.disabled = true;
}

const count = (many, one) => `${many} ${one}${many === 1 ? "" : "s"}`;
const ended = (kicked) => {
  const gone = kicked.filter((it) => it.gone).length;
  const rest = kicked.length - gone;
  return count(gone, "session") + " ended" + (rest ? `, ${rest} not known to be gone yet` : "");
};
const account = (uid) => `/v1/users/${encodeURIComponent(uid)}`;

// All nodes, and how many sessions each has: null where a node did not answer.
let onlineAt = [];

function listNodes(nodes) {
  onlineAt = nodes;
  const select = byId("orders").elements.node;
  const names = ["", ...nodes.map(({ node }) => node)];
  if (names.join() === [...select.options].map((it) => it.value).join()) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => new Option(name || "all nodes", name)));
  select.value = names.includes(chosen) ? chosen : "";
}

// The sessions on a node, or on all; null where that is not known.
function onlineOn(node) {
  const asked = onlineAt.filter((it) => !node || it.node === node);
  if (asked.length === 0 || asked.some((it) => it.sessions === null)) return null;
  return asked.reduce((sum, it) => sum + it.sessions, 0);
}

// A list begins with its first entries. The text says how many there are in all, if that is known.
const LISTED = 100;

function listed(one, many, lines, total, names) {
  if (lines.length === 0) return `no ${many}`;
  if (total === 1) return [`1 ${one}`, tableOf(names, lines)];
  const all = total === lines.length ? total : `the first ${lines.length} of ${total ?? "more"}`;
  return [`${all} ${many}`, tableOf(names, lines)];
}

function tableOf(names, lines) {
  const table = document.createElement("table");
  table.createTHead().append(row(names, "th"));
  table.createTBody().append(...lines.map((line) => row(line)));
  return table;
}

// What each button asks for, whether it needs no account, whether it is asked twice, and what is
// said when it is done.
const ORDERS = {
  look: { send: ({ uid }) => ask("GET", account(uid)), says: look },
  kick: {
    sure: ({ uid }) => `End every session of ${uid}?`,
    send: ({ uid, reason }) => ask("POST", "/v1/kick", { uid, reason }),
    says: ({ kicked }) => ended(kicked),
  },
  ban: {
    sure: ({ uid, ttl }) => `Ban ${uid} ${ttl ? `for ${ttl}` : "without end"}?`,
    send: ({ uid, reason, ttl }) => ask("POST", "/v1/ban", { uid, reason, ttl }),
    says: ({ uid, ban, kicked }) => {
      const end = ban.until_ms
        ? `until ${new Date(ban.until_ms).toLocaleString()}`
        : "without end";
      return `${uid} is banned ${end}; ${ended(kicked)}`;
    },
  },
  unban: {
    send: ({ uid }) => ask("DELETE", `/v1/ban?uid=${encodeURIComponent(uid)}`),
    says: ({ uid, lifted }) => (lifted ? `the ban of ${uid} is lifted` : `${uid} was not banned`),
  },
  drain: {
    anybody: true,
    sure: ({ rate }) => `Send the sessions of this node elsewhere, ${rate} a second?`,
    send: ({ rate }) => ask("POST", "/v1/drain", { rate: Number(rate) }),
    says: ({ sessions }) => `this node drains; ${count(sessions, "session")} left`,
  },
  undrain: {
    anybody: true,
    send: () => ask("DELETE", "/v1/drain"),
    says: () => "this node takes logins again",
  },
  sessions: {
    anybody: true,
    send: ({ node }) => {
      const of = node ? `&node=${encodeURIComponent(node)}` : "";
      return ask("GET", `/v1/sessions?limit=${LISTED}${of}`);
    },
    says: ({ sessions, next }, { node }) => {
      const line = (it) => [it.uid, it.device, it.class, it.node, dayTime(it.since_ms)];
      const lines = sessions.map(line);
      const total = next ? onlineOn(node) : lines.length;
      const names = ["account", "device", "class", "node", "since"];
      return listed("session", "sessions", lines, total, names);
    },
  },
  revocations: {
    anybody: true,
    send: () => ask("GET", `/v1/revocations?limit=${LISTED}`),
    says: ({ revocations, total }) => {
      const why = (it) => it.reason ?? `code ${it.code}`;
      const lines = revocations.map((it) => [it.uid, it.node, it.session, why(it)]);
      const one = "session that is not known to be gone";
      const many = "sessions that are not known to be gone";
      return listed(one, many, lines, total, ["account", "node", "session", "why"]);
    },
  },
  bans: {
    anybody: true,
    send: () => ask("GET", `/v1/bans?limit=${LISTED}`),
    says: ({ bans, total }) => {
      const end = ({ until_ms }) => (until_ms ? dayTime(until_ms) : "no end");
      const lines = bans.map((it) => [it.uid, it.reason ?? "", end(it)]);
      return listed("ban", "bans", lines, total, ["account", "reason", "until"]);
    },
  },
  audit: {
    anybody: true,
    send: () => ask("GET", `/v1/audit?limit=${LISTED}`),
    says: ({ entries, total }) => {
      const by = (it) => (it.by ? `${it.by} at ${it.from}` : it.from);
      const what = (it) => (it.reason ? `${it.action}: ${it.reason}` : it.action);
      const of = (it) => [dayTime(it.at_ms), it.node, what(it), it.target, by(it), it.result];
      const names = ["time", "node", "order", "about", "by", "result"];
      return listed("order", "orders", entries.map(of), total, names);
    },
  },
};

// An account's sessions, as a table.
function look({ uid, record, nodes }) {
  if (!record) return `${uid} has never logged in`;
  const parts = [];
  const why = record.ban?.reason ? `: ${record.ban.reason}` : "";
  if (record.ban) parts.push(`${uid} is banned${why}`);
  const slots = Object.entries(record.slots);
  parts.push(`${uid}: ${count(slots.length, "session")}, generation ${record.gen}`);
  const waiting = record.revocations?.length ?? 0;
  if (waiting) parts.push(`${count(waiting, "session")} must go and are not known to be gone`);
  if (slots.length === 0) return parts;
  const lines = slots.map(([slot, it]) => {
    const own = nodes.find(({ node, boot }) => node === it.node && boot === it.boot);
    const state = own?.state ?? "?";
    return [slot, it.device, it.class, it.node, state, dayTime(it.since_ms)];
  });
  return [...parts, tableOf(["slot", "device", "class", "node", "node is", "since"], lines)];
}

function orders(form) {
  const say = (parts, bad) => {
    const lines = [parts].flat().map((part) => {
      if (part instanceof Node) return part;
      const line = document.createElement("p");
      line.textContent = part;
      if (bad) line.className = "trouble";
      return line;
    });
    byId("answer").replaceChildren(...lines);
    labelCells();
  };
  if (!sessionStorage.getItem(PASS)) locked();
  form.onsubmit = async (event) => {
    event.preventDefault();
    const order = ORDERS[event.submitter?.value ?? "look"];
    const given = [...new FormData(form)].map(([name, text]) => [name, text.trim() || undefined]);
    const fields = Object.fromEntries(given);
    if (!order.anybody && !fields.uid) return say("name an account", true);
    if (order.sure && !confirm(order.sure(fields))) return;
    try {
      say(order.says(await order.send(fields), fields));
    } catch (error) {
      say(error.message, true);
    }
  };
}

// A device of the playground: a session of the client that programs use, too.
function device(box) {
  const [badge, log, select] = [".badge", ".log", "select"].map((it) => box.querySelector(it));
  const [enter, leave] = [".in", ".out"].map((it) => box.querySelector(it));
  let session = null;

  const show = (state, text) => {
    badge.dataset.state = state;
    badge.textContent = text;
    enter.disabled = session !== null;
    leave.disabled = session === null;
  };
  const say = (text, bad) => {
    const line = document.createElement("li");
    line.append(clockTime(Date.now()), text);
    line.classList.toggle("bad", Boolean(bad));
    log.append(line);
    while (log.children.length > 12) log.firstElementChild.remove();
  };
  const token = async () => {
    const answer = await fetch("/page/token", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ account: byId("account").value }),
    });
    const { token, error } = await answer.json();
    if (error) {
      say(error, true);
      session?.close();
    }
    return token;
  };

  enter.onclick = () => {
    if (select.value === "") return say("no node says where its clients connect", true);
    // The chosen node first, and the others for the case that it drains or dies.
    const nodes = [...select.options].map(({ value }) => value);
    const chosen = nodes.splice(0, select.selectedIndex);
    let start = performance.now();
    let wasIn = false;
    session = connect({
      addresses: [...nodes, ...chosen],
      token,
      device: box.dataset.device,
      onOpen: ({ node, gen }) => {
        wasIn = true;
        show("in", `in on ${node}`);
        const took = (performance.now() - start).toFixed(0);
        say(`is in on ${node} after ${took} ms, generation ${gen}`);
      },
      onReconnecting: ({ code, reason, delay }) => {
        show("out", "reconnecting");
        const why = code === null ? reason : `${reason}, code ${code}`;
        say(`${why}: tries again in ${delay.toFixed(0)} ms`, true);
        start = performance.now() + delay;
      },
    });
    show("out", "connecting");
    say(`logs in on ${select.selectedOptions[0].textContent}`);
    session.ended.then(({ code, reason, byDevice }) => {
      session = null;
      const kicked = wasIn && code !== null;
      show(kicked ? "kicked" : "out", kicked ? "kicked out" : "not logged in");
      if (code === null) return say(reason);
      const by = byDevice ? ` (${byDevice})` : "";
      say(`${kicked ? "logged out" : "denied"}: ${reason}${by}, code ${code}`, true);
      say("has said bye and closed the connection");
    });
  };
  leave.onclick = () => session.close();
}

function signIn(form) {
  const show = async (token) => {
    const answer = await fetch("/page/sign-in", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ token }),
    });
    if (answer.ok) {
      sessionStorage.setItem(PASS, (await answer.json()).pass);
      location.replace("/");
    } else byId("refused").hidden = false;
  };
  form.onsubmit = (event) => {
    event.preventDefault();
    show(byId("token").value);
  };
  // A link may hold the token behind its '#': a browser sends that to nobody. It is not left in
  // the history.
  const [, linked] = /^#token=(.+)$/.exec(location.hash) ?? [];
  if (linked) {
    history.replaceState(null, "", location.pathname);
    show(decodeURIComponent(linked));
  }
}

async function signOut() {
  const headers = { "x-distlock-pass": sessionStorage.getItem(PASS) ?? "" };
  await fetch("/page/sign-out", { method: "POST", headers });
  sessionStorage.removeItem(PASS);
  location.reload();
}

const form = byId("sign-in");
if (form) {
  signIn(form);
} else {
  document.querySelectorAll(".device").forEach(device);
  byId("sign-out").onclick = signOut;
  orders(byId("orders"));
  refresh();
}
