//! What clients ask for, and what has to come of it.

use super::*;

impl World {
    pub(super) fn put(&mut self) {
        let index = self.any_peer();
        let client = self.peers[index].incarnation;
        let (tenant, key) = self.any_name();
        let group = self.random.bool().then(|| format!("g{}", self.random.u32(0..2)));
        let length = self.random.u64(1..600);
        let start = PutStart {
            client,
            tenant: tenant.clone(),
            puts: vec![Put { key: key.clone(), length, group }],
            replicas: self.random.usize(1..3),
            preferred: if self.random.bool() { vec!["s1".to_owned()] } else { Vec::new() },
            is_pinned: self.random.u32(0..20) == 0,
            soft_pin: Duration::from_millis(self.random.u64(0..2) * 800),
            at_once: false,
        };
        let mut told = Told::default();
        let seed = self.random.u64(..);
        let (mut answer, wanted) = self.pool.put_start(self.now, seed, &start, &mut told);
        assert_eq!(wanted > 0, answer.reserved[0].as_ref().is_err_and(|why| why.is_backpressure()));
        if wanted > 0 && self.random.bool() {
            self.make_room(wanted, true);
            self.pool.reserve(self.now, seed, &start, &mut answer, &mut told);
        }
        let Ok(reserved) = &answer.reserved[0] else { return };
        self.peers[index].saw(reserved.version);
        let until = self.now.after(settings().reservation).after(settings().late_writes);
        for replica in &reserved.replicas {
            let placed = &answer.segments[replica.segment];
            let (segment, from) = (placed.lent.segment, replica.offset);
            let to = from + length;
            assert!(to <= SEGMENT_BYTES);
            let owner = self.peers.iter().find(|peer| peer.segment == segment);
            let owner = owner.expect("nothing is placed with whoever has left");
            let silent = self.looked.since(owner.heard);
            assert!(silent < settings().clients.suspect, "placed with one silent for {silent:?}");
            for held in owner.inventory.values() {
                let apart = held.offset + held.length <= from || to <= held.offset;
                assert!(apart, "{held:?} is in the inventory, and {from}..{to} is given out");
            }
            for claim in self.claims.iter().filter(|claim| claim.until > self.now) {
                let apart = claim.segment != segment || claim.to <= from || to <= claim.from;
                assert!(apart, "{claim:?} runs, and {from}..{to} is given out");
            }
            let writes = Some(reserved.version);
            self.claims.push(Claim { segment, from, to, until, writes });
        }
        let segments: std::collections::BTreeSet<_> =
            reserved.replicas.iter().map(|replica| replica.segment).collect();
        assert_eq!(segments.len(), reserved.replicas.len(), "replicas are apart");
        let name = (tenant.clone(), key.clone());
        assert!(self.names.insert(reserved.version, name.clone()).is_none(), "used twice");
        // Something that could be found is never covered by a put; what was hidden may be.
        self.whole.remove(&name);
        self.begun.push(Begun { client, tenant, key, version: reserved.version });
    }

    pub(super) fn take_begun(&mut self) -> Option<Begun> {
        (!self.begun.is_empty())
            .then(|| self.begun.swap_remove(self.random.usize(0..self.begun.len())))
    }

    pub(super) fn end(&mut self) {
        let Some(begun) = self.take_begun() else { return };
        let Begun { client, tenant, key, version } = begun;
        let lost = match self.random.u32(0..6) {
            0 => {
                let index = self.any_peer();
                vec![self.peers[index].segment]
            }
            _ => Vec::new(),
        };
        let ended = Ended { key: key.clone(), version, checksum: None, lost: lost.clone() };
        let end = PutEnd { client, tenant: tenant.clone(), puts: vec![ended] };
        let outcome = self.pool.put_end(self.now, &end, &mut Told::default())[0];
        // What was written is now guarded by the inventory, or the object itself, or is nobody's.
        self.claims.retain(|claim| claim.writes != Some(version) || lost.contains(&claim.segment));
        if outcome == Outcome::Ok {
            self.whole.insert((tenant, key), version);
        }
    }

    pub(super) fn revoke(&mut self) {
        let Some(Begun { client, tenant, key, version }) = self.take_begun() else { return };
        let is_fenced = self.random.bool();
        let revoked = Revoked { key, version, is_fenced };
        let revoke = PutRevoke { client, tenant, puts: vec![revoked] };
        let _ = self.pool.put_revoke(self.now, &revoke);
        if is_fenced {
            self.claims.retain(|claim| claim.writes != Some(version));
        }
    }

    pub(super) fn locate(&mut self) {
        let (tenant, key) = self.any_name();
        let name = (tenant.clone(), key.clone());
        let answer = self.pool.locate(self.now, &Locate { tenant, keys: vec![key] });
        let due = self.leased.get(&name).filter(|(_, until)| *until > self.now);
        match &answer.objects[0] {
            Ok(located) => {
                assert_eq!(self.names[&located.version], name, "another's object");
                if let Some(version) = self.whole.get(&name) {
                    assert_eq!(located.version, *version, "an old object");
                }
                let until = self.now.after(answer.lease);
                for replica in &located.replicas {
                    let segment = answer.segments[replica.segment].lent.segment;
                    let (from, to) = (replica.offset, replica.offset + located.length);
                    self.claims.push(Claim { segment, from, to, until, writes: None });
                }
                self.leased.insert(name, (located.version, until));
            }
            Err(_) => {
                assert_eq!(due.map(|(version, _)| version), None, "a lease was broken");
            }
        }
    }

    pub(super) fn exists(&mut self) {
        let (tenant, key) = self.any_name();
        let name = (tenant.clone(), key.clone());
        let exists = Exists { tenant, keys: vec![key], lease: self.random.bool() };
        let found = self.pool.exists(self.now, &exists).found[0];
        if self.leased.get(&name).is_some_and(|(_, until)| *until > self.now) {
            assert_eq!(found, Presence::There);
        }
    }

    pub(super) fn remove(&mut self) {
        let (tenant, key) = self.any_name();
        let name = (tenant.clone(), key.clone());
        let force = self.random.bool();
        let remove = Remove { tenant, keys: vec![key], force };
        let outcome = self.pool.remove(self.now, &remove, &mut Told::default())[0];
        let is_leased = self.leased.get(&name).is_some_and(|(_, until)| *until > self.now);
        if outcome == Outcome::Ok {
            assert!(force || !is_leased, "what is leased was removed");
            self.whole.remove(&name);
            self.leased.remove(&name);
        } else if force {
            assert_eq!(outcome, Outcome::NotFound);
        }
    }

    pub(super) fn remove_all(&mut self) {
        let tenant = Tenant::new(TENANTS[self.random.usize(0..2)]).unwrap();
        self.pool.close_past(self.now, &tenant).unwrap();
        for shard in 0..SHARDS {
            let told = &mut Told::default();
            let kept =
                self.pool.remove_matching(self.now, shard, &tenant, &Matcher::All, true, told).1;
            assert_eq!(kept, 0);
            self.pool.each_key(shard, &tenant, |key| panic!("{key:?} is left"));
        }
        self.whole.retain(|name, _| name.0 != tenant);
        self.leased.retain(|name, _| name.0 != tenant);
    }

    pub(super) fn make_room(&mut self, wanted: u64, urgent: bool) {
        let seed = self.random.u64(..);
        let told = &mut Told::default();
        if urgent {
            self.pool.make_room(self.now, seed, wanted, told);
        } else {
            self.pool.tend(self.now, seed, told);
        }
        // What may be evicted may be gone.
        self.whole.clear();
    }

    pub(super) fn evict(&mut self) {
        let wanted = self.random.u64(0..2000);
        self.make_room(wanted, true);
    }
}
