//! Owners and the master: they come, hear, fall silent, go, and start again.

use super::*;

impl World {
    pub(super) fn arrive(&mut self) {
        self.next_incarnation += 1;
        let incarnation = Incarnation(self.next_incarnation);
        self.peers.push(Peer {
            incarnation,
            segment: SegmentId(self.next_incarnation + 100),
            applied: 0,
            epoch: 0,
            inventory: BTreeMap::new(),
            heard: self.now,
        });
        self.mount(self.peers.len() - 1);
    }

    pub(super) fn mount(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let join = Join { client: peer.incarnation, host: String::new(), epoch: peer.epoch };
        let joined = self.pool.join(self.now, &join).unwrap();
        assert!(joined.epoch >= peer.epoch);
        (peer.epoch, peer.heard, peer.applied) = (joined.epoch, self.now, 0);
        let lent = lent(peer.segment);
        let mounting = self.pool.mount(self.now, peer.incarnation, lent, true).unwrap();
        let mut mounting = mounting.expect("it is not there yet");
        let mut told = Told::default();
        for held in peer.inventory.values() {
            self.pool.adopt(self.now, &mut mounting, vec![held.clone()], &mut told).unwrap();
        }
        self.pool.mounted(&mounting).unwrap();
    }

    pub(super) fn pass_time(&mut self) {
        let silent = self.random.u32(0..40) == 0;
        let steps = if silent { self.random.u64(5..70) } else { self.random.u64(1..5) };
        for _ in 0..steps {
            self.now = self.now.after(Duration::from_millis(100));
            self.looked = self.now;
            for index in 0..self.peers.len() {
                // The last one is the one that is silent.
                if silent && index + 1 == self.peers.len() {
                    continue;
                }
                let peer = &mut self.peers[index];
                if self.pool.beat(self.now, peer.incarnation).is_some() {
                    peer.heard = self.now;
                } else {
                    self.pool.tend(self.now, 1, &mut Told::default());
                    self.mount(index);
                    // Who was forgotten brings what had been evicted or removed meanwhile.
                    self.whole.clear();
                }
            }
            for (_, became) in self.pool.look(self.now) {
                if matches!(became, Became::Expired | Became::Forgotten) {
                    // What it had is hidden, and what it wrote taken back.
                    self.whole.clear();
                    self.leased.clear();
                }
            }
        }
        self.make_room(0, false);
    }

    /// An owner hears what has changed.
    pub(super) fn follow(&mut self) {
        let index = self.any_peer();
        self.follow_one(index);
    }

    pub(super) fn follow_one(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let Some(changes) = self.pool.changes(peer.incarnation, peer.applied) else { return };
        for change in changes.changes {
            if change.segment != peer.segment {
                continue;
            }
            match change.what {
                What::Keep(held) => {
                    let overlaps = peer.inventory.values().any(|other| {
                        held.offset < other.offset + other.length
                            && other.offset < held.offset + held.length
                    });
                    assert!(!overlaps, "{held:?} is where something else is");
                    peer.saw(held.version);
                    peer.inventory.insert(held.version, held);
                }
                What::Drop(version) => {
                    peer.inventory.remove(&version);
                }
            }
        }
        peer.applied = changes.number;
        let follow = Follow { client: peer.incarnation, applied: peer.applied };
        self.pool.follow(self.now, follow).unwrap();
    }

    /// A client is killed, and another comes.
    pub(super) fn depart(&mut self) {
        let index = self.any_peer();
        let peer = self.peers.swap_remove(index);
        // One that was silent for long is not known any more.
        if self.random.bool()
            && let Ok(leaving) = self.pool.unmount(self.now, peer.incarnation, peer.segment)
        {
            self.pool.unmounted(self.now, &leaving);
        }
        let was_known = self.pool.leave(self.now, peer.incarnation);
        assert!(was_known || self.now.since(peer.heard) >= settings().clients.forget);
        self.claims.retain(|claim| claim.segment != peer.segment);
        self.begun.retain(|begun| begun.client != peer.incarnation);
        self.whole.clear();
        self.leased.clear();
        self.pool.tend(self.now, 1, &mut Told::default());
        self.arrive();
    }

    /// The master is killed when all owners know what they have, and another starts.
    pub(super) fn restart(&mut self) {
        for index in 0..self.peers.len() {
            self.follow_one(index);
        }
        let live = |peer: &Peer| self.looked.since(peer.heard) < settings().clients.expire;
        if !self.peers.iter().all(live) {
            return;
        }
        let mut names = Vec::new();
        for tenant in TENANTS.map(|tenant| Tenant::new(tenant).unwrap()) {
            for shard in 0..SHARDS {
                self.pool.each_key(shard, &tenant, |key| {
                    names.push((tenant.clone(), Key::new(key.to_vec()).unwrap()));
                });
            }
        }
        let seed = self.random.u64(..);
        let before: HashMap<_, _> = names
            .into_iter()
            .map(|(tenant, key)| {
                let status = self.pool.query(self.now, &tenant, &key).unwrap();
                ((tenant, key), (status.version, status.length, status.replicas.len()))
            })
            .collect();
        self.pool = Pool::new(settings(), seed);
        // A server's time begins with it: it does not take what was before for having been held up.
        self.pool.look(self.now);
        for index in 0..self.peers.len() {
            self.mount(index);
        }
        // Owners have fenced what was allowed before.
        self.claims.clear();
        self.begun.clear();
        for ((tenant, key), known) in before {
            let status = self.pool.query(self.now, &tenant, &key).unwrap();
            assert_eq!((status.version, status.length, status.replicas.len()), known);
        }
    }
}
