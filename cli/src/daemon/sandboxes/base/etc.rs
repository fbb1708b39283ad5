//! What of the host's /etc is in the template `base`.
//!
//! A list of what programs need to work as usual, and nothing else: what is not named here, is not readable by
//! everybody, or is neither a file, a directory nor a symbolic link, is not copied. So there are no
//! secrets, no keys of the host, no addresses of its network, and no names of its people.

/// Copied, files and directories.
pub(super) const COPIED: &[&str] = &[
    "adduser.conf",
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "ca-certificates.conf",
    "debconf.conf",
    "debian_version",
    "deluser.conf",
    "dpkg",
    "fonts",
    "gai.conf",
    "groff",
    "host.conf",
    "inputrc",
    "issue",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.gen",
    "localtime",
    "login.defs",
    "magic",
    "magic.mime",
    "manpath.config",
    "mime.types",
    "networks",
    "nsswitch.conf",
    "os-release",
    "perl",
    "profile",
    "protocols",
    "python3",
    "rpc",
    "services",
    "sgml",
    "shells",
    "skel",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vim",
    "xdg",
    "xml",
];

/// Copied if the name begins so: packages that have their version in it.
pub(super) const COPIED_FAMILIES: &[&str] = &["java-", "python3."];

/// Made new.
pub(super) const MADE: &[(&str, &str)] = &[
    ("hostname", "floe\n"),
    (
        "hosts",
        "127.0.0.1\tlocalhost floe\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    ),
    ("resolv.conf", ""),
    ("fstab", ""),
    ("machine-id", ""),
];
