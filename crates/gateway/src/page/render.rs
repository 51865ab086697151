//! The page as HTML, from the files in `templates`.

use std::time::Duration;

use askama::Template;
use distlock_kickout::{NodeId, NodeInfo, NodeState};

use super::snapshot::{MAX_SHOWN, Snapshot};

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    node: &'a NodeId,
}

#[derive(Template)]
#[template(path = "node.html")]
struct NodePage<'a> {
    node: &'a NodeId,
    changing_part: String,
}

#[derive(Template)]
#[template(path = "changing_part.html")]
struct ChangingPart<'a> {
    snapshot: &'a Snapshot,
    state: &'static str,
    own_policy: Option<&'a str>,
}

impl ChangingPart<'_> {
    fn has_low_lease(&self, node: &NodeInfo) -> bool {
        lease_left(node).is_some_and(|left| left < self.snapshot.low_lease)
    }

    fn has_other_policy(&self, node: &NodeInfo) -> bool {
        node.policy.is_some() && node.policy.as_deref() != self.own_policy
    }

    fn have_mixed_policies(&self, nodes: &[NodeInfo]) -> bool {
        nodes.iter().any(|node| self.has_other_policy(node))
    }
}

/// The page for a visitor without the admin token.
pub(super) fn sign_in_page(node: &NodeId) -> String {
    SignInPage { node }.to_string()
}

pub(super) fn full_page(snapshot: &Snapshot) -> String {
    let page = NodePage {
        node: &snapshot.node,
        changing_part: changing_part(snapshot),
    };
    page.to_string()
}

/// The part of the page that changes.
pub(super) fn changing_part(snapshot: &Snapshot) -> String {
    let mut nodes = snapshot.nodes.iter().flatten();
    let own = nodes.find(|it| it.node == snapshot.node);
    let part = ChangingPart {
        snapshot,
        state: match snapshot.boot {
            Some(_) => state_name(snapshot.state),
            None => "fenced",
        },
        own_policy: own.and_then(|it| it.policy.as_deref()),
    };
    part.to_string()
}

const fn state_name(state: NodeState) -> &'static str {
    match state {
        NodeState::Up => "up",
        _ => "draining",
    }
}

fn lease_left(node: &NodeInfo) -> Option<Duration> {
    node.lease_remaining_ms.map(Duration::from_millis)
}

fn format_seconds(time: Duration) -> String {
    format!("{}.{} s", time.as_secs(), time.subsec_millis() / 100)
}

fn seconds_or_unknown(time: Option<Duration>) -> String {
    time.map_or_else(|| "?".into(), format_seconds)
}

#[cfg(test)]
mod tests {
    use distlock_kickout::Boot;

    use super::*;

    fn node(name: &str, policy: &str, lease_ms: u64) -> NodeInfo {
        let node = serde_json::json!({
            "node": name, "boot": 1, "addr": "x:1", "state": "up", "policy": policy,
            "lease_remaining_ms": lease_ms,
        });
        serde_json::from_value(node).unwrap()
    }

    fn snapshot(lease_ms: u64, revocations: usize, second: NodeInfo) -> Snapshot {
        Snapshot {
            node: NodeId::new("n1").unwrap(),
            boot: Some(Boot::new(1)),
            state: NodeState::Up,
            lease_left: Duration::from_millis(lease_ms),
            low_lease: Duration::from_secs(3),
            sessions: 0,
            under_way: 0,
            revocations,
            nodes: Ok(vec![node("n1", "single", 9000), second]),
            locks: Ok(Vec::new()),
            takeovers: Vec::new(),
            unreachable: Vec::new(),
        }
    }

    #[test]
    fn values_that_need_attention_are_marked() {
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
        let mut snapshot = snapshot(9000, 0, node("n2", "<b>", 9000));
        let nasty = r#"<script>alert("x") & 'y'"#;
        snapshot.unreachable = vec![(NodeId::new("n2").unwrap(), nasty.into())];
        let html = changing_part(&snapshot);
        assert!(!html.contains("<script>"), "{html}");
        for escaped in [
            "missing: &#60;script&#62;alert(&#34;x&#34;) &#38; &#39;y&#39;</p>",
            "class=\"warning\">&#60;b&#62;</td>",
        ] {
            assert!(html.contains(escaped), "{escaped} is not in {html}");
        }
    }

    #[test]
    fn times_are_cut_to_tenths_of_a_second() {
        assert_eq!(format_seconds(Duration::from_millis(9_876)), "9.8 s");
    }
}
