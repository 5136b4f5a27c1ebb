//! A TCP proxy that can cut, stall or delay connections, block one direction, or swallow exactly
//! one reply.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What the proxy does to every connection through it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Nothing: bytes pass.
    Pass,
    /// Breaks every connection and refuses new ones.
    Cut,
    /// Keeps connections open and passes nothing, in either direction.
    Stall,
    /// Existing connections work; new ones have to wait.
    HoldNew,
    /// Passes requests and no replies.
    DropReplies,
    /// Passes replies and no requests.
    DropRequests,
    /// Passes replies, and holds requests back until the fault is over: then all of them arrive,
    /// late.
    HoldRequests,
    /// Passes requests, and holds replies back until the fault is over.
    HoldReplies,
    /// Delays every chunk by this time.
    Delay(Duration),
    /// Delays every chunk by a random time up to this.
    Jitter(Duration),
    /// Passes this many bytes per second.
    Slow(u64),
    /// Passes the next request that contains these bytes, swallows its reply, and breaks that
    /// connection: the request took effect, but its sender cannot know that. After that everything
    /// passes.
    DropReplyTo(Vec<u8>),
}

struct State {
    fault: Mutex<Fault>,
    changed: Condvar,
    /// Replies swallowed by [`Fault::DropReplyTo`].
    swallowed: Mutex<u64>,
    over: AtomicBool,
    target: AtomicU16,
    /// Both ends of every connection, by its number.
    streams: Mutex<HashMap<u64, [TcpStream; 2]>>,
    connections: AtomicU64,
}

/// A running proxy.
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts a proxy to a port on this machine.
    pub fn start(target: u16) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State {
            fault: Mutex::new(Fault::Pass),
            changed: Condvar::new(),
            swallowed: Mutex::new(0),
            over: AtomicBool::new(false),
            target: AtomicU16::new(target),
            streams: Mutex::default(),
            connections: AtomicU64::new(0),
        });
        let accepting = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.over.load(Ordering::Acquire) {
                    return;
                }
                if accepting.fault() == Fault::Cut {
                    continue; // dropped: closed at once
                }
                let state = accepting.clone();
                std::thread::spawn(move || {
                    if state.hold(|fault| *fault == Fault::HoldNew) {
                        let target = state.target.load(Ordering::Acquire);
                        if let Ok(server) = TcpStream::connect(("127.0.0.1", target)) {
                            state.join(client, server);
                        }
                    }
                });
            }
        });
        Ok(Proxy { port, state })
    }

    /// The address of the server behind it, through the proxy.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the fault from now on.
    pub fn set(&self, fault: Fault) {
        let cut = fault == Fault::Cut;
        *self.state.fault.lock().expect("never poisoned") = fault;
        self.state.changed.notify_all();
        if cut {
            self.state.break_all();
        }
    }

    /// From now on, new connections go to another port. Existing ones are kept.
    pub fn retarget(&self, port: u16) {
        self.state.target.store(port, Ordering::Release);
    }

    /// How many replies [`Fault::DropReplyTo`] has swallowed.
    pub fn swallowed(&self) -> u64 {
        *self.state.swallowed.lock().expect("never poisoned")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Release);
        self.state.changed.notify_all();
        self.state.break_all();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl State {
    fn fault(&self) -> Fault {
        self.fault.lock().expect("never poisoned").clone()
    }

    fn break_all(&self) {
        for (_, ends) in self.streams.lock().expect("never poisoned").drain() {
            ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
        }
    }

    /// Forgets a connection that is closed.
    fn forget(&self, number: u64) {
        self.streams.lock().expect("never poisoned").remove(&number);
    }

    fn join(self: &Arc<State>, client: TcpStream, server: TcpStream) {
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let copies =
            (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
        let (Ok(c1), Ok(s1), Ok(c2), Ok(s2)) = copies else { return };
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        self.streams.lock().expect("never poisoned").insert(number, [c1, s1]);
        if self.fault() == Fault::Cut {
            self.break_all(); // the cut came before this connection was in the list
        }
        // Set by the request side, used by the reply side of the same connection.
        let swallow = Arc::new(AtomicBool::new(false));
        let (state, flag) = (self.clone(), swallow.clone());
        std::thread::spawn(move || {
            state.requests(client, s2, &flag);
            state.forget(number);
        });
        let state = self.clone();
        std::thread::spawn(move || {
            state.replies(server, c2, &swallow);
            state.forget(number);
        });
    }

    /// Waits while nothing may pass; false when the proxy is dropped.
    fn hold(&self, blocked: impl Fn(&Fault) -> bool) -> bool {
        let mut fault = self.fault.lock().expect("never poisoned");
        while blocked(&fault) && !self.over.load(Ordering::Acquire) {
            fault = self.changed.wait(fault).expect("never poisoned");
        }
        !self.over.load(Ordering::Acquire)
    }

    fn requests(&self, mut from: TcpStream, mut to: TcpStream, swallow: &AtomicBool) {
        let mut buffer = vec![0; 1 << 16];
        let mut tail: Vec<u8> = Vec::new();
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if !self.hold(|fault| matches!(fault, Fault::Stall | Fault::HoldRequests)) {
                break;
            }
            match self.fault() {
                Fault::DropRequests => continue,
                Fault::DropReplyTo(pattern) => {
                    tail.extend_from_slice(&buffer[..n]);
                    if tail.windows(pattern.len()).any(|window| window == pattern) {
                        // Only one connection, even if two carry such a request at once.
                        let mut fault = self.fault.lock().expect("never poisoned");
                        if *fault == Fault::DropReplyTo(pattern.clone()) {
                            *fault = Fault::Pass;
                            swallow.store(true, Ordering::Release);
                        }
                    }
                    let keep = tail.len().saturating_sub(pattern.len());
                    tail.drain(..keep);
                }
                fault => std::thread::sleep(pause(&fault, n)),
            }
            if to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    fn replies(&self, mut from: TcpStream, mut to: TcpStream, swallow: &AtomicBool) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if swallow.load(Ordering::Acquire) {
                *self.swallowed.lock().expect("never poisoned") += 1;
                break;
            }
            if !self.hold(|fault| matches!(fault, Fault::Stall | Fault::HoldReplies)) {
                break;
            }
            match self.fault() {
                Fault::DropReplies => continue,
                fault => std::thread::sleep(pause(&fault, n)),
            }
            if to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}

/// How long this many bytes are held back.
fn pause(fault: &Fault, bytes: usize) -> Duration {
    match fault {
        Fault::Delay(by) => *by,
        Fault::Jitter(most) => most.mul_f64(rand::random()),
        Fault::Slow(rate) => Duration::from_secs_f64(bytes as f64 / (*rate).max(1) as f64),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of an hour opens tens of thousands of connections.
    #[test]
    fn a_connection_that_is_over_is_forgotten() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = Proxy::start(server.local_addr().expect("an address").port()).expect("a proxy");
        for _ in 0..20 {
            let client = TcpStream::connect(("127.0.0.1", proxy.port)).expect("connected");
            let (mut peer, _) = server.accept().expect("a connection");
            drop(client);
            assert_eq!(peer.read(&mut [0]).expect("an end"), 0);
        }
        let begun = std::time::Instant::now();
        let open = || proxy.state.streams.lock().expect("never poisoned").len();
        while open() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(30), "{} are still kept", open());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
