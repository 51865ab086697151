//! The page as HTML, from the files in `templates`.

use std::time::Duration;

use askama::Template;
use distlock_kickout::{NodeId, NodeInfo, NodeState};

use super::snapshot::{MAX_SHOWN, Report, Snapshot};
use crate::{
    admin::{Administrator, Right},
    takeovers::VERSION,
};

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    node: &'a NodeId,
}

#[derive(Template)]
#[template(path = "node.html")]
struct NodePage<'a> {
    node: &'a NodeId,
    version: &'static str,
    administrator: &'a Administrator,
    may_operate: bool,
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
        self.own_policy != Some(&*node.policy)
    }

    /// The sessions on all nodes. If a node is silent, they are at least so many.
    fn sessions_in_all(&self) -> String {
        match self.snapshot.sessions_in_all() {
            (known, true) => known.to_string(),
            (known, false) => format!("at least {known}"),
        }
    }

    fn sessions_on(&self, node: &NodeId) -> String {
        let sessions = self.snapshot.sessions_on(node);
        sessions.map_or_else(|| "?".to_owned(), |sessions| sessions.to_string())
    }

    fn report_of(&self, node: &NodeInfo) -> Option<&Report> {
        self.snapshot.reports.get(&node.node)
    }

    fn have_mixed_policies(&self, nodes: &[NodeInfo]) -> bool {
        nodes.iter().any(|node| self.has_other_policy(node))
    }
}

/// The page for a visitor without the admin token.
pub(super) fn sign_in_page(node: &NodeId) -> String {
    SignInPage { node }.to_string()
}

/// The page for this administrator.
pub(super) fn full_page(snapshot: &Snapshot, administrator: &Administrator) -> String {
    let page = NodePage {
        node: &snapshot.node,
        version: VERSION,
        administrator,
        may_operate: administrator.check(Right::Operate).is_ok(),
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
        own_policy: own.map(|it| it.policy.as_str()),
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

/// The seconds of a day.
const DAY: f64 = 86_400.0;

/// A certificate with less time than this is marked. Programs that renew certificates do so weeks
/// before the end.
const LOW_CERTIFICATE: f64 = 14.0 * DAY;

fn format_certificate(left: f64) -> String {
    if left <= 0.0 {
        return "expired".to_owned();
    }
    let (time, unit) = if left < 2.0 * DAY {
        (left / 3600.0, "h")
    } else {
        (left / DAY, "d")
    };
    format!("{time:.0} {unit}")
}

fn seconds_or_unknown(time: Option<Duration>) -> String {
    time.map_or_else(|| "?".into(), format_seconds)
}

#[cfg(test)]
mod tests {
    use distlock_kickout::Boot;

    use super::*;
    use crate::takeovers::NodeReport;

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
            certificate_left: None,
            under_way: 0,
            revocations,
            nodes: Ok(vec![node("n1", "single", 9000), second]),
            locks: Ok(Vec::new()),
            takeovers: Vec::new(),
            reports: ["n1", "n2"]
                .map(|node| (NodeId::new(node).unwrap(), Ok(report(2, VERSION))))
                .into(),
        }
    }

    fn report(sessions: u64, version: &str) -> NodeReport {
        NodeReport {
            takeovers: Vec::new(),
            sessions,
            version: version.to_owned(),
        }
    }

    #[test]
    fn values_that_need_attention_are_marked() {
        let calm = changing_part(&snapshot(9000, 0, node("n2", "single", 9000)));
        assert!(
            !calm.contains("data-warns") && !calm.contains("warning"),
            "{calm}"
        );
        let mut unreachable = node("n2", "single", 9000);
        unreachable.unreachable = Some("nothing listens".into());
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
            (
                snapshot(9000, 0, unreachable.clone()),
                "class=\"warning\"><code>x:1",
            ),
            (
                snapshot(9000, 0, unreachable),
                "cannot call node n2: nothing listens",
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
        let n2 = NodeId::new("n2").unwrap();
        snapshot.reports.insert(n2, Err(nasty.into()));
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
    fn sessions_and_versions_of_nodes_are_shown_and_silent_nodes_marked() {
        let mut snapshot = snapshot(9000, 0, node("n2", "single", 9000));
        let html = changing_part(&snapshot);
        assert!(html.contains("<dt>online here</dt><dd>2</dd>"), "{html}");
        assert!(html.contains("<dt>online in all</dt><dd>4</dd>"), "{html}");
        let n2 = NodeId::new("n2").unwrap();
        snapshot.reports.insert(n2.clone(), Ok(report(3, "9.9.9")));
        let html = changing_part(&snapshot);
        assert!(html.contains("<dd>5</dd>"), "{html}");
        assert!(html.contains("class=\"warning\">9.9.9"), "{html}");
        snapshot.reports.insert(n2, Err("nobody listens".into()));
        let html = changing_part(&snapshot);
        assert!(html.contains("<dd>at least 2</dd>"), "{html}");
        assert!(html.contains("class=\"warning\">no</td>"), "{html}");
    }

    #[test]
    fn a_long_list_of_nodes_ends_with_the_number_of_the_others() {
        let mut snapshot = snapshot(9000, 0, node("n2", "single", 9000));
        let many = (0..MAX_SHOWN + 7).map(|at| node(&format!("n{at}"), "single", 9000));
        snapshot.nodes = Ok(many.collect());
        let html = changing_part(&snapshot);
        assert!(html.contains("and 7 more"), "{html}");
        assert!(html.contains("<b>n99</b>") && !html.contains("<b>n100</b>"));
    }

    #[test]
    fn the_end_of_a_certificate_is_shown_and_marked_when_it_is_near() {
        let mut snapshot = snapshot(9000, 0, node("n2", "single", 9000));
        assert!(!changing_part(&snapshot).contains("certificate"));
        for (left, shows) in [
            (90.0 * DAY, "<div><dt>certificate left</dt><dd>90 d</dd>"),
            (
                13.0 * DAY,
                "data-warns><dt>certificate left</dt><dd>13 d</dd>",
            ),
            (7200.0, "data-warns><dt>certificate left</dt><dd>2 h</dd>"),
            (-1.0, "data-warns><dt>certificate left</dt><dd>expired</dd>"),
        ] {
            snapshot.certificate_left = Some(left);
            let html = changing_part(&snapshot);
            assert!(html.contains(shows), "{shows} is not in {html}");
        }
    }

    #[test]
    fn times_are_cut_to_tenths_of_a_second() {
        assert_eq!(format_seconds(Duration::from_millis(9_876)), "9.8 s");
    }
}
