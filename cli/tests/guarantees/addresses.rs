//! Addresses of several servers. What cannot be followed is told, with what to try; one that disagrees with the others is
//! not believed.

use artel_rig::{Cluster, Kind, Sentinels, ask_port, eventually};

use crate::fleet::on_each_server;
use crate::following::{key, run, start};

/// It cannot be used: for this reason, and with this hint.
#[track_caller]
fn refused(url: &str, error: &str, hint: &str) {
    let (code, out, err) = run(url, &["status"]);
    assert!(code != Some(0) && out.is_empty(), "{url}: {out}");
    assert!(err.contains(error) && err.contains(hint), "{url}: {err}");
}

/// What cannot be followed is told, with what to try.
#[test]
fn addresses_that_lead_nowhere() {
    let all = Sentinels::start(
        if Kind::Redis.program().is_some() { Kind::Redis } else { Kind::Valkey },
        2,
    );
    let other = all.url().replace("master=main", "master=other");
    refused(&other, "the sentinels know no primary called \"other\"", "sentinel masters");
    let port = artel_rig::free_port();
    let away = format!("redis-sentinel://127.0.0.1:{port}?master=main");
    refused(&away, "none of 1 sentinels answers", "26379");
    let replica = all.servers[1 - all.primary()].url();
    refused(&replica, "is a replica", "redis-sentinel://");
    refused("redis-sentinel://127.0.0.1:1", "?master=NAME", "redis-sentinel://HOST");
    let plain = all.servers[all.primary()].url().replace("redis://", "redis-cluster://");
    refused(&plain, "no node of a cluster", "write redis://");
    let mut member = start(&away, &[]);
    assert_eq!(member.exit_code(), Some(3), "{}", member.stderr());
}

on_each_server! {
    /// Sentinels may have a password of their own.
    fn sentinels_want_another_password(kind) {
        let all = Sentinels::start(kind, 2);
        for port in all.ports() {
            let () = ask_port(port, &["ACL", "SETUSER", "default", "resetpass", ">hush"]).expect("set");
        }
        refused(&all.url(), "NOAUTH", "--sentinel-password-file");
        let dir = tempfile::tempdir().expect("a folder");
        for (password, code) in [("other", 1), ("hush", 0)] {
            let file = dir.path().join(password);
            std::fs::write(&file, password).expect("written");
            let file = file.to_str().expect("text");
            let (ended, _, err) = run(&all.url(), &["send", "x", "--sentinel-password-file", file]);
            assert!(ended == Some(code) && !err.contains("hush"), "{ended:?} {err}");
            assert!(code == 0 || err.contains("--sentinel-password-file"), "{err}");
        }
    }

    /// A sentinel that was away names the server that was the primary before.
    fn a_sentinel_that_is_behind_is_not_believed(kind) {
        let all = Sentinels::start(kind, 2);
        let old = all.servers[all.primary()].port().to_string();
        all.hand_over();
        let behind = all.ports()[0];
        for words in [&["SENTINEL", "REMOVE", "main"][..], &["SENTINEL", "MONITOR", "main", "127.0.0.1", &old, "2"]] {
            let () = ask_port(behind, words).expect("done");
        }
        let (code, _, err) = run(&all.url(), &["send", "x"]);
        assert_eq!(code, Some(0), "{err}");
        let sent: Option<u64> = redis::cmd("HGET").arg(key("counts")).arg("sent")
            .query(&mut all.servers[all.primary()].connect()).expect("answers");
        assert_eq!(sent, Some(1));
    }

    /// A cluster in which nobody has the slot of the fleet: that is said. As soon as somebody has it, everything goes on.
    fn a_slot_that_nobody_has_is_waited_for(kind) {
        let cluster = Cluster::start(kind, 2, 0);
        let slot = cluster.slot(&key("config"));
        let (owner, text) = (cluster.nodes[cluster.owner(slot)].port(), slot.to_string());
        let mut member = start(&cluster.url(), &["--interval", "20ms"]);
        eventually("it to join", || run(&cluster.url(), &["status"]).0 == Some(0));
        let () = ask_port(owner, &["CLUSTER", "DELSLOTS", &text]).expect("done");
        eventually("it to be said", || {
            let (code, out, err) = run(&cluster.url(), &["status"]);
            code == Some(3) && out.is_empty() && err.contains("no primary: waiting for a failover") && err.contains("--cluster check")
        });
        let () = ask_port(owner, &["CLUSTER", "ADDSLOTS", &text]).expect("done");
        eventually("it to go on", || run(&cluster.url(), &["send", "x"]).0 == Some(0));
        member.terminate();
        assert_eq!(member.exit_code(), Some(0), "{}", member.stderr());
        let said = member.stderr();
        assert!(!said.contains("data loss") && !said.contains("session lost"), "{said}");
    }

    /// Each of two nodes says that the other one has the slot.
    fn nodes_that_name_each_other_are_told(kind) {
        let cluster = Cluster::start(kind, 2, 0);
        let slot = cluster.slot(&key("config")).to_string();
        for node in 0..2 {
            let other = cluster.id(1 - node);
            let () = ask_port(cluster.nodes[node].port(), &["CLUSTER", "SETSLOT", &slot, "NODE", &other]).expect("done");
        }
        refused(&cluster.url(), "the servers name each other in a circle", "--cluster");
    }
}
