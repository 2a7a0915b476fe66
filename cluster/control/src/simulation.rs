//! Simulated disks and links for tests; both fail on command.
//!
//! Here: a disk that loses unsynced writes, links within one process that can be cut. Not here:
//! tests.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::Rules;
use cluster::id::NodeId;
use parking_lot::Mutex;
use redb::StorageBackend;
use tokio::time::sleep;

use crate::handle::Control;
use crate::raft_network::{CallFuture, ControlTransport, Unreachable};
use crate::store::{ControlStore, NodeIdentity, StoreError};

/// The unit that a disk writes completely or not at all.
const SECTOR_BYTES: usize = 512;

/// A disk in memory. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    platter: Arc<Mutex<Platter>>,
}

#[derive(Debug, Default)]
struct Platter {
    synced: Vec<u8>,
    cached: Vec<u8>,
    /// The writes since the last sync: offset and length.
    dirty: Vec<(usize, usize)>,
    syncs: u64,
    cut_at: Option<u64>,
    is_cut: bool,
    trouble: Option<DiskFault>,
}

/// The faults of a disk that is still present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// Writes fail for lack of space.
    Full,
    /// Reads succeed, writes and syncs fail.
    Broken,
    /// Each synced write takes this much longer.
    Slow(Duration),
}

impl Disk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the store on this disk.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the disk fails or has invalid contents.
    pub fn store(&self) -> Result<ControlStore, StoreError> {
        self.store_by(Rules::default())
    }

    /// Opens the store on this disk, whose map applies commands by `rules`.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the disk fails or has invalid contents.
    pub fn store_by(&self, rules: Rules) -> Result<ControlStore, StoreError> {
        let disk = self.clone();
        let delay = move || match disk.platter.lock().trouble {
            Some(DiskFault::Slow(delay)) => delay,
            _ => Duration::ZERO,
        };
        ControlStore::with_backend(self.clone(), delay, rules)
    }

    /// Sets or repairs a fault.
    pub fn set_trouble(&self, trouble: Option<DiskFault>) {
        self.platter.lock().trouble = trouble;
    }

    /// The number of syncs.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.platter.lock().syncs
    }

    /// Cuts the power at the `sync`-th sync, counted from 1: that sync fails, and everything after
    /// it.
    pub fn cut_at(&self, sync: u64) {
        self.platter.lock().cut_at = Some(sync);
    }

    /// Cuts the power now.
    pub fn cut(&self) {
        self.platter.lock().is_cut = true;
    }

    /// The disk after power returns: the synced bytes, and those unsynced sectors for which `keeps`
    /// returns true.
    #[must_use]
    pub fn after_power_cut(&self, mut keeps: impl FnMut() -> bool) -> Self {
        let platter = self.platter.lock();
        let mut image = platter.synced.clone();
        // The length is metadata that may or may not have been written.
        if platter.cached.len() > image.len() && keeps() {
            image.resize(platter.cached.len(), 0);
        }
        for &(offset, length) in &platter.dirty {
            let end = offset + length;
            let mut at = offset;
            while at < end {
                let next = end.min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
                if next <= image.len() && next <= platter.cached.len() && keeps() {
                    image[at..next].copy_from_slice(&platter.cached[at..next]);
                }
                at = next;
            }
        }
        let platter = Platter { cached: image.clone(), synced: image, ..Platter::default() };
        Self { platter: Arc::new(Mutex::new(platter)) }
    }
}

impl Platter {
    fn powered(&self) -> io::Result<()> {
        if self.is_cut { Err(io::Error::other("the power is cut")) } else { Ok(()) }
    }

    fn writable(&self) -> io::Result<()> {
        self.powered()?;
        match self.trouble {
            Some(DiskFault::Full) => Err(io::ErrorKind::StorageFull.into()),
            Some(DiskFault::Broken) => Err(io::Error::other("the disk is broken")),
            Some(DiskFault::Slow(_)) | None => Ok(()),
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        let platter = self.platter.lock();
        platter.powered()?;
        Ok(platter.cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.platter.lock();
        platter.powered()?;
        let offset = offset as usize;
        let bytes = platter.cached.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut platter = self.platter.lock();
        platter.writable()?;
        platter.cached.resize(length as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.platter.lock();
        platter.writable()?;
        platter.syncs += 1;
        if platter.cut_at == Some(platter.syncs) {
            platter.is_cut = true;
            return platter.powered();
        }
        let Platter { synced, cached, .. } = &mut *platter;
        synced.clone_from(cached);
        platter.dirty.clear();
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut platter = self.platter.lock();
        platter.writable()?;
        let offset = offset as usize;
        let place = platter.cached.get_mut(offset..offset + bytes.len());
        place.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(bytes);
        platter.dirty.push((offset, bytes.len()));
        Ok(())
    }
}

/// Links between the nodes of one process. Clones share them.
#[derive(Debug, Clone)]
pub struct SimNetwork {
    links: Arc<Mutex<SimLinks>>,
}

#[derive(Debug)]
struct SimLinks {
    nodes: BTreeMap<String, Control>,
    /// Hosts that are off: they do not even refuse connections.
    dark: BTreeSet<String>,
    cuts: BTreeSet<(String, String)>,
    calls: u64,
    chance: u64,
}

impl SimNetwork {
    /// Links with a delay of one to three milliseconds each way.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let links = SimLinks {
            nodes: BTreeMap::new(),
            dark: BTreeSet::new(),
            cuts: BTreeSet::new(),
            calls: 0,
            chance: seed,
        };
        Self { links: Arc::new(Mutex::new(links)) }
    }

    /// The transport of the node at an address.
    #[must_use]
    pub fn peers(&self, address: &str) -> Arc<dyn ControlTransport> {
        Arc::new(SimTransport { net: self.clone(), from: address.to_owned() })
    }

    /// Starts a node's listening.
    pub fn attach(&self, address: &str, control: Control) {
        let mut links = self.links.lock();
        links.dark.remove(address);
        links.nodes.insert(address.to_owned(), control);
    }

    /// Ends a process: its host refuses connections.
    pub fn detach(&self, address: &str) {
        self.links.lock().nodes.remove(address);
    }

    /// Ends a host: calls to it get no answer.
    pub fn darken(&self, address: &str) {
        let mut links = self.links.lock();
        links.nodes.remove(address);
        links.dark.insert(address.to_owned());
    }

    /// Cuts the way from one node to the other; the way back stays open.
    pub fn cut(&self, from: &str, to: &str) {
        self.links.lock().cuts.insert((from.to_owned(), to.to_owned()));
    }

    /// Cuts both ways between one node and all others.
    pub fn isolate(&self, one: &str, others: &[&str]) {
        for other in others.iter().filter(|other| **other != one) {
            self.cut(one, other);
            self.cut(other, one);
        }
    }

    /// Opens all ways again.
    pub fn heal(&self) {
        self.links.lock().cuts.clear();
    }

    /// The number of calls made.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.links.lock().calls
    }

    fn delay(&self) -> Duration {
        let chance = &mut self.links.lock().chance;
        *chance =
            chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_micros(1000 + (*chance >> 33) % 2000)
    }

    fn is_cut(&self, from: &str, to: &str) -> bool {
        self.links.lock().cuts.contains(&(from.to_owned(), to.to_owned()))
    }

    async fn carry(self, from: String, to: String, rpc: Bytes) -> Result<Bytes, Unreachable> {
        self.links.lock().calls += 1;
        sleep(self.delay()).await;
        let never = || std::future::pending::<Result<Bytes, Unreachable>>();
        if self.is_cut(&from, &to) || self.links.lock().dark.contains(&to) {
            return never().await;
        }
        let control = self.links.lock().nodes.get(&to).cloned();
        let control = control.ok_or(Unreachable::Refused)?;
        // The call runs in its own task: the receiver goes on after the caller has given up.
        let answered = tokio::spawn(async move { control.handle(rpc).await }).await;
        sleep(self.delay()).await;
        if self.is_cut(&to, &from) || self.links.lock().dark.contains(&from) {
            return never().await;
        }
        if !self.links.lock().nodes.contains_key(&to) {
            return Err(Unreachable::Lost);
        }
        answered.map_err(|_| Unreachable::Lost)
    }
}

struct SimTransport {
    net: SimNetwork,
    from: String,
}

impl ControlTransport for SimTransport {
    fn call(&self, _: Option<NodeId>, address: &str, rpc: Bytes, _: Duration) -> CallFuture {
        Box::pin(self.net.clone().carry(self.from.clone(), address.to_owned(), rpc))
    }

    fn identify(&self, _: NodeIdentity) {}
}
