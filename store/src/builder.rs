//! Settings of a store, and its start.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kvferry_engine::{Endpoint, Engine, IntoEndpoint};
use kvferry_proto::pool::{NAME_BYTES, Tenant};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::decide::choice::Reader;
use crate::drive::beat::beats;
use crate::drive::master::Master;
use crate::drive::owners::Owners;
use crate::drive::session::session;
use crate::drive::shared::Shared;
use crate::drive::threads::Driver;
use crate::error::Error;
use crate::store::Store;

/// How a store behaves. Every setting but the master has a default.
#[derive(Clone, Debug)]
pub struct StoreBuilder {
    engine: Arc<Engine>,
    master: Result<Endpoint, kvferry_engine::Error>,
    host: Option<String>,
    tenant: Tenant,
    patience: Duration,
}

impl StoreBuilder {
    pub(crate) fn new(engine: Arc<Engine>, master: impl IntoEndpoint) -> Self {
        Self {
            engine,
            master: master.into_endpoint(),
            host: None,
            tenant: Tenant::default(),
            patience: Duration::from_secs(10),
        }
    }

    /// What this host is called: replicas on a host of the same name are read before others.
    /// Default: what the system calls it.
    #[must_use]
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.host = Some(name.into());
        self
    }

    /// Whose objects are put, found and got. Tenants never see each other's. Default:
    /// [`Tenant::DEFAULT`]. [`Store::for_tenant`] gives another tenant's view of the same store.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// How long [`StoreBuilder::start`] waits for the master. Default: 10 s. Later losses of the
    /// master are waited for without an end, in the background.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Joins the pool.
    ///
    /// # Errors
    /// [`Error::Engine`] for an address that is none, [`Error::Master`] where it does not answer.
    pub async fn start(self) -> Result<Store, Error> {
        let master = self.master?;
        let host = self.host.unwrap_or_else(host_name);
        if host.len() > NAME_BYTES {
            return Err(Error::NameTooLong { found: host.len(), limit: NAME_BYTES });
        }
        let calls = Driver::start("kvferry-store")?;
        let signs = Driver::start("kvferry-beat")?;
        let channel = {
            let _inside = calls.handle.enter();
            Master::new(&master)?
        };
        let shared = Arc::new(Shared {
            owners: Owners::new(self.engine.clone()),
            reader: Reader { client: self.engine.incarnation(), host },
            engine: self.engine,
            master: channel,
            membership: Mutex::default(),
            join_again: Notify::new(),
            joined: Notify::new(),
            mount: Notify::new(),
            segments: Mutex::default(),
            inventory: Mutex::default(),
            populating: Mutex::default(),
            is_closed: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
        });
        let store = Store::new(shared, self.tenant, calls, signs);
        store.keep_joined(session, beats);
        let joined = store.joined();
        let limit = self.patience;
        // The clock is that of the store's own threads: who awaits this may have none.
        match store.run(async move { timeout(limit, joined).await }).await? {
            Ok(()) => Ok(store),
            Err(_) => {
                let reason = format!("it has not let this client join within {limit:?}");
                Err(Error::Master { master, reason: reason.into() })
            }
        }
    }
}

/// What the system calls this host.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
