//! Alerts: told once when they fire and once when they are resolved, whichever member dies.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use artel_rig::{Catcher, Caught, Program, Server, clean_command, eventually, wait_for};
use regex::Regex;
use serde_json::Value;

use crate::fleet::{FLEET, TestFleet, artel, on_each_server};

/// One alert, as a sink got it.
#[derive(Clone, Debug)]
struct Told {
    rule: String,
    is_resolved: bool,
    is_repeat: bool,
    text: String,
}

fn of_webhook(caught: &Caught) -> Told {
    let alert: Value = serde_json::from_str(&caught.body).expect("JSON");
    let text = |name: &str| alert[name].as_str().expect("a text").to_owned();
    Told {
        rule: text("source").trim_start_matches(&format!("{FLEET}/")).to_owned(),
        is_resolved: alert["is_resolved"] == true,
        is_repeat: alert["is_repeat"] == true,
        text: text("text"),
    }
}

fn of_mail(caught: &Caught) -> Told {
    // A long header, or a long line of text, goes on in the next line.
    let head = caught.head.replace("\r\n ", " ");
    let subject = head.lines().find_map(|line| line.strip_prefix("Subject: ")).expect("a subject");
    let text = caught.body.replace("=\r\n", "").replace("\r\n", " ");
    let rule = Regex::new(r"^\[(\w+)\] \w+/(\w+):").expect("a pattern");
    let found = rule.captures(subject).unwrap_or_else(|| panic!("{subject}"));
    Told {
        rule: found[2].to_owned(),
        is_resolved: &found[1] == "resolved",
        is_repeat: text.contains("(repeat)"),
        text,
    }
}

/// A fleet whose handlers wait while `gate` is not there, with alerts to a webhook, a mailbox and a command.
struct Watched {
    fleet: TestFleet,
    gate: std::path::PathBuf,
    http: Catcher,
    mail: Catcher,
    /// How many members were started.
    labels: usize,
    _dir: tempfile::TempDir,
}

impl Watched {
    fn start(server: Server, count: usize, http: Catcher, mail: Catcher) -> Watched {
        let dir = tempfile::tempdir().expect("a folder");
        let gate = dir.path().join("gate");
        let handler = format!("while [ ! -e {} ]; do sleep 0.05; done", gate.display());
        let webhook = format!("webhook:http://{}/hook?token=hush", http.address());
        let post =
            format!("mail:smtp://{}?from=artel@example.org&to=ops@example.org", mail.address());
        let options = [
            "--handler",
            &handler,
            "--generator",
            "true",
            "--interval",
            "100ms",
            "--concurrency",
            "1",
            "--lease",
            "1s",
            "--verbose",
            "--alert",
            "backlog_age > 300ms",
            "--alert",
            "generator_changed",
            "--alert",
            "data_loss",
            "--alert-to",
            &webhook,
            "--alert-to",
            &post,
        ];
        let fleet = TestFleet::on(server, 0, &options);
        let mut watched = Watched { fleet, gate, http, mail, labels: 0, _dir: dir };
        (0..count).for_each(|_| watched.add());
        let fleet = &mut watched.fleet;
        eventually("all members to join", || fleet.sessions().len() == count);
        let alerts = fleet.key("alerts");
        eventually("one that judges", || {
            redis::cmd("HEXISTS").arg(&alerts).arg("by").query(fleet.connection()).expect("asked")
        });
        watched
    }

    fn add(&mut self) {
        let (url, label) = (self.fleet.server.url(), format!("member-{}.", self.labels));
        self.labels += 1;
        self.fleet.add_with(&["--redis", &url, "--label", &label]);
    }

    /// Sends messages.
    fn send(&self, count: usize) {
        let mut args = vec!["send", "--fleet", FLEET, "--redis"];
        let (url, payloads) = (self.fleet.server.url(), vec!["x"; count]);
        args.push(&url);
        args.extend(payloads);
        assert!(clean_command(artel(), &args).output().expect("it runs").status.success());
    }

    /// Waits until each member has learned, this often, how many claims are open.
    fn all_know_as_open(&self, open: usize, times: usize) {
        let said = format!("alerts that fire, by sink: {open}");
        eventually("all members to know what fires", || {
            let members = self.fleet.members.iter();
            members.map(|member| member.stderr().matches(&said).count()).all(|n| n >= times)
        });
    }

    fn close(&self) {
        std::fs::remove_file(&self.gate).expect("it was open");
    }

    fn open(&self) {
        std::fs::write(&self.gate, "").expect("a file");
    }

    /// What both sinks were told.
    fn told(&self) -> [Vec<Told>; 2] {
        [
            self.http.taken().iter().map(of_webhook).collect(),
            self.mail.taken().iter().map(of_mail).collect(),
        ]
    }

    /// Waits until both sinks were told this of the backlog this often, apart from repeats.
    fn eventually_told(&self, what: &str, is_resolved: bool, times: usize) {
        eventually(what, || {
            self.told().iter().all(|told| episodes(told, is_resolved).len() >= times)
        });
    }
}

/// What was told about the backlog, one group per episode: all that came before the other kind.
fn episodes(told: &[Told], is_resolved: bool) -> Vec<Vec<Told>> {
    let about: Vec<&Told> = told.iter().filter(|told| told.rule == "backlog_age").collect();
    let groups = about.chunk_by(|one, next| one.is_resolved == next.is_resolved);
    let groups = groups.filter(|group| group[0].is_resolved == is_resolved);
    groups.map(|group| group.iter().map(|told| (*told).clone()).collect()).collect()
}

on_each_server! {
    /// The generator is killed again and again, often while it tells an alert, through three episodes. Each sink is told
    /// each episode, and its end; twice only if the sender died meanwhile, and then it is marked. No change of the
    /// generator is left out.
    fn an_alert_is_told_once_whichever_member_dies(kind) {
        // A receiver that answers late: its sender often dies before.
        let late = |answer: &'static str| move |_: &Caught| {
            std::thread::sleep(std::time::Duration::from_millis(400)); // the fault itself
            answer.to_owned()
        };
        let (http, mail) = (Catcher::http(late("200 OK")), Catcher::mail(late("250 taken")));
        let mut watched = Watched::start(Server::start(kind), 6, http, mail);
        let mut elected = Vec::new();
        let mut failover = |watched: &mut Watched| {
            let (_, process) = watched.fleet.leader();
            watched.fleet.members[process].kill();
            watched.fleet.members.remove(process);
            watched.add();
            let (leader, _) = watched.fleet.leader();
            let key = watched.fleet.key(&format!("member:{leader}"));
            let label = redis::cmd("HGET").arg(key).arg("label").query(watched.fleet.connection());
            elected.push(label.unwrap_or_else(|_| String::new()));
        };
        watched.open();
        for (episode, kills) in [(1, 4), (2, 3), (3, 3)] {
            watched.close();
            watched.send(24);
            failover(&mut watched);
            watched.eventually_told("the backlog", false, episode);
            (1..kills).for_each(|_| failover(&mut watched));
            watched.open();
            watched.eventually_told("its end", true, episode);
        }
        for told in watched.told() {
            for is_resolved in [false, true] {
                let episodes = episodes(&told, is_resolved);
                assert_eq!(episodes.len(), 3, "{told:#?}");
                for episode in episodes {
                    let again = &episode[1..];
                    assert!(again.iter().all(|told| told.is_repeat), "{episode:#?}");
                    assert!(again.len() <= 10, "{episode:#?}");
                }
            }
        }
        assert_eq!(elected.len(), 10);
        eventually("every change of the generator", || {
            watched.told().iter().all(|told| {
                let mut told = told.iter().filter(|told| told.rule == "generator_changed");
                let texts = told.by_ref().map(|told| told.text.as_str()).collect::<String>();
                // A process that is killed as soon as it is elected may have been nobody's news.
                elected.iter().filter(|label| !label.is_empty()).all(|label| texts.contains(label.as_str()))
            })
        });
        let repeats = watched.told().map(|told| told.iter().filter(|told| told.is_repeat).count());
        println!("repeats: {repeats:?}");
    }
}

on_each_server! {
    /// Redis loses everything, again and again: that it did is told each time, and so is the end of what fired before.
    fn a_loss_is_told_and_what_fired_before_is_resolved(kind) {
        let at_once = |answer: &'static str| move |_: &Caught| answer.to_owned();
        let (http, mail) = (Catcher::http(at_once("200 OK")), Catcher::mail(at_once("250 taken")));
        let watched = Watched::start(Server::start(kind), 3, http, mail);
        watched.open();
        for round in 1..4 {
            watched.close();
            watched.send(12);
            watched.eventually_told("the backlog", false, round);
            watched.all_know_as_open(2, round); // any member may have to end it
            watched.fleet.server.say(&["FLUSHALL"]);
            watched.open();
            watched.eventually_told("its end", true, round);
            eventually("the loss", || {
                watched.told().iter().all(|told| {
                    told.iter().filter(|told| told.rule == "data_loss").count() >= round
                })
            });
            watched.all_know_as_open(0, round);
        }
        for told in watched.told() {
            assert!(episodes(&told, false).iter().all(|episode| episode.len() == 1), "{told:#?}");
        }
    }
}

/// What another program wrote into the record of the alerts keeps nobody from being told.
#[test]
fn a_damaged_record_keeps_nothing_back() {
    let server = Server::any();
    let http = Catcher::http(|_| "200 OK".to_owned());
    let to = format!("webhook:http://{}/", http.address());
    let rules = ["--alert", "member_lost", "--alert", "generator_changed", "--alert-to", &to];
    let one = member(&server, "one", &rules);
    let alerts = format!("artel:{{{FLEET}}}:alerts");
    let mut redis = server.connect();
    let mut set = |field: &str, value: &[u8]| {
        let () =
            redis::cmd("HSET").arg(&alerts).arg(field).arg(value).query(&mut redis).expect("set");
    };
    let told =
        |text: &str| http.taken().iter().map(of_webhook).any(|told| told.text.contains(text));
    let loses = |label: &str| {
        let mut lost = member(&server, label, &["--alert", "member_lost", "--alert-to", &to]);
        lost.kill();
    };
    eventually("one that judges", || {
        redis::cmd("HEXISTS")
            .arg(&alerts)
            .arg("cursor")
            .query(&mut server.connect())
            .expect("asked")
    });
    set("news:webhook:generator_changed", b"\xff\xfe damaged");
    loses("lost-1");
    eventually("the first loss", || told("lost-1") && told("\u{fffd} damaged"));
    for (label, cursor) in [("lost-2", "garbage"), ("lost-3", "99999999999999-0")] {
        set("cursor", cursor.as_bytes());
        loses(label);
        eventually(label, || told(label));
    }
    set("rule:member_lost", b"q|99999999999999|99999999999999|0");
    loses("lost-4");
    eventually("the last loss", || told("lost-4"));
    // A key of another type: the log says that nothing is judged, once, and that it is again.
    let mut redis = server.connect();
    let () = redis::cmd("SET").arg(&alerts).arg("x").query(&mut redis).expect("set");
    eventually("a warning", || one.stderr().contains("alerts are not judged"));
    let () = redis::cmd("DEL").arg(&alerts).query(&mut redis).expect("deleted");
    eventually("the end of it", || one.stderr().contains("alerts are judged again"));
    assert_eq!(one.stderr().matches("alerts are not judged").count(), 1);
}

/// The judge is frozen while a sink is slow. Another member tells what it had claimed, marked. When it wakes, it tells
/// nothing of that any more.
#[test]
fn a_frozen_judge_tells_nothing_that_others_have_told() {
    let slow = Arc::new(AtomicBool::new(true));
    let held = slow.clone();
    let http = Catcher::http(move |_| {
        while held.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(20)); // the fault itself
        }
        "200 OK".to_owned()
    });
    let mail = Catcher::mail(|_| "250 taken".to_owned());
    let mut watched = Watched::start(Server::any(), 2, http, mail);
    eventually("the first change to be told", || watched.http.taken().len() == 1);
    watched.send(12); // the gate was never open
    let claimed = watched.fleet.key("alerts");
    // Whoever has claimed it is frozen: the first judge need not be the one that leads now.
    let judge = wait_for("the backlog to wait behind it", || {
        let told: String = redis::cmd("HGET")
            .arg(&claimed)
            .arg("told:webhook:backlog_age > 300ms")
            .query(watched.fleet.connection())
            .unwrap_or_default();
        let (_, claim) = told.split_once("|firing|")?;
        claim.split_once('|').map(|(_, judge)| judge.to_owned()).filter(|judge| !judge.is_empty())
    });
    let frozen = watched.fleet.process_of(&judge).expect("a member");
    watched.fleet.members[frozen].freeze();
    eventually("it to be judged dead", || !watched.fleet.sessions().contains(&judge));
    slow.store(false, Ordering::Relaxed);
    watched.eventually_told("the backlog", false, 1);
    watched.fleet.members[frozen].thaw();
    eventually("it to join again", || watched.fleet.sessions().len() == 2);
    watched.open();
    watched.eventually_told("its end", true, 1);
    let [told, _] = watched.told();
    let begun: Vec<bool> = episodes(&told, false)[0].iter().map(|told| told.is_repeat).collect();
    assert_eq!(begun, [true], "{told:#?}");
}

/// The receiver fails as long as Redis is away, as it does when a network is cut. Both the begin and the end are told later.
#[test]
fn what_a_sink_could_not_be_told_is_told_later() {
    let mut server = Server::any();
    let away = Arc::new(AtomicBool::new(true));
    let fails = away.clone();
    let http = Catcher::http(move |_| match fails.load(Ordering::Relaxed) {
        true => "500 Internal Server Error".to_owned(),
        false => "200 OK".to_owned(),
    });
    let to = format!("webhook:http://{}/", http.address());
    let one = member(&server, "one", &["--alert", "redis_down > 500ms", "--alert-to", &to]);
    server.kill();
    eventually("it to be given up for now", || one.stderr().contains("an alert was not sent"));
    let tries = http.taken().len();
    server.restart();
    away.store(false, Ordering::Relaxed);
    eventually("begin and end", || http.taken().len() >= tries + 2);
    let told: Vec<Told> = http.taken()[tries..].iter().map(of_webhook).collect();
    let what: Vec<(bool, bool)> =
        told.iter().map(|told| (told.is_resolved, told.is_repeat)).collect();
    assert_eq!(what, [(false, true), (true, false)], "{told:#?}");
    let said = one.stderr();
    assert_eq!(said.matches("an alert was not sent").count(), 1, "once for all tries: {said}");
    assert!(said.contains("alerts are sent again"), "{said}");
}

/// A member with these alert options.
fn member(server: &Server, label: &str, options: &[&str]) -> Program {
    let url = server.url();
    let mut args = vec!["run", "--fleet", FLEET, "--redis", &url, "--label", label];
    args.extend(["--lease", "1s", "--interval", "50ms"]);
    args.extend(options);
    let program = Program::start(artel(), &args);
    program.says("joined");
    program
}

/// Each process tells that Redis is away, and that it is back; nothing else is told meanwhile.
#[test]
fn each_process_tells_that_redis_is_away_and_back() {
    let mut server = Server::any();
    let http = Catcher::http(|_| "200 OK".to_owned());
    let to = format!("webhook:http://{}/", http.address());
    let options = ["--alert", "redis_down > 500ms", "--alert-to", &to];
    let _members = [member(&server, "one", &options), member(&server, "two", &options)];
    let told = |is_resolved: bool| {
        let all = http.taken();
        let told = all.iter().map(of_webhook).filter(|told| told.is_resolved == is_resolved);
        told.map(|told| told.text).collect::<Vec<_>>()
    };
    server.kill();
    eventually("both to tell", || told(false).len() == 2);
    assert!(told(false).iter().all(|text| text.starts_with("Redis does not answer (")));
    server.restart();
    eventually("both to tell that it is back", || told(true).len() == 2);
    assert_eq!(http.taken().len(), 4);
}

/// A sink that hangs, one that redirects and one that fails do not keep an alert from the next one, nor a message from its
/// worker; drops are counted.
#[test]
fn a_sink_that_hangs_holds_up_nobody() {
    let server = Server::any();
    let free = Arc::new(AtomicBool::new(false));
    let held = free.clone();
    let hangs = Catcher::http(move |_| {
        while !held.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(20)); // the fault itself
        }
        "200 OK".to_owned()
    });
    let fails = Catcher::http(|_| "500 Internal Server Error".to_owned());
    let away = Catcher::http(|_| "200 OK".to_owned());
    let target = away.address();
    let redirects = Catcher::http(move |_| format!("302 Found\r\nlocation: http://{target}/"));
    let refuses = Catcher::mail(|_| "554 no".to_owned());
    let good = Catcher::http(|_| "200 OK".to_owned());
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("alerts");
    let hooks: Vec<String> = [&hangs, &fails, &redirects, &good]
        .iter()
        .map(|catcher| format!("webhook:http://{}/hush", catcher.address()))
        .chain([
            format!("mail:smtp://{}?from=a@example.org&to=b@example.org", refuses.address()),
            format!("command:cat >> {}", file.display()),
            "command:sleep 60".to_owned(),
        ])
        .collect();
    let mut options =
        vec!["--error-rate", "1", "--alert", "error_ratio > 0.5 over 5s", "--http", "0"];
    hooks.iter().for_each(|hook| options.extend(["--alert-to", hook]));
    let one = member(&server, "one", &options);
    let _two = member(&server, "two", &options);
    eventually("the good ones to be told", || {
        good.taken().len() == 1
            && std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with("}\n"))
    });
    eventually("all to be tried", || {
        [&hangs, &fails, &redirects, &refuses].iter().all(|catcher| !catcher.taken().is_empty())
    });
    let said = wait_for("a failure in the log", || {
        let said = one.stderr() + &_two.stderr();
        said.contains("an alert was not sent").then_some(said)
    });
    assert!(!said.contains("hush"), "an address is a secret: {said}");
    let done = |server: &Server| -> i64 {
        let key = format!("artel:{{{FLEET}}}:counts");
        redis::cmd("HGET").arg(key).arg("failed").query(&mut server.connect()).expect("a number")
    };
    let before = done(&server);
    eventually("messages to go on", || done(&server) > before + 20);
    assert!(away.taken().is_empty(), "redirects are not followed");
    assert_eq!(good.taken().len(), 1);
    free.store(true, Ordering::Relaxed);
}

/// `notify test` tries one sink, or all; a signature proves who sent it; wrong settings are named with their place.
#[test]
fn sinks_can_be_tried_out() {
    let http = Catcher::http(|_| "200 OK".to_owned());
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("artel.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    let run = |args: &[&str]| {
        let mut command = clean_command(artel(), args);
        command.current_dir(dir.path()).env("ARTEL_ALERT_SECRET", "0123456789abcdef");
        let output = command.output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let url = format!("http://{}/hush", http.address());
    write(&format!(
        "alert = [\"member_lost\", \"flapping > 5\"]\nalert-to = [\"log\", \"webhook:{url}\"]\n"
    ));
    let (code, out, err) = run(&["notify", "test"]);
    assert_eq!((code, out.as_str()), (Some(0), "log: sent\nwebhook: sent\n"), "{err}");
    let (code, ..) = run(&["notify", "test", "webhook"]);
    assert_eq!((code, http.taken().len()), (Some(0), 2));
    let caught = &http.taken()[0];
    let signature =
        Regex::new(r"(?mi)^x-artel-signature: (sha256=[0-9a-f]{64})\r$").expect("a pattern");
    let signature = signature.captures(&caught.head).expect("a signature")[1].to_owned();
    let body = dir.path().join("body");
    std::fs::write(&body, &caught.body).expect("written");
    let openssl = "import hmac, sys; print('sha256=' + hmac.new(b'0123456789abcdef', open(sys.argv[1], 'rb').read(), 'sha256').hexdigest())";
    let own = std::process::Command::new("python3")
        .args(["-c", openssl])
        .arg(&body)
        .output()
        .expect("python3");
    assert_eq!(String::from_utf8_lossy(&own.stdout).trim(), signature);

    let (code, _, err) = run(&["config", "check"]);
    assert_eq!(code, Some(0), "{err}");
    let (_, out, _) = run(&["config", "show"]);
    assert!(out.contains("alert-to = [\"log\", \"webhook:…\"]"), "{out}");
    assert!(out.contains("alert = [\"member_lost\", \"flapping > 5\"]"), "{out}");
    let place = Path::new("artel.toml").display().to_string();
    for (text, error, hint) in [
        ("alert = [\n\"member_lots\"]\n", "there is no rule \"member_lots\"", "--alert"),
        ("alert = [\"backlog_age\"]\n", "say how old", "--alert"),
        ("alert = [1]\n", "must be a list of texts", "such as"),
        ("alert-to = [\"slak:http://hush\"]\n", "did you mean `slack`", "slack:URL"),
        ("alert-to = [\"hush\"]\n", "a sink that does not exist", "slack:URL"),
        ("alert-to = [\"command:\"]\n", "behind command:", "slack:URL"),
        ("otlp = \"localhost:4318\"\nalert = []\n", "it must begin with http", "--otlp"),
        ("alert-to = \"webhook:ftp://hush\"\n", "must begin with http", "webhook:URL"),
        ("alert = [\"flapping\", \"flapping\"]\n", "twice", "notify rules"),
    ] {
        write(text);
        let (code, _, err) = run(&["config", "check"]);
        assert_eq!(code, Some(2), "{text}: {err}");
        assert!(err.contains(error) && err.contains(hint), "{text}: {err}");
        assert!(err.contains(&place), "{text}: {err}");
        assert!(!err.contains("hush"), "{text}: {err}");
    }
    // An error about the command line does not blame the file.
    let (code, _, err) = run(&["notify", "test", "slak:https://hush"]);
    assert!(code == Some(2) && err.contains("SINK: there is no sink `slak`"), "{err}");
    write("alert = []\nalert-to = []\n");
    let (code, _, err) = run(&["config", "check"]);
    assert_eq!(code, Some(0), "{err}");
    let (code, _, err) = run(&["notify", "test"]);
    assert!(code == Some(2) && err.contains("no sink is set"), "{err}");
    let gone = artel_rig::free_port();
    let (code, out, err) =
        run(&["notify", "test", &format!("webhook:http://127.0.0.1:{gone}/hush")]);
    assert!(
        code == Some(1) && out.starts_with("webhook: not sent") && !(out + &err).contains("hush")
    );
    let (code, out, _) = run(&["notify", "rules"]);
    let usual = Regex::new(r"(?m)^\*\s+no_generator > 10s").expect("a pattern");
    assert!(code == Some(0) && usual.is_match(&out), "{out}");
}
