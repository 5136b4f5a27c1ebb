//! Servers that take what is sent to them, for tests of what sends: HTTP and mail.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// One request, or one mail.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The first line and the headers.
    pub head: String,
    /// The rest.
    pub body: String,
}

type Taken = Arc<Mutex<Vec<Caught>>>;
type Hook = Arc<dyn Fn(&Caught) -> String + Send + Sync>;

/// Takes requests or mails on a free port of this machine, each connection by a thread of its own.
pub struct Catcher {
    address: SocketAddr,
    taken: Taken,
}

impl std::fmt::Debug for Catcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catcher").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Catcher {
    /// Takes HTTP requests. `answer` gets each and returns the status, such as `200 OK`, and further headers; it may block.
    pub fn http(answer: impl Fn(&Caught) -> String + Send + Sync + 'static) -> Catcher {
        let answer: Hook = Arc::new(answer);
        Catcher::start(move |stream, taken| request(stream, taken, &answer))
    }

    /// Takes mails. `answer` gets each and returns the reply, such as `250 taken`; it may block.
    pub fn mail(answer: impl Fn(&Caught) -> String + Send + Sync + 'static) -> Catcher {
        let answer: Hook = Arc::new(answer);
        Catcher::start(move |stream, taken| mails(stream, taken, &answer))
    }

    fn start(serve: impl Fn(TcpStream, &Taken) -> Option<()> + Clone + Send + 'static) -> Catcher {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let taken = Taken::default();
        let seen = taken.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (serve, seen) = (serve.clone(), seen.clone());
                std::thread::spawn(move || serve(stream, &seen));
            }
        });
        Catcher { address, taken }
    }

    /// Where it listens, as `host:port`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// What was sent to it so far.
    pub fn taken(&self) -> Vec<Caught> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn take(taken: &Taken, caught: &Caught) {
    taken.lock().unwrap_or_else(PoisonError::into_inner).push(caught.clone());
}

/// One request on one connection.
fn request(stream: TcpStream, taken: &Taken, answer: &Hook) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    let caught = Caught { head, body: String::from_utf8_lossy(&body).into_owned() };
    take(taken, &caught);
    let status = answer(&caught);
    let reply = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.get_mut().write_all(reply.as_bytes()).ok()
}

/// All mails of one connection.
fn mails(stream: TcpStream, taken: &Taken, answer: &Hook) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let say = |stream: &mut BufReader<TcpStream>, text: &str| {
        stream.get_mut().write_all(format!("{text}\r\n").as_bytes()).ok()
    };
    say(&mut stream, "220 catcher")?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "DATA" => {
                say(&mut stream, "354 go on")?;
                let mut mail = String::new();
                while !mail.ends_with("\r\n.\r\n") {
                    if stream.read_line(&mut mail).ok()? == 0 {
                        return None;
                    }
                }
                let (head, body) = mail.split_once("\r\n\r\n").unwrap_or((&mail, ""));
                let caught = Caught { head: head.to_owned(), body: body.to_owned() };
                take(taken, &caught);
                say(&mut stream, &answer(&caught))?;
            }
            "QUIT" => return say(&mut stream, "221 bye"),
            _ => say(&mut stream, "250 fine")?,
        }
    }
}
