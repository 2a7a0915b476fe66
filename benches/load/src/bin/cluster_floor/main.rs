//! The floor of a cluster: two nodes that count over TCP and do no more than their promises need.
//!
//! `load --cluster` measures this beside the server. The promises are those of the server while
//! nothing fails: a key has one owner; with two copies a reply leaves after the other node has
//! acknowledged the record of the change; both nodes keep the result of an operation that could be
//! sent again; a request for the other node's key is forwarded. One thread runs rounds: it reads
//! each ready socket once, performs all requests, and writes each socket once.
//!
//! In reading order: `request`, the requests of clients; `counts`, the counters of a node; `frame`,
//! the bytes between nodes; `peer`, the other node; `client`, a connection; `node`, a round. Not
//! here: everything that a failure asks for (elections, takeover, copying, sending again), more
//! nodes than two, and all that the lone floor (`bin/floor.rs`) lacks.

mod client;
mod counts;
mod frame;
mod node;
mod peer;
mod request;

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;

use self::node::Node;

/// The allocator of the server.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The time limit for the link to the other node.
const LINK_TIMEOUT: Duration = Duration::from_secs(10);

/// A node of the floor of a cluster: the cheapest counters with the promises of a cluster.
#[derive(Debug, Parser)]
#[command(name = "cluster_floor")]
pub(crate) struct NodeOptions {
    /// The number of this node: 0 or 1
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..2))]
    node: u16,
    /// The addresses of both nodes for clients
    #[arg(long, value_delimiter = ',', required = true)]
    clients: Vec<SocketAddr>,
    /// The address at which node 0 accepts node 1
    #[arg(long)]
    link: SocketAddr,
    /// Copies of each counter: 1 or 2
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..3))]
    copies: u8,
}

fn main() -> ExitCode {
    match serve(&NodeOptions::parse()) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("cluster_floor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &NodeOptions) -> io::Result<Infallible> {
    if options.clients.len() != 2 {
        return Err(io::Error::new(ErrorKind::InvalidInput, "--clients takes two addresses"));
    }
    let link = if options.node == 0 { accept(options.link)? } else { connect(options.link)? };
    link.set_nodelay(true)?;
    link.set_nonblocking(true)?;
    Node::new(options, mio::net::TcpStream::from_std(link))?.run()
}

fn accept(link: SocketAddr) -> io::Result<TcpStream> {
    let listener = TcpListener::bind(link)?;
    Ok(listener.accept()?.0)
}

fn connect(link: SocketAddr) -> io::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(link) {
            Err(error)
                if error.kind() == ErrorKind::ConnectionRefused
                    && start.elapsed() < LINK_TIMEOUT =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            connected => return connected,
        }
    }
}
