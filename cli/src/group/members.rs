//! The processes of a group, as far as the system shows them.

use std::fs;

/// What a process tells everybody.
#[derive(Debug)]
struct Member {
    id: i32,
    /// It ended, and waits for its parent to notice, perhaps for ever.
    is_dead: bool,
    parent: i32,
    group: i32,
    session: i32,
}

/// Whether a group that exists has a member which is not a zombie. Where the system does not say, every member counts.
pub(super) fn has_living_member(group: i32) -> bool {
    everybody().is_none_or(|all| all.iter().any(|it| it.group == group && !it.is_dead))
}

/// Whether somebody can be expected to continue a group that is stopped: a parent of a member, in the same session but of
/// another group, as a shell is. That is what the system itself goes by. `None` where it does not say.
pub(super) fn is_looked_after(group: i32) -> Option<bool> {
    let all = everybody()?;
    let looked_after = all.iter().filter(|it| it.group == group).any(|member| {
        all.iter().any(|it| {
            it.id == member.parent && it.session == member.session && it.group != member.group
        })
    });
    Some(looked_after)
}

/// Children that have ended, and that nobody but their parent can bury.
pub(super) fn dead_children(parent: i32) -> Vec<i32> {
    let all = everybody().unwrap_or_default();
    let dead = all.iter().filter(|it| it.parent == parent && it.is_dead);
    dead.map(|it| it.id).collect()
}

/// The group whose first process has all of these variables in its environment.
pub(super) fn group_with(variables: &[String]) -> Option<i32> {
    let has_all = |process: &Member| {
        let environment = fs::read(format!("/proc/{}/environ", process.id)).unwrap_or_default();
        let theirs: Vec<_> = environment.split(|byte| *byte == 0).collect();
        variables.iter().all(|it| theirs.contains(&it.as_bytes()))
    };
    let all = everybody()?;
    let mut first = all.iter().filter(|it| it.id == it.group && !it.is_dead);
    first.find(|process| has_all(process)).map(|it| it.group)
}

fn everybody() -> Option<Vec<Member>> {
    let all: Vec<_> = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|process| fs::read(process.path().join("stat")).ok())
        // A name is cut off after so many bytes, also in the middle of a character.
        .filter_map(|stat| parsed(&String::from_utf8_lossy(&stat)))
        .collect();
    (!all.is_empty()).then_some(all)
}

/// `pid (any text) state ppid pgrp session ..`: the text may hold anything, a closing parenthesis included.
fn parsed(stat: &str) -> Option<Member> {
    let (start, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let is_dead = matches!(fields.next()?, "Z" | "X");
    let mut number = || fields.next()?.parse().ok();
    Some(Member {
        id: start.split(' ').next()?.parse().ok()?,
        is_dead,
        parent: number()?,
        group: number()?,
        session: number()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let member = parsed("42 (a) Z 9 (b)) S 7 40 39 34816 0").unwrap();
        assert_eq!(
            (member.id, member.is_dead, member.parent),
            (42, false, 7),
            "{member:?}"
        );
        assert_eq!((member.group, member.session), (40, 39));
        assert!(parsed("42 (a) Z 7 40 39").unwrap().is_dead);
        assert!(parsed("").is_none());
    }

    #[test]
    fn this_process_lives() {
        let group = nix::unistd::getpgrp().as_raw();
        assert!(has_living_member(group));
        assert!(!has_living_member(i32::MAX));
    }
}
