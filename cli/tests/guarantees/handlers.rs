//! Handlers and generators in other languages, good and bad.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use artel_rig::{Program, Server, clean_command, eventually};
use tempfile::TempDir;

use crate::fleet::{FLEET, artel, on_each_server};

/// Scripts in a folder of their own, and a fleet that runs them.
struct Bench {
    server: Server,
    dir: TempDir,
    members: Vec<Program>,
}

impl Bench {
    fn new(server: Server) -> Bench {
        let dir = tempfile::Builder::new().prefix("artel-handlers-").tempdir().expect("a dir");
        Bench { server, dir, members: Vec::new() }
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).expect("writes");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("sets");
        path
    }

    fn start(&mut self, options: &[&str]) {
        let url = self.server.url();
        for _ in 0..2 {
            let mut args =
                vec!["run", "--redis", &url, "--fleet", FLEET, "--lease", "2s", "--ledger", "all"];
            args.extend(options);
            let mut command = clean_command(artel(), &args);
            command.env("ARTEL", artel()).env("REDIS", &url).stdin(std::process::Stdio::null());
            self.members.push(Program::spawn(command));
        }
    }

    fn artel(&self, args: &[&str]) -> String {
        let url = self.server.url();
        let mut all = args.to_vec();
        all.extend(["--redis", &url, "--fleet", FLEET]);
        let mut program = Program::start(artel(), &all);
        assert_eq!(program.exit_code(), Some(0), "{args:?}: {}", program.stderr());
        program.stdout()
    }

    fn count(&self, name: &str) -> i64 {
        let key = format!("artel:{{{FLEET}}}:counts");
        let count: Option<i64> = redis::cmd("HGET")
            .arg(key)
            .arg(name)
            .query(&mut self.server.connect())
            .expect("answers");
        count.unwrap_or(0)
    }

    /// Sends one message and waits until it is settled; the reason if it failed.
    fn settle(&self, payload: &str) -> Option<serde_json::Value> {
        let before = self.count("done") + self.count("failed");
        self.artel(&["send", payload]);
        eventually("it to be settled", || self.count("done") + self.count("failed") > before);
        let record = self.artel(&["getErrors", "--json"]);
        (!record.is_empty()).then(|| serde_json::from_str(&record).expect("one record"))
    }
}

fn has_python() -> bool {
    std::process::Command::new("python3").arg("--version").output().is_ok()
}

const SH_HANDLER: &str = r#"#!/bin/sh
payload=$(cat)
case "$payload" in
  fail*) echo "no $payload" >&2; exit 3 ;;
  hang*) sleep 600 & echo $! > "$0.sleeper"; wait ;;
  die*) kill -9 $$ ;;
  loud*) head -c 10000000 /dev/zero | tr '\0' x >&2; echo "the end" >&2; exit 1 ;;
  leave*) sleep 600 >/dev/null 2>&1 & ;;
  env*) [ -n "$ARTEL_MESSAGE_ID" ] && [ "$ARTEL_ATTEMPT" = 1 ] && [ "$ARTEL_MESSAGE_LANE" = normal ] || exit 1 ;;
  send*) "$ARTEL" send --redis "$REDIS" --fleet fleet "sent on" || exit 1 ;;
  vanish*) rm "$0" ;;
esac
"#;

const PYTHON_LINES: &str = r#"#!/usr/bin/env python3
import json, os, signal, sys, time
for line in sys.stdin:
    message = json.loads(line)
    payload, answer = message.get("payload", ""), {"id": message["id"]}
    if payload.startswith("fail"): answer["error"] = "no " + payload
    if payload.startswith("hang"): time.sleep(600)
    if payload.startswith("die"): os.kill(os.getpid(), signal.SIGKILL)
    if payload.startswith("exit"): sys.exit("the end")
    if payload.startswith("loud"): sys.stderr.write("x" * 10000000 + "\n"); answer["error"] = "loud"
    if payload.startswith("noise"): print("hello", flush=True); continue
    if payload.startswith("other"): answer["id"] = "0-0"
    print(json.dumps(answer), flush=True)
    if payload.startswith("more"): print("and more", flush=True)
open(sys.argv[0] + ".closed", "a").write("closed\n")
"#;

on_each_server! {
    fn a_shell_script_handles_messages_and_its_failures_are_kept(kind) {
        let mut bench = Bench::new(Server::start(kind));
        let script = bench.script("handle.sh", SH_HANDLER).display().to_string();
        bench.start(&["--generator", "true", "--handler", &script, "--handler-timeout", "2s"]);
        assert_eq!(bench.settle("hello"), None);
        assert_eq!(bench.settle("env"), None, "what a handler must know is in its environment");
        assert_eq!(bench.settle("leave something running"), None);
        // A handler may send on: nothing of its own message gets into what it sends.
        let done = bench.count("done");
        assert_eq!(bench.settle("send"), None);
        eventually("what it sent to be done", || bench.count("done") == done + 2);
        let record = bench.settle("fail this").expect("failed");
        assert_eq!(record["reason"], "exit code 3: no fail this");
        assert_eq!((&record["cause"], &record["payload"]), (&"handler".into(), &"fail this".into()));
        assert_eq!(bench.settle("die now").expect("failed")["reason"], "killed by signal 9");
        let loud = bench.settle("loud").expect("failed")["reason"].to_string();
        assert!(loud.len() < 2200 && loud.contains("exit code 1: xxx"), "{}", loud.len());
        assert!(loud.ends_with("the end\""), "the end of what it said is kept");
        let record = bench.settle("hang on").expect("failed");
        assert_eq!(record["cause"], "timeout");
        let sleeper = std::fs::read_to_string(format!("{script}.sleeper")).expect("it began");
        let status = format!("/proc/{}/stat", sleeper.trim());
        eventually("what it started to be gone, too", || {
            std::fs::read_to_string(&status).map_or(true, |stat| stat.contains(") Z "))
        });
        // A command that is gone is tried again, as long as its message has time.
        assert_eq!(bench.settle("vanish"), None);
        let record = bench.settle("hello?").expect("failed");
        let reason = record["reason"].as_str().unwrap_or_default();
        assert!(reason.starts_with("the handler cannot start: No such file"), "{reason}");
    }

    fn a_python_process_handles_lines_and_is_replaced_when_it_fails(kind) {
        if !has_python() {
            return println!("no python3 here");
        }
        let mut bench = Bench::new(Server::start(kind));
        let script = bench.script("handle.py", PYTHON_LINES).display().to_string();
        bench.start(&["--generator", "true", "--handler", &script, "--handler-mode", "lines",
            "--handler-timeout", "3s", "--concurrency", "1"]);
        for (payload, cause, reason) in [
            ("fail this", "handler", "no fail this"),
            ("die now", "handler", "the handler ended without an answer, killed by signal 9"),
            ("exit now", "handler", "the handler ended without an answer, exit code 1: the end"),
            ("noise", "handler",
             "the handler's answer is not JSON (expected value at line 1 column 1): hello"),
            ("other", "handler", "the handler answered for another message: {\"id\": \"0-0\"}"),
            ("loud", "handler", "loud"),
            ("hang", "timeout", "the handler ran longer than 3s"),
        ] {
            let record = bench.settle(payload).expect("failed");
            assert_eq!((&record["cause"], &record["reason"]), (&cause.into(), &reason.into()));
            assert_eq!(bench.settle("and on it goes"), None, "after {payload}");
        }
        // One that says more than it is asked is replaced, and nobody else is blamed for it.
        assert_eq!(bench.settle("more"), None);
        assert_eq!(bench.settle("after more"), None);
        // At a clean stop it is told that nothing more comes, and may end by itself.
        for mut member in bench.members.drain(..) {
            member.terminate();
            assert_eq!(member.exit_code(), Some(0));
        }
        assert!(PathBuf::from(format!("{script}.closed")).exists(), "it ended by itself");
    }

    /// A process that never reads its message fails it, once, and is not started over and over.
    fn a_handler_that_does_not_read_fails_its_message(kind) {
        let mut bench = Bench::new(Server::start(kind));
        let script = "#!/bin/sh\necho x >> \"$0.started\"\nhead -c 1000 > /dev/null\nexit 3\n";
        let script = bench.script("deaf.sh", script).display().to_string();
        bench.start(&["--generator", "true", "--handler", &script, "--handler-mode", "lines"]);
        let large = "x".repeat(120_000);
        let record = bench.settle(&large).expect("failed");
        let reason = record["reason"].as_str().unwrap_or_default();
        assert_eq!(reason, "the handler ended without an answer, exit code 3");
        let started = std::fs::read_to_string(format!("{script}.started")).expect("started");
        assert!(started.lines().count() <= 2, "{}", started.lines().count());
    }

    /// The commands that the README shows do what it says.
    fn the_commands_of_the_readme_work(kind) {
        let example = |name: &str| {
            format!("{}/../examples/handlers/{name}", env!("CARGO_MANIFEST_DIR"))
        };
        let (sh, python) = (vec![example("handle.sh")], vec![example("handle.py"), "lines".to_owned()]);
        for handler in if has_python() { vec![sh, python] } else { vec![sh] } {
            let mut bench = Bench::new(Server::start(kind));
            let mode = handler.get(1).map_or("exec", String::as_str);
            bench.start(&["--generator", &example("generate.sh"), "--interval", "50ms",
                "--handler", &handler[0], "--handler-mode", mode]);
            eventually("orders to be done", || bench.count("done") >= 3);
            bench.artel(&["send", "nonsense"]);
            eventually("what is no order to fail", || bench.count("failed") == 1);
            assert!(bench.artel(&["errors", "list"]).contains("no order"));
        }
    }

    /// The handlers of docs/jobs.md: a verdict is final, a busy server is asked again, and the outcome sends the next step.
    fn the_handlers_of_the_page_about_jobs_work(kind) {
        let example = |name: &str| {
            format!("{}/../examples/handlers/{name}", env!("CARGO_MANIFEST_DIR"))
        };
        let (sh, python) = (vec![example("mail.sh")], vec![example("mail.py"), "lines".to_owned()]);
        for handler in if has_python() { vec![sh, python] } else { vec![sh] } {
            let mut bench = Bench::new(Server::start(kind));
            let mode = handler.get(1).map_or("exec", String::as_str);
            bench.start(&["--generator", "true", "--handler", &handler[0], "--handler-mode", mode,
                "--backoff", "100ms", "--leader-works", "always"]);
            bench.artel(&["send", "--kind", "mail", "ada@example.org", "no address at all"]);
            eventually("both mails and what follows", || {
                bench.count("done") == 2 && bench.count("failed") == 1
            });
            assert!(bench.count("retried") >= 1);
            assert_eq!(bench.count("followed"), 1);
            assert!(bench.artel(&["errors", "list"]).contains("no address"));
        }
    }

    /// One message per line of a generator in sh and in Python; a failing one adds nothing.
    fn commands_generate_messages(kind) {
        let mut bench = Bench::new(Server::start(kind));
        let sh = bench.script("make.sh", "#!/bin/sh\necho \"$ARTEL_TERM-$ARTEL_SEQ\"; echo; echo two\n");
        let python = "#!/usr/bin/env python3\nimport os\nprint(os.environ['ARTEL_TERM'] + '-' + \
                      os.environ['ARTEL_SEQ'])\nprint('two')\n";
        let python = bench.script("make.py", python);
        let seen = bench.dir.path().join("seen");
        let handler = format!("cat >> {0}; echo >> {0}", seen.display());
        let makers = if has_python() { vec![sh, python] } else { vec![sh] };
        for maker in makers {
            let maker = maker.display().to_string();
            let before = bench.count("generated");
            bench.start(&["--generator", &maker, "--interval", "50ms", "--handler", &handler,
                "--concurrency", "1"]);
            eventually("messages of it", || bench.count("generated") >= before + 6);
            for mut member in bench.members.drain(..) {
                member.terminate();
                assert_eq!(member.exit_code(), Some(0));
            }
        }
        assert_eq!(bench.count("generated") % 2, 0, "two per tick, the blank line is none");
        // What was made knows the number it got.
        let text = std::fs::read_to_string(&seen).expect("handled");
        assert!(text.lines().any(|line| line == "two"));
        assert!(text.lines().any(|line| line.contains('-') && line.len() > 17), "{text}");
        let before = bench.count("generated");
        let broken = bench.script("broken.sh", "#!/bin/sh\necho lost\necho broken >&2\nexit 1\n");
        bench.start(&["--generator", &broken.display().to_string(), "--interval", "50ms"]);
        eventually("it to be said", || {
            bench.members.iter().any(|member| {
                member.stderr().contains("nothing generated") && member.stderr().contains("exit code 1: broken")
            })
        });
        assert_eq!(bench.count("generated"), before, "all lines of a tick or none");
        bench.members.clear();
        let holds = "#!/bin/sh\necho lost\nsleep 60 &\n";
        let holds = bench.script("holds.sh", holds).display().to_string();
        bench.start(&["--generator", &holds, "--interval", "50ms"]);
        eventually("it to be said", || {
            bench.members.iter().any(|member| member.stderr().contains("holds its output open"))
        });
    }

    /// A worker is killed while its handler runs: another one handles the message; the late process
    /// of the dead one records nothing.
    fn a_killed_worker_s_message_is_handled_by_another(kind) {
        let mut bench = Bench::new(Server::start(kind));
        let script = "#!/bin/sh\nif [ \"$ARTEL_ATTEMPT\" = 1 ]; then echo $PPID > \"$0.worker\"; sleep 600; fi\n";
        let script = bench.script("slow.sh", script).display().to_string();
        bench.start(&["--generator", "true", "--handler", &script]);
        bench.artel(&["send", "slow"]);
        let worker = format!("{script}.worker");
        let mut pid = String::new();
        eventually("a handler at work", || {
            pid = std::fs::read_to_string(&worker).unwrap_or_default();
            pid.ends_with('\n')
        });
        let pid: u32 = pid.trim().parse().expect("a pid");
        let member = bench.members.iter_mut().find(|member| member.id() == pid);
        member.expect("one of ours").kill();
        // The other one leads now or did before; a third is needed to work.
        bench.start(&["--generator", "true", "--handler", &script]);
        eventually("it to be done", || bench.count("done") == 1);
        assert_eq!(bench.count("failed"), 0);
    }
}

/// What says where Redis is, and how to prove who one is, is not for handlers and generators.
#[test]
fn handlers_and_generators_see_no_secret() {
    let server = Server::any();
    let mut protect = redis::cmd("CONFIG");
    protect.arg("SET").arg("requirepass").arg("hunter2");
    let () = protect.query(&mut server.connect()).expect("answers");
    let dir = tempfile::Builder::new().prefix("artel-env-").tempdir().expect("a dir");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let url = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    std::fs::write(path("url"), &url).expect("written");
    for mode in ["exec", "lines"] {
        let (handled, made) = (path(&format!("handled-{mode}")), path(&format!("made-{mode}")));
        let handler = match mode {
            "exec" => format!("env > {handled}"),
            _ => format!("env > {handled}; while read -r line; do echo \"$line\"; done"),
        };
        let generator = format!("env > {made}; echo hello");
        let fleet = format!("{FLEET}-{mode}");
        let args = [
            "run",
            "--fleet",
            &fleet,
            "--handler",
            &handler,
            "--handler-mode",
            mode,
            "--generator",
            &generator,
            "--interval",
            "50ms",
            "--http",
            "0",
        ];
        let mut members: Vec<Program> = (0..2)
            .map(|_| {
                let mut command = clean_command(artel(), &args);
                command.stdin(std::process::Stdio::null()).env("ARTEL_REDIS_URL", &url);
                command.env("REDIS_URL", &url).env("ARTEL_REDIS", &url);
                command.env("ARTEL_HTTP_TOKEN", "hunter2-0123456789").env("ARTEL_LABEL", "kept");
                Program::spawn(command)
            })
            .collect();
        for (file, own) in [(&handled, "ARTEL_LABEL=kept"), (&made, "ARTEL_SEQ=")] {
            eventually("it to run", || {
                std::fs::read_to_string(file).is_ok_and(|text| text.contains(own))
            });
            let text = std::fs::read_to_string(file).expect("a text");
            assert!(!text.contains("hunter2"), "{mode}: {text}");
            assert!(
                text.contains("ARTEL_EMBEDDED=never"),
                "it finds no other Redis by chance: {text}"
            );
        }
        for member in &mut members {
            member.terminate();
            assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
            assert!(!member.stderr().contains("hunter2"), "{}", member.stderr());
        }
    }
}

/// A handler that says too much fills no disk.
#[test]
fn what_a_handler_says_is_told_at_a_pace() {
    let server = Server::any();
    let mut bench = Bench::new(server);
    let script = "#!/bin/sh\nwhile read -r line; do\n\
        i=0; while [ $i -lt 5000 ]; do echo \"noise $i\" >&2; i=$((i+1)); done\n\
        id=$(echo \"$line\" | sed 's/.*\"id\":\"\\([^\"]*\\)\".*/\\1/'); echo \"{\\\"id\\\":\\\"$id\\\"}\"\n\
        done\n";
    let handler = bench.script("noisy", script).display().to_string();
    let generator = ["--generator", "echo x", "--interval", "100ms"];
    bench.start(&[&["--handler", &handler, "--handler-mode", "lines"][..], &generator].concat());
    let told = |word: &str| -> usize {
        bench.members.iter().map(|member| member.stderr().matches(word).count()).sum()
    };
    eventually("lines to be left out", || told("lines were left out") > 0);
    let done: u64 = serde_json::from_str::<serde_json::Value>(&bench.artel(&["status", "--json"]))
        .expect("a document")["messages"]["done"]
        .as_u64()
        .expect("a count");
    println!("{done} messages, {} lines told", told("noise "));
    assert!((told("noise ") as u64) < 5000 * done.max(1), "not all of them");
}
