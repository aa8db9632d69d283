//! A TCP proxy whose connections can be cut, as networks do.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Result;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::broadcast,
    task::JoinHandle,
};

/// Forwards bytes to a server until it is redirected. Dropping it closes all connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    server: Arc<Mutex<SocketAddr>>,
    cut: broadcast::Sender<()>,
    outage: Arc<Outage>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Outage {
    is_on: AtomicBool,
    refused: AtomicUsize,
}

impl Proxy {
    /// Listens on a free local port for what is meant for `server`.
    pub async fn start(server: impl Into<SocketAddr>) -> Result<Self> {
        let server = Arc::new(Mutex::new(server.into()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (cut, _) = broadcast::channel(1);
        let cuts = cut.clone();
        let outage = Arc::<Outage>::default();
        let current = outage.clone();
        let target = server.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if current.is_on.load(Ordering::SeqCst) {
                    current.refused.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let server = *target.lock();
                tokio::spawn(pass_on(client, server, cuts.subscribe()));
            }
        });
        Ok(Self {
            address,
            server,
            cut,
            outage,
            accepting,
        })
    }

    /// New address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forwards new connections to another server. Existing ones stay.
    pub fn redirect(&self, server: impl Into<SocketAddr>) {
        *self.server.lock() = server.into();
    }

    /// Ends all connections of this moment, without a word to either side. New ones are taken.
    pub fn cut(&self) {
        let _ = self.cut.send(());
    }

    /// Ends all connections, and new ones at once, until [`recover`](Self::recover).
    pub fn fail(&self) {
        self.outage.is_on.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Forwards new connections again.
    pub fn recover(&self) {
        self.outage.is_on.store(false, Ordering::SeqCst);
    }

    /// Number of connections that were attempted while none was forwarded.
    pub fn refused(&self) -> usize {
        self.outage.refused.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn pass_on(mut client: TcpStream, server: SocketAddr, mut cut: broadcast::Receiver<()>) {
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = cut.recv() => {}
    }
}
