//! The users and groups of the template `base`.
//!
//! The host's system accounts, which packages expect, without passwords; none of its people; and `user`.

/// The number of `user` and of its group.
pub(super) const USER: u32 = 1000;
/// Ids from here on are people's (login.defs: UID_MIN).
const PEOPLE: u32 = 1000;
/// `nobody` and `nogroup`.
const NOBODY: u32 = 65534;

/// The files of accounts: passwd, group, shadow, gshadow.
pub(super) struct Accounts {
    pub(super) passwd: String,
    pub(super) group: String,
    pub(super) shadow: String,
    pub(super) gshadow: String,
}

fn is_system(id: u32) -> bool {
    id < PEOPLE || id == NOBODY
}

/// Makes them of the host's. A line that is not understood is left out.
pub(super) fn accounts(passwd: &str, group: &str) -> Accounts {
    let mut made = Accounts {
        passwd: String::new(),
        group: String::new(),
        shadow: String::new(),
        gshadow: String::new(),
    };
    let mut has_root = false;
    let mut users = Vec::new();
    for line in passwd.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, about, home, shell] = fields[..] else {
            continue;
        };
        let (Ok(uid), Ok(gid)) = (uid.parse::<u32>(), gid.parse::<u32>()) else {
            continue;
        };
        if !is_system(uid) || !is_system(gid) || name == "user" || name.is_empty() {
            continue;
        }
        has_root |= uid == 0;
        let (about, home, shell) = match uid {
            0 => ("root", "/root", "/bin/bash"),
            _ => (about, home, shell),
        };
        made.passwd += &format!("{name}:x:{uid}:{gid}:{about}:{home}:{shell}\n");
        made.shadow += &format!("{name}:*:19000:0:99999:7:::\n");
        users.push(name);
    }
    if !has_root {
        made.passwd
            .insert_str(0, "root:x:0:0:root:/root:/bin/bash\n");
        made.shadow.insert_str(0, "root:*:19000:0:99999:7:::\n");
    }
    made.passwd += &format!("user:x:{USER}:{USER}::/home/user:/bin/bash\n");
    made.shadow += "user:*:19000:0:99999:7:::\n";
    let mut has_root = false;
    for line in group.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, gid, members] = fields[..] else {
            continue;
        };
        let Ok(gid) = gid.parse::<u32>() else {
            continue;
        };
        if !is_system(gid) || name == "user" || name.is_empty() {
            continue;
        }
        has_root |= gid == 0;
        let members: Vec<&str> = members
            .split(',')
            .filter(|member| users.contains(member))
            .collect();
        made.group += &format!("{name}:x:{gid}:{}\n", members.join(","));
        made.gshadow += &format!("{name}:*::{}\n", members.join(","));
    }
    if !has_root {
        made.group.insert_str(0, "root:x:0:\n");
        made.gshadow.insert_str(0, "root:*::\n");
    }
    made.group += &format!("user:x:{USER}:\n");
    made.gshadow += "user:!::\n";
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_and_passwords_of_the_host_are_not_in_it() {
        let passwd = "\
root:x:0:0:Ann Admin:/root:/usr/bin/zsh
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
ann:x:1000:1000:Ann,,,:/home/ann:/bin/bash
user:x:999:999::/x:/bin/sh
odd line
svc:x:200:5000:staff's:/srv:/bin/false
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin";
        let group = "root:x:0:\nadm:x:4:daemon,ann\nann:x:1000:\nodd\nnogroup:x:65534:\nuser:x:7:";
        let made = accounts(passwd, group);
        assert_eq!(
            made.passwd,
            "root:x:0:0:root:/root:/bin/bash\n\
             daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
             user:x:1000:1000::/home/user:/bin/bash\n"
        );
        assert_eq!(
            made.group,
            "root:x:0:\nadm:x:4:daemon\nnogroup:x:65534:\nuser:x:1000:\n"
        );
        assert!(!format!("{}{}", made.shadow, made.gshadow).contains("ann"));
        assert_eq!(made.shadow.lines().count(), 4);
    }

    #[test]
    fn a_host_without_accounts_gets_root_and_user() {
        let made = accounts("", "");
        assert!(made.passwd.starts_with("root:x:0:0:") && made.passwd.contains("\nuser:x:1000:"));
        assert!(made.group.starts_with("root:x:0:") && made.group.contains("\nuser:x:1000:"));
    }
}
