//! TLS that must not be trusted.

use artel_rig::{Certs, Kind, Server, free_port};

use crate::screen::{artel, says, text};

fn server(certs: &Certs, cert: &str, ask_clients: bool) -> Option<(Server, u16)> {
    // Valkey from PyPI has no TLS.
    Kind::Redis.program()?;
    let port = free_port();
    let options = certs.server_options(cert, port, ask_clients);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Some((Server::with(Kind::Redis, &options), port))
}

#[test]
fn certificates_that_are_not_to_be_trusted() {
    let certs = Certs::new();
    let (ca, stranger) = (certs.cert("ca"), certs.cert("stranger"));
    let (ca, stranger) = (ca.display().to_string(), stranger.display().to_string());
    for (cert, trusted, reason, hint) in [
        (
            "server",
            &stranger,
            "invalid peer certificate: unknownissuer",
            "the server's certificate is signed by an authority that is not trusted here: pass its \
             certificate with `--tls-ca <FILE>`",
        ),
        (
            "elsewhere",
            &ca,
            "invalid peer certificate: certificate not valid for name \"localhost\"; certificate is \
             only valid for dnsname(\"redis.example\")",
            "the server's certificate is for another name: use a name it is for in the address",
        ),
        (
            "expired",
            &ca,
            "invalid peer certificate: certificate expired",
            "the server's certificate has expired: renew it (or is this machine's clock wrong?)",
        ),
    ] {
        let Some((_server, port)) = server(&certs, cert, false) else { return };
        let url = format!("rediss://:hunter2@localhost:{port}");
        for command in ["run", "status"] {
            let args = [command, "--redis", &url, "--tls-ca", trusted];
            says(
                &args,
                3,
                &format!(
                    "error: cannot reach Redis at rediss://localhost:{port}: {reason}\n\nhint: {hint}"
                ),
            );
        }
    }
}

#[test]
fn a_server_that_wants_to_know_us() {
    let certs = Certs::new();
    let Some((_server, port)) = server(&certs, "server", true) else { return };
    let url = format!("rediss://localhost:{port}");
    let ca = certs.cert("ca").display().to_string();
    let output = artel(&["status", "--redis", &url, "--tls-ca", &ca]);
    let screen = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{screen}");
    assert!(screen.contains("--tls-cert"), "{screen}");
    let (cert, key) = (certs.cert("stranger"), certs.key("stranger"));
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let output = artel(&[
        "status",
        "--redis",
        &url,
        "--tls-ca",
        &ca,
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
    ]);
    let screen = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{screen}");
    assert!(screen.contains("--tls-cert"), "{screen}");
}

#[test]
fn files_that_are_no_certificates() {
    let dir = tempfile::tempdir().expect("a dir");
    let path = dir.path().join("ca.pem").display().to_string();
    let url = "rediss://localhost:1";
    says(
        &["status", "--redis", url, "--tls-ca", &path],
        1,
        &format!(
            "error: cannot read {path}: No such file or directory (os error 2)\n\n\
             hint: is the path right, and may this user read it?"
        ),
    );
    std::fs::write(&path, "hello\n").expect("writes");
    says(
        &["status", "--redis", url, "--tls-ca", &path],
        2,
        "error: --tls-ca holds no certificate in PEM form\n\n\
         hint: it should have a line `-----BEGIN CERTIFICATE-----`",
    );
    says(
        &["status", "--redis", "redis://localhost:1", "--tls-ca", &path],
        2,
        "error: --redis has certificates, so it must begin with rediss://\n\n\
         hint: write rediss:// instead of redis://",
    );
    says(
        &["status", "--redis", "rediss://localhost:1#insecure"],
        2,
        "error: --redis must not switch the check of certificates off (#insecure)\n\n\
         hint: pass the certificate to trust with `--tls-ca <FILE>`",
    );
}

/// TLS to a port that has none: a Redis that waits for the end of a line is asked plainly, so the answer is clear and
/// comes soon.
#[test]
fn tls_to_a_plain_port_is_named() {
    let certs = Certs::new();
    let server = crate::screen::any_server(&[]);
    let (port, ca) = (server.port(), certs.cert("ca").display().to_string());
    let url = format!("rediss://localhost:{port}");
    // What a handshake begins with is random, and so is whether Redis takes it for a line.
    for _ in 0..10 {
        let began = std::time::Instant::now();
        says(
            &["status", "--redis", &url, "--tls-ca", &ca],
            3,
            &format!(
                "error: cannot reach Redis at {url}: what answers there does not speak tls\n\n\
                 hint: write redis:// instead of rediss://, or give the port that speaks TLS"
            ),
        );
        println!("after {:?}", began.elapsed());
    }
}

#[test]
fn a_plain_connection_to_a_tls_port_is_named() {
    let certs = Certs::new();
    let Some((_server, port)) = server(&certs, "server", false) else { return };
    let began = std::time::Instant::now();
    says(
        &["status", "--redis", &format!("redis://localhost:{port}")],
        3,
        &format!(
            "error: cannot reach Redis at redis://localhost:{port}: what answers there speaks tls\n\n\
             hint: write rediss:// instead of redis://"
        ),
    );
    println!("after {:?}", began.elapsed());
}

/// A web server, a mail server, an ssh server: what they say is shown.
#[test]
fn what_is_not_redis_is_named() {
    for (says_it, shown) in [
        ("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "http/1.1 400 bad request"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "ssh-2.0-openssh_9.2"),
        ("220 mail.example ESMTP\r\n", "220 mail.example esmtp"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = std::io::Write::write_all(&mut &stream, says_it.as_bytes());
                // Kept open: the answer must not wait for its end.
                std::mem::forget(stream);
            }
        });
        says(
            &["status", "--redis", &format!("redis://127.0.0.1:{port}")],
            3,
            &format!(
                "error: cannot reach Redis at redis://127.0.0.1:{port}: what answers there is not redis, it says \
                 \"{shown}\"\n\nhint: is the port right? Redis usually has 6379"
            ),
        );
    }
}
