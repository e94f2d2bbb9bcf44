//! The groups that own AMD's device files, and whether this process is in them.

use super::report::{Check, Status};
use super::root::Root;

/// The usual owners of `/dev/kfd` and `/dev/dri/renderD*`, and of `/dev/dri/card*`.
const GROUPS: [&str; 2] = ["render", "video"];

/// Checks the groups. `files`: whether the device files are open to this process, so that none is missing.
pub fn groups(root: &Root, files: Status) -> Check {
    const NAME: &str = "groups";
    let known = GROUPS.map(|name| (name, find(root, name)));
    let own = Process::of(root);
    let mut missing = Vec::new();
    let mut shown = Vec::new();
    for (name, group) in &known {
        let Some(group) = group else {
            shown.push(format!("there is no group {name}"));
            continue;
        };
        if own.groups.contains(&group.id) {
            shown.push(format!("in {name} ({})", group.id));
        } else {
            shown.push(format!("not in {name} ({})", group.id));
            missing.push((*name, group));
        }
    }
    let detail = shown.join(", ");
    if own.user == Some(0) {
        return Check::new(NAME, Status::Ok, format!("{detail}; root needs no group"));
    }
    if missing.is_empty() || files == Status::Ok {
        return Check::new(NAME, Status::Ok, detail);
    }
    let user = own.user.and_then(|id| user_name(root, id));
    let is_listed = |group: &Group| {
        user.as_ref()
            .is_some_and(|user| group.members.contains(user))
    };
    let advice = match missing.iter().all(|(_, group)| is_listed(group)) {
        true => {
            "the user is in these groups, but this session began before: log in again".to_string()
        }
        false => {
            let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
            format!(
                "join them: sudo usermod -aG {} \"$USER\", then log in again",
                names.join(",")
            )
        }
    };
    Check::new(NAME, Status::Warning, detail).advice(advice)
}

/// A line of `/etc/group`.
struct Group {
    id: u32,
    members: Vec<String>,
}

fn find(root: &Root, name: &str) -> Option<Group> {
    let text = root.read("/etc/group")?;
    let mut lines = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields[0] == name)?;
    let members = fields.get(3).unwrap_or(&"").split(',');
    Some(Group {
        id: fields.get(2)?.parse().ok()?,
        members: members.map(str::to_string).collect(),
    })
}

/// The name of a group.
pub fn name_of(root: &Root, id: u32) -> Option<String> {
    name_by_id(root, "/etc/group", id)
}

/// The name of a user.
pub fn user_name(root: &Root, id: u32) -> Option<String> {
    name_by_id(root, "/etc/passwd", id)
}

/// The first field of the line with this id in the third field.
fn name_by_id(root: &Root, file: &str, id: u32) -> Option<String> {
    let text = root.read(file)?;
    let mut lines = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields.get(2).is_some_and(|n| n.parse() == Ok(id)))?;
    Some(fields[0].to_string())
}

/// This process, as `/proc/self/status` describes it.
pub struct Process {
    /// Its effective user.
    pub user: Option<u32>,
    groups: Vec<u32>,
}

impl Process {
    pub fn of(root: &Root) -> Process {
        let status = root.read("/proc/self/status").unwrap_or_default();
        let numbers = |name: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let words = line.unwrap_or_default().split_whitespace();
            words.filter_map(|word| word.parse().ok()).collect()
        };
        // Real, effective, saved and file system ids.
        let effective = |ids: Vec<u32>| ids.get(1).copied();
        let mut groups = numbers("Groups:");
        groups.extend(effective(numbers("Gid:")));
        Process {
            user: effective(numbers("Uid:")),
            groups,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A root with these groups of a process of the user 1000, who is called me.
    fn check(group: &str, own: &str, files: Status) -> Check {
        let folder = tempfile::tempdir().unwrap();
        let root = Root(folder.path().into());
        for (path, text) in [
            ("/etc/group", group),
            (
                "/etc/passwd",
                "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n",
            ),
            (
                "/proc/self/status",
                &format!(
                    "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t{own}\n"
                ),
            ),
        ] {
            let path = root.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        groups(&root, files)
    }

    #[test]
    fn says_which_groups_are_missing() {
        let group = "root:x:0:\nvideo:x:44:\nrender:x:992:\nme:x:1000:\n";
        let denied = check(group, "27 44", Status::Failed);
        assert_eq!(denied.status, Status::Warning);
        assert_eq!(denied.detail, "not in render (992), in video (44)");
        let advice = denied.advice.unwrap();
        assert!(advice.contains("usermod -aG render \"$USER\""), "{advice}");
        assert_eq!(check(group, "44 992", Status::Failed).status, Status::Ok);
        // Whoever may open the files needs no group.
        assert_eq!(check(group, "", Status::Ok).status, Status::Ok);
        let joined = "video:x:44:me\nrender:x:992:you,me\n";
        let advice = check(joined, "", Status::Failed).advice.unwrap();
        assert!(
            advice.ends_with("log in again") && advice.contains("before"),
            "{advice}"
        );
        let none = check("root:x:0:\n", "", Status::Failed);
        assert!(
            none.detail.contains("there is no group render"),
            "{}",
            none.detail
        );
    }

    #[test]
    fn nothing_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let check = groups(&Root(folder.path().into()), Status::Failed);
        assert_eq!(check.status, Status::Ok);
    }
}
