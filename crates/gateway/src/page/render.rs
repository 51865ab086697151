//! The page as HTML.
//!
//! Invariant of this module: every text that does not come from this file is escaped.

use std::fmt::{self, Write as _};

use distlock_kickout::{NodeId, NodeState};

use super::snapshot::{MAX_SHOWN, Snapshot};

/// Text that is safe in an element and in a quoted attribute.
struct Escaped<T>(T);

impl<T: fmt::Display> fmt::Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.to_string().chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

pub(super) fn full_page(snapshot: &Snapshot) -> String {
    let node = Escaped(&snapshot.node);
    let part = changing_part(snapshot);
    html_document(
        &snapshot.node,
        &format!(
            concat!(
                r#"<header><h1>Gateway node <b>{node}</b></h1>"#,
                r#"<p id="live" class="live" role="status">live</p>"#,
                r#"<button type="button" id="sign-out">Sign out</button></header>
<div id="state">{part}</div>
<section aria-labelledby="t"><h2 id="t">Takeovers on all nodes</h2>
<table><thead><tr><th>time</th><th>account</th><th>from</th><th>to</th>"#,
                r#"<th>seen by</th><th class="n">took</th></tr></thead>
<tbody id="takeovers"><tr class="none">"#,
                r#"<td colspan="6">None since the first page was opened. Try the two devices "#,
                r#"below.</td></tr></tbody></table></section>
{ORDERS_FORM}
<section aria-labelledby="p"><h2 id="p">Playground</h2>
<p>One account, two devices in this tab. Log in on both: the first is told "#,
                r#"why it must go, and closed.</p>
<p><label>Account <input id="account" value="anna" maxlength="64" "#,
                r#"autocomplete="off" spellcheck="false"></label></p>
<div class="devices">{}{}</div></section>"#
            ),
            device_html("phone"),
            device_html("pc"),
            node = node,
            part = part,
            ORDERS_FORM = ORDERS_FORM,
        ),
    )
}

/// The form of an operator's orders. The script sends the same requests as the command-line tool.
const ORDERS_FORM: &str = concat!(
    r#"<section aria-labelledby="o"><h2 id="o">Accounts and this node</h2>
<form id="orders"><p class="fields">"#,
    r#"<label>Account <input name="uid" maxlength="128" autocomplete="off" "#,
    r#"spellcheck="false"></label>
<label>Reason <input name="reason" maxlength="256" autocomplete="off" "#,
    r#"placeholder="shown to the account"></label>
<label>Ban for <input name="ttl" maxlength="20" size="8" autocomplete="off" "#,
    r#"placeholder="no end"></label></p>
<p class="fields"><button value="look">Look up</button> <button "#,
    r#"value="kick">Kick</button> <button value="ban">Ban</button> <button "#,
    r#"value="unban">Lift ban</button>
<span class="apart"><label>Drain at <input name="rate" type="number" "#,
    r#"min="1" value="100"> sessions/s</label> <button value="drain">Drain this "#,
    r#"node</button> <button value="undrain">Take logins again</button></span></p>"#,
    r#"</form>
<p id="locked" hidden>To give orders in this tab, sign in again: <button "#,
    r#"type="button" id="sign-in-again">Sign in</button></p>
<div id="answer" role="status"></div></section>"#
);

fn device_html(name: &str) -> String {
    format!(
        concat!(
            r#"<article class="device" id="{name}" data-device="{name}">"#,
            r#"<h3>{name} <span class="badge" data-state="out">not logged in</span></h3>
<p><label>Node <select></select>"#,
            r#"</label> <button type="button" class="in">Log in</button> <button "#,
            r#"type="button" class="out" disabled>Log out</button></p>
<ol class="log" aria-live="polite"></ol></article>"#
        ),
        name = name,
    )
}

/// The part of the page that changes.
pub(super) fn changing_part(snapshot: &Snapshot) -> String {
    let mut html = String::new();
    let state = match (snapshot.boot, snapshot.state) {
        (Some(_), state) => state_name(state),
        (None, _) => "fenced",
    };
    let tiles = [
        ("state", state.to_owned(), state != "up"),
        ("online here", snapshot.sessions.to_string(), false),
        ("logins under way", snapshot.under_way.to_string(), false),
        (
            "sessions not known to be gone",
            snapshot.revocations.to_string(),
            snapshot.revocations > 0,
        ),
        (
            "lease left",
            format_seconds(snapshot.lease_ms),
            snapshot.lease_ms < snapshot.low_ms,
        ),
    ];
    html.push_str(r#"<dl class="tiles">"#);
    for (name, value, warns) in tiles {
        let warns = if warns { " data-warns" } else { "" };
        let _ = write!(
            html,
            r#"<div{warns}><dt>{name}</dt><dd>{}</dd></div>"#,
            Escaped(value)
        );
    }
    html.push_str("</dl>");
    write_nodes(snapshot, &mut html);
    for (node, why) in &snapshot.unreachable {
        let _ = write!(
            html,
            r#"<p class="warning">Takeovers that only node {} saw are missing: {}</p>"#,
            Escaped(node),
            Escaped(why)
        );
    }
    write_locks(snapshot, &mut html);
    html
}

const fn state_name(state: NodeState) -> &'static str {
    match state {
        NodeState::Up => "up",
        _ => "draining",
    }
}

fn write_nodes(snapshot: &Snapshot, html: &mut String) {
    html.push_str(r#"<section aria-labelledby="n"><h2 id="n">Nodes and their leases</h2>"#);
    match &snapshot.nodes {
        Err(error) => write_store_error(html, error),
        Ok(nodes) => {
            html.push_str(concat!(
                r#"<table><thead><tr><th>node</th><th>state</th><th class="n">lease left</th>"#,
                r#"<th>policy</th><th>peers</th><th>clients</th><th class="n">boot</th></tr>"#,
                r#"</thead><tbody>"#
            ));
            let own_policy = nodes.iter().find(|it| it.node == snapshot.node);
            let own_policy = own_policy.and_then(|it| it.policy.as_deref());
            for node in nodes {
                let low = node.lease_remaining_ms.map(u128::from);
                let low = low.is_some_and(|left| left < snapshot.low_ms);
                let policy = node.policy.as_deref();
                let differs = policy.is_some() && policy != own_policy;
                let own = if node.node == snapshot.node {
                    " (this one)"
                } else {
                    ""
                };
                let _ = write!(
                    html,
                    concat!(
                        r#"<tr><td><b>{}</b>{own}</td><td>"#,
                        r#"<span class="badge" data-state="{}">{1}</span></td>"#,
                        r#"<td{} data-n>{}</td>"#,
                        r#"<td{}>{}</td><td><code>{}</code></td><td><code>{}</code></td>"#,
                        r#"<td class="n">{}</td></tr>"#
                    ),
                    Escaped(node.node.as_str()),
                    Escaped(state_name(node.state)),
                    warning_class(low),
                    node.lease_remaining_ms
                        .map_or_else(|| "?".into(), |left| format_seconds(left.into())),
                    warning_class(differs),
                    Escaped(policy.unwrap_or("?")),
                    Escaped(&node.addr),
                    Escaped(node.front.as_deref().unwrap_or("?")),
                    node.boot,
                    own = own,
                );
            }
            html.push_str("</tbody></table>");
            if nodes.iter().any(|it| {
                it.policy
                    .as_deref()
                    .is_some_and(|it| Some(it) != own_policy)
            }) {
                html.push_str(r#"<p class="warning">Nodes of one store need the same policy.</p>"#);
            }
        }
    }
    html.push_str("</section>");
}

const fn warning_class(yes: bool) -> &'static str {
    if yes { r#" class="warning""# } else { "" }
}

fn write_locks(snapshot: &Snapshot, html: &mut String) {
    html.push_str(r#"<section aria-labelledby="l"><h2 id="l">Locks held and waited for</h2>"#);
    match &snapshot.locks {
        Err(error) => write_store_error(html, error),
        Ok(locks) if locks.is_empty() => {
            html.push_str(
                "<p>No login of this node holds its account's lock at this moment: \
                 it is held for one read and one write.</p>",
            );
        }
        Ok(locks) => {
            html.push_str(concat!(
                r#"<table><thead><tr><th>lock</th><th>held by</th>"#,
                r#"<th class="n">for at most</th><th class="n">waiting</th></tr></thead><tbody>"#
            ));
            for lock in locks {
                let holder = lock.held.as_ref();
                let left = holder.and_then(|it| it.expires_in).map(|it| it.as_millis());
                let _ = write!(
                    html,
                    concat!(
                        r#"<tr><td><code>{}</code></td><td>{}</td>"#,
                        r#"<td class="n">{}</td><td class="n">{}</td></tr>"#
                    ),
                    Escaped(lock.name.as_str()),
                    Escaped(holder.map_or("nobody", |it| it.holder.as_str())),
                    left.map_or_else(|| "?".into(), format_seconds),
                    lock.waiters.map_or_else(|| "?".into(), |it| it.to_string()),
                );
            }
            html.push_str("</tbody></table>");
            if locks.len() >= MAX_SHOWN {
                let _ = write!(html, "<p>These {MAX_SHOWN}, and perhaps more.</p>");
            }
        }
    }
    html.push_str("</section>");
}

fn write_store_error(html: &mut String, error: &distlock_core::Error) {
    let _ = write!(
        html,
        r#"<p class="trouble">The store does not tell: {}</p>"#,
        Escaped(error)
    );
}

fn format_seconds(ms: u128) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// The page for a visitor without the admin token.
pub(super) fn sign_in_page(node: &NodeId) -> String {
    html_document(
        node,
        concat!(
            r#"<header><h1>Sign in</h1></header>
<form id="sign-in"><p>This page needs the gateway's "#,
            r#"<code>admin_token</code>. Where none is set, the node prints one when it "#,
            r#"starts.</p>
<p><label>Token <input id="token" type="password" "#,
            r#"autocomplete="current-password" required></label> <button>Sign in</button>"#,
            r#"</p>
<p id="refused" class="trouble" hidden>Wrong token.</p></form>"#
        ),
    )
}

fn html_document(node: &NodeId, body: &str) -> String {
    let node = Escaped(node);
    format!(
        concat!(
            r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8">"#,
            r#"<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">"#,
            r#"<title>{node} - distlock gateway</title>
<link rel="icon" href="data:,">"#,
            r#"<link rel="stylesheet" href="/page/style.css">"#,
            r#"<script src="/page/script.js" defer></script></head>
<body>{body}</body></html>
"#
        ),
        node = node,
        body = body,
    )
}

#[cfg(test)]
mod tests {
    use distlock_kickout::Boot;

    use super::*;

    #[test]
    fn values_that_need_attention_are_marked() {
        let node = |name: &str, policy: &str, lease_ms: u64| {
            let node = serde_json::json!({
                "node": name, "boot": 1, "addr": "x:1", "state": "up", "policy": policy,
                "lease_remaining_ms": lease_ms,
            });
            serde_json::from_value(node).unwrap()
        };
        let snapshot = |lease_ms, revocations, second| Snapshot {
            node: NodeId::new("n1").unwrap(),
            boot: Some(Boot::new(1)),
            state: NodeState::Up,
            lease_ms,
            low_ms: 3000,
            sessions: 0,
            under_way: 0,
            revocations,
            nodes: Ok(vec![node("n1", "single", 9000), second]),
            locks: Ok(Vec::new()),
            takeovers: Vec::new(),
            unreachable: Vec::new(),
        };
        let calm = changing_part(&snapshot(9000, 0, node("n2", "single", 9000)));
        assert!(
            !calm.contains("data-warns") && !calm.contains("warning"),
            "{calm}"
        );
        for (alarming, shows) in [
            (
                snapshot(2999, 0, node("n2", "single", 9000)),
                "data-warns><dt>lease left",
            ),
            (
                snapshot(9000, 1, node("n2", "single", 9000)),
                "data-warns><dt>sessions not",
            ),
            (
                snapshot(9000, 0, node("n2", "single", 2999)),
                "class=\"warning\" data-n>2.9 s",
            ),
            (
                snapshot(9000, 0, node("n2", "class", 9000)),
                "class=\"warning\">class",
            ),
            (
                snapshot(9000, 0, node("n2", "class", 9000)),
                "need the same policy",
            ),
        ] {
            let html = changing_part(&alarming);
            assert!(html.contains(shows), "{shows} is not in {html}");
        }
    }

    #[test]
    fn text_of_clients_and_nodes_is_escaped() {
        let nasty = Escaped(r#"<script>alert("x") & 'y'"#).to_string();
        assert_eq!(
            nasty,
            "&lt;script&gt;alert(&quot;x&quot;) &amp; &#39;y&#39;"
        );
        assert_eq!(format_seconds(9_876), "9.8 s");
    }
}
