// Swaps in the part of the page that changes, follows the takeovers, and plays two devices.
"use strict";

const byId = (id) => document.getElementById(id);
const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });

function live(text, broken) {
  const line = byId("live");
  line.textContent = text;
  line.toggleAttribute("data-broken", broken);
}

async function refresh() {
  try {
    const answer = await fetch("/page/state");
    if (answer.status === 401) return location.reload();
    const { html, nodes } = await answer.json();
    byId("state").innerHTML = html;
    offer(nodes);
    live("live", false);
  } catch {
    live("the node does not answer", true);
  }
  setTimeout(refresh, 1000);
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

function follow() {
  const rows = byId("takeovers");
  const source = new EventSource("/page/takeovers");
  source.onmessage = ({ data }) => {
    const it = JSON.parse(data);
    const place = (device, node) => (device ? `${device} on ${node}` : node);
    const took = it.took_us === null ? "told here" : `${(it.took_us / 1000).toFixed(1)} ms`;
    const row = document.createElement("tr");
    const cells = [clock(it.at_ms), it.uid, place(it.from_device, it.from_node), place(it.to_device, it.to_node), took];
    for (const [at, text] of cells.entries()) {
      const cell = row.insertCell();
      cell.textContent = text;
      if (at === 4) cell.className = "n";
    }
    rows.querySelector(".none")?.remove();
    rows.prepend(row);
    while (rows.rows.length > 30) rows.lastElementChild.remove();
  };
}

function device(box) {
  const [badge, log, select] = [".badge", ".log", "select"].map((it) => box.querySelector(it));
  const [enter, leave] = [".in", ".out"].map((it) => box.querySelector(it));
  let socket = null;

  const show = (state, text) => {
    badge.dataset.state = state;
    badge.textContent = text;
    enter.disabled = socket !== null;
    leave.disabled = state !== "in";
  };
  const say = (text, bad) => {
    const line = document.createElement("li");
    const time = document.createElement("time");
    time.textContent = clock(Date.now());
    line.append(time, text);
    line.classList.toggle("bad", Boolean(bad));
    log.append(line);
    while (log.children.length > 12) log.firstElementChild.remove();
  };

  enter.onclick = async () => {
    const node = select.selectedOptions[0]?.textContent;
    if (!node) return say("no node says where its clients connect", true);
    const answer = await fetch("/page/token", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ account: byId("account").value }),
    });
    const { token, error } = await answer.json();
    if (error) return say(error, true);
    const mine = new WebSocket(select.value);
    socket = mine;
    let told = false;
    show("out", "connecting");
    const start = performance.now();
    mine.onopen = () => {
      mine.send(JSON.stringify({ type: "login", token, device: box.dataset.device, class: "", intent: "login" }));
      say(`logs in on ${node}`);
    };
    mine.onmessage = ({ data }) => {
      const frame = JSON.parse(data);
      if (frame.type === "login_ok") {
        show("in", `in on ${frame.node}`);
        say(`is in on ${frame.node} after ${(performance.now() - start).toFixed(0)} ms, generation ${frame.gen}`);
      } else if (frame.type === "offline") {
        told = true;
        say(`told: ${frame.reason}${frame.by_device ? ` (${frame.by_device})` : ""}, code ${frame.code}`, true);
        mine.send(JSON.stringify({ type: "bye" }));
        mine.close(1000);
        say("says bye and closes");
      } else if (["busy", "denied", "superseded", "error"].includes(frame.type)) {
        say(`${frame.type} ${frame.reason ?? ""}`, true);
        mine.close(1000);
      }
    };
    mine.onclose = () => {
      socket = null;
      show(told ? "kicked" : "out", told ? "kicked out" : "not logged in");
      say("connection closed");
    };
  };
  leave.onclick = () => {
    socket?.send(JSON.stringify({ type: "logout" }));
    socket?.close(1000);
  };
}

function signIn(form) {
  const show = async (token) => {
    const answer = await fetch("/page/sign-in", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ token }),
    });
    if (answer.ok) location.reload();
    else byId("refused").hidden = false;
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
  await fetch("/page/sign-out", { method: "POST" });
  location.reload();
}

const form = byId("sign-in");
if (form) {
  signIn(form);
} else {
  document.querySelectorAll(".device").forEach(device);
  byId("sign-out").onclick = signOut;
  refresh();
  follow();
}
