//! What stands between a process and the NATS servers, and can be cut or made slow: a network that the test owns.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Bytes that are carried at once.
const PIECE: usize = 64 * 1024;

/// How it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carriage {
    /// As it comes.
    Through,
    /// Not at all: connections stand, and nothing passes either way. What was sent comes later.
    Cut,
    /// What the process sends is lost on the way; what it is sent comes.
    Swallowed,
    /// Every connection ends, and what was on its way with it.
    Ended,
    /// Each piece so much later.
    Late(Duration),
}

/// One way to the servers.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    carriage: watch::Sender<Carriage>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// To these servers, the next one for each connection that the one before does not take.
    pub async fn to(servers: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there are ports");
        let port = listener.local_addr().expect("it listens").port();
        let (carriage, told) = watch::channel(Carriage::Through);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut carried = JoinSet::new();
            let next = Arc::new(AtomicUsize::new(usize::from(port)));
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                carried.spawn(carry(stream, servers.clone(), Arc::clone(&next), told.clone()));
                while carried.try_join_next().is_some() {}
            }
        });
        Self { port, carriage, _tasks: tasks }
    }

    /// Where it takes connections.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Changes how it carries, for all connections.
    pub fn set(&self, carriage: Carriage) {
        self.carriage.send_replace(carriage);
    }
}

async fn carry(stream: TcpStream, servers: Vec<SocketAddr>, next: Arc<AtomicUsize>, told: watch::Receiver<Carriage>) {
    let begun = next.fetch_add(1, Ordering::Relaxed);
    for n in 0..servers.len() {
        let Ok(server) = TcpStream::connect(servers[(begun + n) % servers.len()]).await else { continue };
        let ((from, to), (back, there)) = (stream.into_split(), server.into_split());
        let mut ended = told.clone();
        // Either end is the end of both.
        tokio::select! {
            () = pass(from, there, told.clone(), Sender::Process) => {}
            () = pass(back, to, told, Sender::Server) => {}
            _ = ended.wait_for(|carriage| *carriage == Carriage::Ended) => {}
        }
        return;
    }
}

/// Who sent a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Process,
    Server,
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut told: watch::Receiver<Carriage>,
    sender: Sender,
) {
    let mut piece = vec![0; PIECE];
    loop {
        let Ok(read @ 1..) = from.read(&mut piece).await else { return };
        let carriage = match told.wait_for(|carriage| *carriage != Carriage::Cut).await {
            Ok(carriage) => *carriage,
            Err(_) => return,
        };
        match carriage {
            Carriage::Late(by) => tokio::time::sleep(by).await,
            Carriage::Swallowed if sender == Sender::Process => continue,
            Carriage::Ended => return,
            Carriage::Through | Carriage::Cut | Carriage::Swallowed => {}
        }
        if to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
}
