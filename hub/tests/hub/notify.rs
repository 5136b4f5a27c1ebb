use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use artel_hub::notify::{ALERTS, Alert, Mail, Notifier, Send, SendError, Webhook};
use artel_hub::{Context, Delivery, EventHub, Restart, Severity, Topic};

use crate::{Gate, LONG, Seen, eventually};

const NUMBERS: Topic<u32> = Topic::new("numbers");

/// Takes every request on a free port and answers it.
fn http_catcher(answers: &'static [&'static str]) -> (String, Seen<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/hook?token=secret", listener.local_addr().expect("an address"));
    let seen = Seen::new();
    let see: Seen<String> = seen.clone();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = BufReader::new(stream.expect("a connection"));
            let mut length = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).expect("a line");
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                    length = value.trim().parse().expect("a number");
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).expect("a body");
            see.push(String::from_utf8(body).expect("text"));
            let status = answers.get(number).unwrap_or(&"200 OK");
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.get_mut().write_all(answer.as_bytes()).expect("answered");
        }
    });
    (url, seen)
}

/// Takes every mail on a free port, as a server without TLS does.
fn smtp_catcher() -> (String, Seen<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("smtp://{}", listener.local_addr().expect("an address"));
    let seen = Seen::new();
    let see: Seen<String> = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("a connection"));
            let say = |stream: &mut BufReader<std::net::TcpStream>, text: &str| {
                let _ = stream.get_mut().write_all(text.as_bytes());
            };
            say(&mut stream, "220 catcher\r\n");
            let (mut mail, mut data) = (String::new(), false);
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).unwrap_or(0) == 0 {
                    break;
                }
                match line.trim_end() {
                    "." if data => {
                        data = false;
                        see.push(std::mem::take(&mut mail));
                        say(&mut stream, "250 taken\r\n");
                    }
                    _ if data => mail.push_str(&line),
                    "DATA" => {
                        data = true;
                        say(&mut stream, "354 go on\r\n");
                    }
                    "QUIT" => {
                        say(&mut stream, "221 bye\r\n");
                        break;
                    }
                    _ => say(&mut stream, "250 fine\r\n"),
                }
            }
        }
    });
    (url, seen)
}

/// A subscriber whose budget is spent is a critical error: the webhooks and the mailbox hear of it,
/// once, however often the like happens within the cooldown.
#[test]
fn a_critical_error_is_told_once_per_cooldown() {
    let hub = EventHub::new();
    let (json_url, json) = http_catcher(&[]);
    let (slack_url, slack) = http_catcher(&[]);
    let (smtp_url, mails) = smtp_catcher();
    let mail = Mail::smtp(&smtp_url, "hub@example.org", ["ops@example.org"]).expect("a mailer");
    let notifier = Notifier::new()
        .cooldown(Duration::from_secs(3600))
        .to(Webhook::json(&json_url).expect("a hook"))
        .to(Webhook::slack(&slack_url).expect("a hook"))
        .to(mail)
        .start(&hub)
        .expect("started");
    for _ in 0..3 {
        let doomed = hub
            .subscribe(&NUMBERS)
            .name("doomed")
            .on(Context::Thread)
            .restart(Restart::never())
            .spawn(|event: Delivery<'_, u32>| assert!(*event > 9, "out of paper"))
            .expect("subscribed");
        hub.blocking_publish(&NUMBERS, 1).expect("published");
        eventually("its end", || doomed.is_over());
    }
    eventually("all notices to be looked at", || notifier.stats().lag == 0);
    assert_eq!((json.len(), slack.len(), mails.len()), (1, 1, 1));
    let alert: Alert = serde_json::from_str(&json.all()[0]).expect("an alert");
    assert_eq!((alert.severity, &*alert.source), (Severity::Critical, "doomed"));
    assert!(alert.text.contains("out of paper"), "{alert}");
    let slack: serde_json::Value = serde_json::from_str(&slack.all()[0]).expect("json");
    assert_eq!(slack["text"].as_str(), Some(&*alert.to_string()));
    let mail = &mails.all()[0];
    assert!(mail.contains("To: ops@example.org") && mail.contains("[critical] doomed"), "{mail}");

    // What the program itself has to say goes the same way, and has its own cooldown.
    hub.blocking_publish(&ALERTS, Alert::new(Severity::Critical, "billing", "no paper either"))
        .expect("published");
    hub.blocking_publish(&ALERTS, Alert::new(Severity::Warning, "billing", "not worth a mail"))
        .expect("published");
    eventually("it to be told", || mails.len() == 2);
    assert!(mails.all()[1].contains("no paper either"));
    notifier.blocking_stop(LONG).expect("stopped");
}

/// A hook that fails is tried again, without telling the others twice; secrets stay secret.
#[test]
fn a_failed_alert_is_sent_again_to_the_one_that_failed() {
    let hub = EventHub::new();
    let (first_url, first) = http_catcher(&[]);
    let (second_url, second) = http_catcher(&["500 No", "503 Not yet"]);
    let hook = Webhook::json(&second_url).expect("a hook");
    assert!(!format!("{hook:?}").contains("secret"));
    let notifier =
        Notifier::new().to(Webhook::json(&first_url).expect("a hook")).to(hook).start(&hub);
    let notifier = notifier.expect("started");
    hub.blocking_publish(&ALERTS, Alert::new(Severity::Critical, "a", "b")).expect("published");
    eventually("the third try", || second.len() == 3);
    eventually("it to be done", || notifier.stats().lag == 0);
    assert_eq!((first.len(), notifier.stats().letters), (1, 0));

    let mut dead = Webhook::json("http://127.0.0.1:1/secret").expect("a hook");
    let error = dead.send(&Alert::new(Severity::Error, "a", "b")).expect_err("nobody is there");
    assert!(error.to_string().contains("no connection"), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
    assert!(Webhook::json("ftp://x").is_err() && Webhook::json("nonsense").is_err());
    assert!(Mail::smtp("http://x", "a@b", ["c@d"]).is_err());
    assert!(Mail::smtp("smtp://x", "nonsense", ["c@d"]).is_err());
    assert!(Mail::smtp("smtp://x", "a@b", []).is_err());
}

/// A network that hangs fills the notifier's own queue; the rest is dropped and counted, and
/// whoever publishes does not notice.
#[test]
fn a_hanging_network_holds_up_nobody() {
    struct Hangs(Gate);
    impl Send for Hangs {
        fn send(&mut self, _: &Alert) -> Result<(), SendError> {
            self.0.pass();
            Ok(())
        }
    }
    let (hub, gate) = (EventHub::new(), Gate::default());
    let notifier =
        Notifier::new().waiting(10).to(Hangs(gate.clone())).start(&hub).expect("started");
    let alert = |number: u32| Alert::new(Severity::Critical, number.to_string(), "x");
    hub.blocking_publish(&ALERTS, alert(0)).expect("published");
    gate.reached(1);
    for number in 1..=100 {
        hub.blocking_publish(&ALERTS, alert(number)).expect("published");
    }
    // And the notice that it loses alerts does not fit either.
    assert_eq!(notifier.stats().dropped, 91);
    gate.open();
    eventually("the others to be told", || notifier.stats().processed == 11);
    notifier.blocking_stop(LONG).expect("stopped");
}
