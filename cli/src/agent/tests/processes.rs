//! Commands: what they are started with, what they write, how they end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::guest::{all, is_there, text, until};
use super::{guest, poll_until, root_runs_the_tests};
use crate::agent::{AgentError, ProcessRef, PtySize, StartProcess};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    owned.collect()
}

#[test]
fn stdout_stderr_and_exit_code_are_those_of_the_command() {
    guest(async |guest| {
        let script = guest.script("printf out; printf err >&2; exit 3");
        let ran = guest.run(script).await;
        assert_eq!(ran.stdout, b"out");
        assert_eq!(ran.stderr, b"err");
        assert_eq!((ran.exit_code, ran.signal), (3, None));
        assert_eq!(ran.status, "exit status 3");
        assert_eq!(ran.lost, 0);
    });
}

#[test]
fn arguments_arrive_as_they_were_given() {
    guest(async |guest| {
        let args = ["%s|", "a b", "", "$HOME", "\"ü'"];
        let ran = guest.run(guest.command("printf", &args)).await;
        assert_eq!(text(&ran.stdout), "a b||$HOME|\"ü'|");
    });
}

#[test]
fn a_signal_that_ended_a_command_is_told() {
    guest(async |guest| {
        let mut stream = guest.start(guest.command("sleep", &["1000"])).await;
        let process = ProcessRef::Pid(stream.pid);
        guest.agent.signal(&process, SIGTERM).await.unwrap();
        let ran = all(&mut stream).await;
        assert_eq!((ran.exit_code, ran.signal), (-1, Some(SIGTERM)));
        assert_eq!(ran.status, "signal: terminated");
        let error = guest.agent.signal(&process, SIGTERM).await.unwrap_err();
        assert!(
            matches!(error, AgentError::NoSuchProcess { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn a_signal_reaches_the_whole_group_and_nobody_stays_a_zombie() {
    guest(async |guest| {
        let script = guest.script("sleep 1000 & echo $!; wait");
        let mut stream = guest.start(script).await;
        let below = until(&mut stream, "\n").await;
        assert!(is_there(&below));
        let process = ProcessRef::Pid(stream.pid);
        guest.agent.signal(&process, SIGKILL).await.unwrap();
        assert_eq!(all(&mut stream).await.signal, Some(SIGKILL));
        poll_until(|| !is_there(&below)).await;
    });
}

#[test]
fn a_signal_that_is_none_is_refused_and_harms_nobody() {
    guest(async |guest| {
        let script = guest.script("read line; exit 7");
        let mut stream = guest
            .start(StartProcess {
                stdin: true,
                ..script
            })
            .await;
        let process = ProcessRef::Pid(stream.pid);
        for signal in [-9, 65, i32::MIN, i32::MAX] {
            let error = guest.agent.signal(&process, signal).await.unwrap_err();
            assert!(
                matches!(error, AgentError::InvalidArgument { .. }),
                "{error:?}"
            );
        }
        // Signal 0 only asks whether there is anybody.
        guest.agent.signal(&process, 0).await.unwrap();
        guest.agent.close_stdin(&process).await.unwrap();
        assert_eq!(all(&mut stream).await.exit_code, 7);
    });
}

#[test]
fn ignored_and_blocked_signals_are_not_inherited() {
    guest(async |guest| {
        let status = guest
            .output("grep -E '^Sig(Ign|Blk)' /proc/self/status")
            .await;
        let sets: Vec<&str> = status.split_whitespace().collect();
        let none = "0000000000000000";
        assert_eq!(sets, ["SigBlk:", none, "SigIgn:", none]);
    });
}

#[test]
fn a_command_inherits_no_descriptors_but_its_own() {
    guest(async |guest| {
        // Some of what the agent holds open meanwhile.
        let watch = guest.agent.watch("/", guest.user(), false).await.unwrap();
        let reader = guest.agent.read_file("/etc/passwd", guest.user()).await;
        let terminal = guest
            .start(StartProcess {
                pty: Some(PtySize { cols: 80, rows: 25 }),
                ..guest.command("cat", &[])
            })
            .await;
        // One more is that of the directory which it reads.
        let open = guest.run(guest.command("ls", &["/proc/self/fd"])).await;
        assert_eq!(text(&open.stdout), "0\n1\n2\n3\n");
        let linked = guest.output("ls -l /proc/$$/fd").await;
        assert!(!linked.contains("socket:"), "{linked}");
        drop((watch, reader.unwrap(), terminal));
    });
}

#[test]
fn the_environment_is_the_users_then_the_default_one_then_the_commands() {
    guest(async |guest| {
        let plain = guest.output("echo $USER $LOGNAME $PATH; env | wc -l").await;
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let user = &guest.user;
        assert!(
            plain.starts_with(&format!("{user} {user} {path}\n")),
            "{plain}"
        );
        let defaults = env(&[("A", "default"), ("B", "default"), ("USER", "nobody else")]);
        guest.agent.set_env(defaults).await.unwrap();
        let start = StartProcess {
            env: env(&[("B", "own"), ("C", "x=y\nz")]),
            ..guest.script(r#"printf '%s|' "$A" "$B" "$C" "$USER""#)
        };
        let ran = guest.run(start).await;
        assert_eq!(text(&ran.stdout), "default|own|x=y\nz|nobody else|");
        guest.agent.set_env(BTreeMap::new()).await.unwrap();
        assert_eq!(guest.output("echo ${A-none}").await, "none\n");
    });
}

#[test]
fn an_environment_that_cannot_be_is_refused() {
    guest(async |guest| {
        for name in ["", "A=B", "A\0"] {
            let bad = env(&[(name, "x")]);
            let start = StartProcess {
                env: bad.clone(),
                ..guest.script("true")
            };
            for error in [
                guest.agent.start(start).await.unwrap_err(),
                guest.agent.set_env(bad).await.unwrap_err(),
            ] {
                assert!(
                    matches!(error, AgentError::InvalidArgument { .. }),
                    "{error:?}"
                );
            }
        }
    });
}

#[test]
fn a_command_runs_in_its_directory_or_the_home() {
    guest(async |guest| {
        let dir = guest.dir().canonicalize().unwrap();
        let found = guest.output("pwd -P").await;
        assert_eq!(found.trim_end(), dir.to_str().unwrap());
        let start = StartProcess {
            cwd: None,
            ..guest.script(r#"[ "$PWD" -ef "$HOME" ] || [ "$PWD" = / ]"#)
        };
        assert_eq!(guest.run(start).await.exit_code, 0);
        let start = StartProcess {
            cwd: Some(guest.path("nowhere")),
            ..guest.script("true")
        };
        let error = guest.agent.start(start).await.unwrap_err();
        let AgentError::InvalidArgument { message } = &error else {
            panic!("{error:?}");
        };
        assert!(message.contains("nowhere"), "{message}");
    });
}

#[test]
fn a_program_that_cannot_be_started_is_a_failure_that_says_why() {
    guest(async |guest| {
        std::fs::write(guest.dir().join("plain"), "#!/bin/sh\n").unwrap();
        let start = async |cmd: &str| guest.agent.start(guest.command(cmd, &[])).await;
        let error = start("no-such-program").await.unwrap_err();
        assert!(matches!(error, AgentError::NotFound { .. }), "{error:?}");
        let error = start(&guest.path("plain")).await.unwrap_err();
        assert!(
            matches!(error, AgentError::PermissionDenied { .. }),
            "{error:?}"
        );
        for cmd in ["", "a\0b"] {
            let error = start(cmd).await.unwrap_err();
            assert!(
                matches!(error, AgentError::InvalidArgument { .. }),
                "{error:?}"
            );
        }
        assert_eq!(guest.agent.processes().await.unwrap(), []);
    });
}

#[test]
fn an_unknown_user_is_a_failure() {
    guest(async |guest| {
        let start = StartProcess {
            user: Some("no-such-user".to_owned()),
            ..guest.script("true")
        };
        let error = guest.agent.start(start).await.unwrap_err();
        assert!(matches!(error, AgentError::UnknownUser { .. }), "{error:?}");
    });
}

#[test]
fn a_command_has_the_ids_of_its_user_or_does_not_start() {
    guest(async |guest| {
        let start = StartProcess {
            user: Some("nobody".to_owned()),
            cwd: Some("/".to_owned()),
            ..guest.script("id -un; id -G; grep -E '^Cap(Eff|Prm|Inh|Amb)' /proc/self/status")
        };
        let started = guest.agent.start(start).await;
        if !root_runs_the_tests() {
            let error = started.unwrap_err();
            assert!(
                matches!(error, AgentError::PermissionDenied { .. }),
                "{error:?}"
            );
            return;
        }
        let ran = all(&mut started.unwrap()).await;
        let said = text(&ran.stdout);
        let mut words = said.split_whitespace();
        assert_eq!(words.next(), Some("nobody"));
        assert!(words.clone().all(|word| word != "0"), "{said}");
        let rights: Vec<&str> = words.filter(|word| word.len() == 16).collect();
        assert_eq!(rights, ["0000000000000000"; 4], "{said}");
    });
}

#[test]
fn processes_that_run_are_listed_as_they_were_asked_for() {
    guest(async |guest| {
        let start = StartProcess {
            tag: Some("web".to_owned()),
            env: env(&[("A", "1")]),
            stdin: true,
            ..guest.command("cat", &["-"])
        };
        let mut stream = guest.start(start.clone()).await;
        let listed = guest.agent.processes().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].pid, stream.pid);
        assert_eq!((&listed[0].cmd, &listed[0].args), (&start.cmd, &start.args));
        assert_eq!((&listed[0].env, &listed[0].tag), (&start.env, &start.tag));
        assert_eq!(listed[0].cwd, start.cwd);
        let process = ProcessRef::Tag("web".to_owned());
        guest.agent.close_stdin(&process).await.unwrap();
        assert_eq!(all(&mut stream).await.exit_code, 0);
        assert_eq!(guest.agent.processes().await.unwrap(), []);
    });
}

#[test]
fn a_list_of_processes_with_the_longest_requests_arrives() {
    guest(async |guest| {
        // Linux takes 128 KiB in one argument.
        let long = "x".repeat(127 * 1024);
        let args = ["-c", "read line", &long, &long, &long, &long];
        let mut streams = Vec::new();
        for _ in 0..4 {
            let start = StartProcess {
                stdin: true,
                ..guest.command("/bin/sh", &args)
            };
            streams.push(guest.start(start).await);
        }
        let listed = guest.agent.processes().await.unwrap();
        assert_eq!(listed.len(), 4);
        assert!(listed.iter().all(|info| info.args == args));
        let error = guest
            .agent
            .start(guest.command("true", &[long.repeat(5).as_str()]))
            .await
            .unwrap_err();
        assert!(
            matches!(error, AgentError::InvalidArgument { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn metrics_are_those_of_the_system() {
    guest(async |guest| {
        let metrics = guest.agent.metrics().await.unwrap();
        assert!(
            metrics.cpu_count > 0 && metrics.processes > 1,
            "{metrics:?}"
        );
        assert!(metrics.memory_used <= metrics.memory_total, "{metrics:?}");
    });
}

/// The clock and the randomness of a sandbox of processes are the host's.
#[test]
fn what_only_a_machine_has_is_refused() {
    guest(async |guest| {
        let time = guest.agent.set_time(Duration::from_secs(1)).await;
        assert!(
            matches!(time, Err(AgentError::PermissionDenied { .. })),
            "{time:?}"
        );
        let seed = guest.agent.add_entropy(vec![1; 64]).await;
        assert!(
            matches!(seed, Err(AgentError::PermissionDenied { .. })),
            "{seed:?}"
        );
        let synced = guest.agent.sync().await;
        assert!(
            matches!(synced, Err(AgentError::PermissionDenied { .. })),
            "{synced:?}"
        );
        guest.agent.metrics().await.unwrap();
    });
}
