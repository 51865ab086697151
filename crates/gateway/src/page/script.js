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
  const buttons = document.querySelectorAll("#orders button, #lists button, #pager button");
  for (const button of buttons) button.disabled = true;
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
  const select = byId("lists").elements.node;
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
  send: {
    send: ({ uid, text, from }) => {
      if (!text || !from) throw new Error("name a text, and the account that it is from");
      return ask("POST", `${account(uid)}/message`, { from, body: text });
    },
    says: ({ outcome, devices }) => {
      const on = devices.map((it) => `${it.device}: ${it.outcome}`).join(", ");
      return `the message is ${outcome}${on ? ` (${on})` : ""}`;
    },
  },
};

// A button that looks up an account.
function accountLink(uid) {
  const link = document.createElement("button");
  link.type = "button";
  link.className = "link";
  link.textContent = uid;
  link.onclick = () => {
    byId("orders").elements.uid.value = uid;
    byId("o").scrollIntoView();
    give(ORDERS.look, { uid });
  };
  return link;
}

const untilTime = ({ until_ms }) => (until_ms ? dayTime(until_ms) : "no end");

// An account: its ban, the messages that wait for it, and its sessions as a table.
function look({ uid, record, nodes, waiting }) {
  const many = waiting === null ? "an unknown number of messages" : count(waiting, "message");
  const kept = `${many} waiting`;
  if (!record) return [`${uid} has never logged in; ${kept}`];
  const parts = [];
  const why = record.ban?.reason ? `: ${record.ban.reason}` : "";
  if (record.ban) {
    const line = document.createElement("p");
    const { until_ms } = record.ban;
    line.append(`${uid} is banned${why}, `);
    line.append(...(until_ms ? ["until ", dayTime(until_ms)] : ["without end"]));
    parts.push(line);
  }
  const slots = Object.entries(record.slots);
  parts.push(`${uid}: ${count(slots.length, "session")}, ${kept}, generation ${record.gen}`);
  const pending = record.revocations?.length ?? 0;
  if (pending) parts.push(`${count(pending, "session")} must go and are not known to be gone`);
  if (slots.length === 0) return parts;
  const operates = byId("orders").hasAttribute("data-operates");
  const lines = slots.map(([slot, it]) => {
    const own = nodes.find(({ node, boot }) => node === it.node && boot === it.boot);
    const line = [slot, it.device, it.class, `${it.node} (${own?.state ?? "?"})`, ...client(it)];
    return operates ? [...line, kickButton(uid, it)] : line;
  });
  const names = ["slot", "device", "class", "node", "address", "version", "since"];
  return [...parts, tableOf(operates ? [...names, "end it"] : names, lines)];
}

// Where the client of a session is, what it runs, and since when.
const client = (it) => [it.address ?? "?", it.version ?? "?", dayTime(it.since_ms)];

// Ends one session, and looks up its account again.
function kickButton(uid, { session, device }) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Kick";
  button.onclick = () => {
    const send = async () => {
      const body = { uid, session, reason: filled(byId("orders")).reason };
      const { kicked } = await ask("POST", "/v1/kick", body);
      return { kicked, account: await ask("GET", account(uid)) };
    };
    const says = (it) => [ended(it.kicked), ...look(it.account)];
    give({ sure: () => `End the session of ${uid} on ${device}?`, send, says }, { uid });
  };
  return button;
}

// Shows texts and elements in a part of the page.
function say(where, parts, bad) {
  const lines = [parts].flat().map((part) => {
    if (part instanceof Node) return part;
    const line = document.createElement("p");
    line.textContent = part;
    if (bad) line.className = "trouble";
    return line;
  });
  byId(where).replaceChildren(...lines);
  labelCells();
}

// Gives an order, and says what came of it.
async function give(order, fields) {
  if (order.sure && !confirm(order.sure(fields))) return;
  try {
    say("answer", order.says(await order.send(fields), fields));
  } catch (error) {
    say("answer", error.message, true);
  }
}

// The filled fields of a form.
function filled(form) {
  const given = [...new FormData(form)].map(([name, text]) => [name, text.trim()]);
  return Object.fromEntries(given.filter(([, text]) => text !== ""));
}

function orders(form) {
  if (!sessionStorage.getItem(PASS)) locked();
  form.onsubmit = (event) => {
    event.preventDefault();
    const order = ORDERS[event.submitter?.value ?? "look"];
    const fields = filled(form);
    if (!order.anybody && !fields.uid) return say("answer", "name an account", true);
    give(order, fields);
  };
}

// Entries of one page of a list. The page says how many there are in all, if that is known.
const LISTED = 100;

// The lists: where each is, by which fields it can be searched, and how an entry is shown.
const LISTS = {
  sessions: {
    path: "/v1/sessions",
    by: ["prefix", "device", "class", "address", "node"],
    called: ["session", "sessions"],
    covers:
      "From the store's directory, so of all nodes. Sessions of a node that died are left out " +
      "when its lease has ended.",
    entries: ({ sessions }) => sessions,
    // The nodes count their sessions, and nobody counts those that a search finds.
    total: ({ next }, last, { node, ...search }) => {
      if (next === undefined) return last;
      const online = Object.keys(search).length ? null : onlineOn(node);
      return online > last ? online : null;
    },
    names: ["account", "device", "class", "node", "address", "version", "since"],
    line: (it) => [accountLink(it.uid), it.device, it.class, it.node, ...client(it)],
  },
  bans: {
    path: "/v1/bans",
    by: ["prefix"],
    called: ["ban", "bans"],
    covers: "A search for bans is by account.",
    entries: ({ bans }) => bans,
    total: ({ next }, last) => (next === undefined ? last : null),
    names: ["account", "reason", "until"],
    line: (it) => [accountLink(it.uid), it.reason ?? "", untilTime(it)],
  },
  audit: {
    path: "/v1/audit",
    by: [],
    called: ["order", "orders"],
    covers: "The last 200 orders of each node that changed something. The log has every order.",
    entries: ({ entries }) => entries,
    total: ({ total }) => total,
    names: ["time", "node", "order", "about", "by", "result"],
    line: (it) => {
      const what = it.reason ? `${it.action}: ${it.reason}` : it.action;
      return [dayTime(it.at_ms), it.node, what, it.target, `${it.by} at ${it.from}`, it.result];
    },
  },
  revocations: {
    path: "/v1/revocations",
    by: [],
    called: ["session that is not known to be gone", "sessions that are not known to be gone"],
    entries: ({ revocations }) => revocations,
    total: ({ total }) => total,
    names: ["account", "node", "session", "why"],
    line: (it) => [accountLink(it.uid), it.node, it.session, it.reason ?? `code ${it.code}`],
  },
};

// The list that was asked for last.
let listing = null;

// Shows a page of a list. `places` says where this page begins, and each page before it.
async function showPage(name, search, places) {
  const { path, called, covers, entries, total, names, line } = LISTS[name];
  const asked = {};
  listing = asked;
  const { after, before } = places.at(-1);
  const query = new URLSearchParams({ ...search, limit: LISTED });
  if (after !== undefined) query.set("after", after);
  try {
    const answer = await ask("GET", `${path}?${query}`);
    // Another list was asked for meanwhile.
    if (listing !== asked) return;
    const found = entries(answer);
    const { next } = answer;
    const last = before + found.length;
    const [one, many] = called;
    const all = total(answer, last, search);
    let title = `${before + 1} to ${last}${all === null ? "" : ` of ${all}`} ${many}`;
    if (found.length === 0) title = `no ${before ? "further " : ""}${many}`;
    else if (before === 0 && all === last) title = last === 1 ? `1 ${one}` : `${last} ${many}`;
    const parts = [title];
    if (covers) parts.push(covers);
    if (next !== undefined && found.length < LISTED)
      parts.push(`The search has come to ${next}, and goes on with the next page.`);
    if (found.length) parts.push(tableOf(names, found.map(line)));
    say("list", parts);
    const following = next === undefined ? [] : [{ after: next, before: last }];
    byId("previous").disabled = places.length === 1;
    byId("next").disabled = following.length === 0;
    byId("previous").onclick = () => showPage(name, search, places.slice(0, -1));
    byId("next").onclick = () => showPage(name, search, [...places, ...following]);
    byId("pager").hidden = places.length === 1 && following.length === 0;
  } catch (error) {
    if (listing === asked) say("list", error.message, true);
  }
}

function lists(form) {
  form.onsubmit = (event) => {
    event.preventDefault();
    const name = event.submitter?.value ?? "sessions";
    const search = Object.entries(filled(form)).filter(([field]) => LISTS[name].by.includes(field));
    byId("pager").hidden = true;
    showPage(name, Object.fromEntries(search), [{ after: undefined, before: 0 }]);
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
      version: "live page",
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
  lists(byId("lists"));
  refresh();
}
