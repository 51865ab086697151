//! Reads the processes of a group, as far as the system shows them.

use std::fs;

/// The part of the state of a process that every user can read.
#[derive(Debug)]
struct ProcessStat {
    id: i32,
    name: String,
    /// Whether the process is a zombie: it has ended, and its parent has not waited for it.
    is_dead: bool,
    parent: i32,
    group: i32,
    session: i32,
}

/// A living process of a group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: i32,
    /// The name of its program, perhaps cut off.
    pub(super) name: String,
}

/// Whether an existing group has a member that is no zombie. Where the system shows no processes,
/// the answer is yes. `if_none_is_shown` is the answer if the system shows processes, and none of
/// this group: it may hide those of other users.
pub(super) fn has_living_member(group: i32, if_none_is_shown: bool) -> bool {
    let Some(all) = read_processes() else {
        return true;
    };
    let mut members = all.iter().filter(|it| it.group == group).peekable();
    match members.peek() {
        Some(_) => members.any(|it| !it.is_dead),
        None => if_none_is_shown,
    }
}

/// The members of a group that are no zombies, as far as the system shows them.
pub(super) fn living_members(group: i32) -> Vec<Member> {
    let all = read_processes().unwrap_or_default();
    let living = all
        .into_iter()
        .filter(|it| it.group == group && !it.is_dead);
    living
        .map(|ProcessStat { id, name, .. }| Member { id, name })
        .collect()
}

/// Whether a process outside the group can continue the group when it is stopped: a parent of a
/// member, in the same session and in another group, such as a shell. The kernel uses the same
/// rule. `None` where the system shows no processes.
pub(super) fn has_outside_parent(group: i32) -> Option<bool> {
    let all = read_processes()?;
    let has_outside_parent = all.iter().filter(|it| it.group == group).any(|member| {
        all.iter().any(|it| {
            it.id == member.parent && it.session == member.session && it.group != member.group
        })
    });
    Some(has_outside_parent)
}

/// The zombies that only this parent can reap.
pub(super) fn dead_children(parent: i32) -> Vec<i32> {
    let all = read_processes().unwrap_or_default();
    let dead = all.iter().filter(|it| it.parent == parent && it.is_dead);
    dead.map(|it| it.id).collect()
}

/// The group whose leader has all of these variables in its environment.
pub(super) fn find_group_with(variables: &[String]) -> Option<i32> {
    let has_all = |process: &ProcessStat| {
        let environment = fs::read(format!("/proc/{}/environ", process.id)).unwrap_or_default();
        let theirs: Vec<_> = environment.split(|byte| *byte == 0).collect();
        variables.iter().all(|it| theirs.contains(&it.as_bytes()))
    };
    let all = read_processes()?;
    let mut first = all.iter().filter(|it| it.id == it.group && !it.is_dead);
    first.find(|process| has_all(process)).map(|it| it.group)
}

/// All processes of the system; `None` where it shows none.
fn read_processes() -> Option<Vec<ProcessStat>> {
    let all: Vec<_> = fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|process| fs::read(process.path().join("stat")).ok())
        // The kernel cuts names off after some bytes, perhaps in the middle of a character.
        .filter_map(|stat| parse_stat(&String::from_utf8_lossy(&stat)))
        .collect();
    (!all.is_empty()).then_some(all)
}

/// Parses `pid (name) state ppid pgrp session ..`. The name may contain any text, a closing
/// parenthesis included.
fn parse_stat(stat: &str) -> Option<ProcessStat> {
    let (start, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let is_dead = matches!(fields.next()?, "Z" | "X");
    let mut number = || fields.next()?.parse().ok();
    let (id, name) = start.split_once(" (")?;
    Some(ProcessStat {
        id: id.parse().ok()?,
        name: name.to_owned(),
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
    fn a_process_name_with_brackets_is_parsed() {
        let member = parse_stat("42 (a) Z 9 (b)) S 7 40 39 34816 0").unwrap();
        assert_eq!(
            (member.id, member.is_dead, member.parent),
            (42, false, 7),
            "{member:?}"
        );
        assert_eq!((member.group, member.session), (40, 39));
        assert_eq!(member.name, "a) Z 9 (b)");
        assert!(parse_stat("42 (a) Z 7 40 39").unwrap().is_dead);
        assert!(parse_stat("").is_none());
    }

    #[test]
    fn the_group_of_this_process_has_a_living_member() {
        let group = nix::unistd::getpgrp().as_raw();
        assert!(has_living_member(group, false));
        assert!(!has_living_member(i32::MAX, false));
        assert!(has_living_member(i32::MAX, true));
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(living_members(group).iter().any(|it| it.id == own));
    }
}
