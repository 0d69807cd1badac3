//! The command line.
//!
//! Flags are spelled with dashes; those that Mooncake's master has, too, mean here what they mean
//! there, and may be spelled as there, with underscores and `--flag`, `--noflag` or `--flag=true` for
//! what is on or off. What is asked for and is not here is an error, not a line in a log.

use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};

use crate::server::Listen;
use crate::state::{LeaseTimes, Limits, Settings, Strategy};

const HELP: &str = "\
Flags of Mooncake's master are understood as they are: --eviction_high_watermark_ratio=0.9 is
--eviction-high-watermark-ratio 0.9.

Examples:
  Any free port for each, to be read in the log:
      kv-master --port 0 --metrics-port 0
  As launchers start Mooncake's master:
      kv-master --port=8700 --enable_http_metadata_server=true --http_metadata_server_port=8701 \\
          --eviction_high_watermark_ratio=0.9 --default_kv_lease_ttl=10000 --rpc_thread_num=16 \\
          --enable_metric_reporting=true --metrics_port=9003";

/// Keeps track of a pool: which memory hosts lend, what is in it, and for how long it is kept.
#[derive(Clone, Debug, Parser)]
#[command(name = "kv-master", version, max_term_width = 100, after_long_help = HELP)]
pub struct Flags {
    /// Port for clients
    #[arg(long, alias = "rpc-port", default_value_t = 50_051)]
    pub port: u16,
    /// Address to listen on, for clients and for heartbeats
    #[arg(long, value_name = "HOST", default_value = "0.0.0.0")]
    pub rpc_address: String,
    /// Port for heartbeats, 0 for any: clients are told which
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub heartbeat_port: u16,
    /// Threads for clients [default: as many as there are processors, 16 at the most]
    #[arg(long, alias = "max-threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub rpc_thread_num: Option<u16>,
    /// Port for probes, figures and queries
    #[arg(long, value_name = "PORT", default_value_t = 9003)]
    pub metrics_port: u16,
    /// Address to listen on for them
    #[arg(long, value_name = "HOST", default_value = "0.0.0.0")]
    pub metrics_host: String,
    /// Write a line of figures to the log every 10 s
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true")]
    pub enable_metric_reporting: bool,
    /// Serve metadata over HTTP: /metadata?key=KEY
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true")]
    pub enable_http_metadata_server: bool,
    /// Port for that
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub http_metadata_server_port: u16,
    /// Address to listen on for that
    #[arg(long, value_name = "HOST", default_value = "0.0.0.0")]
    pub http_metadata_server_host: String,
    /// How long what was found is kept: to be read, or for who was told that it exists
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub default_kv_lease_ttl: u64,
    /// The longest soft pin
    #[arg(long, value_name = "MS", default_value_t = 86_400_000)]
    pub max_kv_soft_pin_ttl: u64,
    /// Soft pins give way where nothing else is left to evict
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true")]
    pub allow_evict_soft_pinned_objects: bool,
    /// What share of the pool is evicted at once
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    pub eviction_ratio: f64,
    /// Above which share of the pool in use objects are evicted
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share)]
    pub eviction_high_watermark_ratio: f64,
    /// How long a client may be silent
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub client_ttl: u64,
    /// How long room is kept for an object that is being written
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub put_start_discard_timeout_sec: u64,
    /// When the room of one that was not finished is used again, from when it was reserved
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub put_start_release_timeout_sec: u64,
    /// How segments are chosen
    #[arg(long, value_enum, default_value_t = Allocation::Random)]
    pub allocation_strategy: Allocation,
    /// How long owners have after the start to say what they have
    #[arg(long, value_name = "MS", default_value_t = 3000, value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    pub recovery_window_ms: u64,
    /// How long puts that are under way may take to end when the master is told to
    #[arg(long, value_name = "S", default_value_t = 15, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_timeout_sec: u64,
    /// The most objects
    #[arg(long, value_name = "N", default_value_t = Limits::default().keys)]
    pub max_keys: u64,
    /// The most memory for objects and their keys, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().metadata_bytes)]
    pub max_metadata_bytes: u64,
}

/// How segments are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Allocation {
    /// All alike
    Random,
    /// The emptier more often
    #[value(alias = "free_ratio_first")]
    FreeRatioFirst,
    /// Those of the client's own host first
    #[value(alias = "local_first")]
    LocalFirst,
}

/// For how long bytes can land that were sent in time, by a client that is gone: until the owner of
/// the memory has not heard it for nine seconds, as engines are set unless told otherwise
/// (`EngineBuilder::liveness`), and has cut it off.
const LATE_WRITES_S: u64 = 10;

/// Times that leave no room between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--put-start-release-timeout-sec {release} is too soon after --put-start-discard-timeout-sec \
     {discard}: what a client had sent before it was gone can land for {LATE_WRITES_S} s more, in \
     what others have there by then. Set it to {} at least", discard + LATE_WRITES_S
)]
pub struct TooSoon {
    discard: u64,
    release: u64,
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "it is a number from 0 to 1".to_owned())?;
    if !(0.0..=1.0).contains(&share) {
        return Err("it is a number from 0 to 1".to_owned());
    }
    Ok(share)
}

/// Flags of Mooncake's master that ask for what is not here: accepted where they ask for nothing.
const MISSING: &[(&str, &str, &[&str])] = &[
    ("enable-ha", "there is one master; clients wait for its restart", &["false"]),
    ("enable-oplog", "owners of segments are the record: none is written", &["false"]),
    ("enable-snapshot", "owners of segments are the record: none is written", &["false"]),
    ("enable-snapshot-restore", "owners of segments are the record", &["false"]),
    ("enable-offload", "there is no tier below memory", &["false"]),
    ("offload-on-evict", "there is no tier below memory", &["false"]),
    ("enable-disk-eviction", "there is no tier below memory", &["false"]),
    ("root-fs-dir", "there is no tier below memory", &[""]),
    ("enable-cxl", "memory is host memory", &["false"]),
    ("memory-allocator", "there is one allocator", &["offset"]),
    ("enable-multi-tenants", "tenants are always apart", &["true"]),
    ("enable-kv-events", "events are not published", &["false"]),
    ("rpc-enable-tcp-no-delay", "small messages are never held back", &["true"]),
    ("rpc-conn-timeout-seconds", "connections stay for as long as both ends live", &["0"]),
    ("default-kv-soft-pin-ttl", "each put says how long its soft pin lasts", &["1800000"]),
];

/// Why a flag is refused that Mooncake's master has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}={value} cannot be had: {why}. Leave it out{}", or_set(.accepted))]
pub struct Refused {
    flag: String,
    value: String,
    why: &'static str,
    accepted: &'static [&'static str],
}

fn or_set(values: &[&str]) -> String {
    values.iter().map(|value| format!(", or set it to {value:?}")).collect()
}

/// Spells a command line as [`Flags`] has it.
///
/// # Errors
/// Where a flag asks for what is not here.
pub fn translate(arguments: impl IntoIterator<Item = String>) -> Result<Vec<String>, Refused> {
    let mut spelled = Vec::new();
    let mut arguments = arguments.into_iter().peekable();
    spelled.extend(arguments.next());
    while let Some(argument) = arguments.next() {
        let name = argument.strip_prefix("--");
        // One dash will do there.
        let single = || argument.strip_prefix('-').filter(|name| name.len() > 1);
        let Some(name) = name.or_else(single) else {
            spelled.push(argument);
            continue;
        };
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, None),
        };
        let name = name.replace('_', "-");
        let (name, value) = match (name.strip_prefix("no"), value) {
            (Some(positive), None) if is_switch(positive) => {
                (positive.to_owned(), Some("false".to_owned()))
            }
            (_, value) => (name, value),
        };
        if let Some((_, why, accepted)) = MISSING.iter().find(|(flag, ..)| *flag == name) {
            let follows = arguments.next_if(|next| value.is_none() && !next.starts_with('-'));
            let value = value.or(follows).unwrap_or_else(|| "true".to_owned());
            if !accepted.contains(&value.as_str()) {
                return Err(Refused { flag: name, value, why, accepted });
            }
            continue;
        }
        spelled.push(match value {
            Some(value) => format!("--{name}={value}"),
            None => format!("--{name}"),
        });
    }
    Ok(spelled)
}

fn is_switch(name: &str) -> bool {
    name.starts_with("enable-") || name.starts_with("allow-")
}

impl Flags {
    /// Where to listen.
    #[must_use]
    pub fn listen(&self) -> Listen {
        let metadata = self
            .enable_http_metadata_server
            .then(|| (self.http_metadata_server_host.clone(), self.http_metadata_server_port));
        Listen {
            clients: (self.rpc_address.clone(), self.port),
            heartbeat_port: self.heartbeat_port,
            metrics: (self.metrics_host.clone(), self.metrics_port),
            metadata,
        }
    }

    /// How the pool is to behave.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let lease = Duration::from_millis(self.default_kv_lease_ttl);
        let expire = Duration::from_secs(self.client_ttl);
        let reservation = Duration::from_secs(self.put_start_discard_timeout_sec);
        let release = Duration::from_secs(self.put_start_release_timeout_sec);
        let defaults = Settings::default();
        Settings {
            read_lease: lease,
            notice_lease: lease,
            most_soft_pin: Duration::from_millis(self.max_kv_soft_pin_ttl),
            evict_soft_pinned: self.allow_evict_soft_pinned_objects,
            reservation,
            late_writes: release.saturating_sub(reservation),
            clients: LeaseTimes {
                suspect: expire / 2,
                expire,
                forget: expire * 12,
                look_every: expire / 40,
            },
            recovery: Duration::from_millis(self.recovery_window_ms),
            high_watermark: self.eviction_high_watermark_ratio,
            eviction_ratio: self.eviction_ratio,
            strategy: match self.allocation_strategy {
                Allocation::Random => Strategy::Random,
                Allocation::FreeRatioFirst => Strategy::FreeRatio,
                Allocation::LocalFirst => Strategy::Local,
            },
            limits: Limits {
                keys: self.max_keys,
                metadata_bytes: self.max_metadata_bytes,
                ..defaults.limits
            },
            ..defaults
        }
    }

    /// Looks at what single flags cannot say.
    ///
    /// # Errors
    /// Where room would be used again while others may still write to it.
    pub fn check(&self) -> Result<(), TooSoon> {
        let (discard, release) =
            (self.put_start_discard_timeout_sec, self.put_start_release_timeout_sec);
        if release < discard + LATE_WRITES_S {
            return Err(TooSoon { discard, release });
        }
        Ok(())
    }

    /// How many threads there are for clients.
    #[must_use]
    pub fn workers(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from).min(16);
        self.rpc_thread_num.map_or(processors, usize::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, String> {
        let arguments = line.split_whitespace().map(str::to_owned);
        let arguments = translate(arguments).map_err(|refused| refused.to_string())?;
        Flags::try_parse_from(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn a_launchers_command_line_is_understood_as_it_is() {
        let flags = parse(
            "kv-master --port=8700 --enable_http_metadata_server=true \
             --http_metadata_server_port=8701 --eviction_high_watermark_ratio=0.9 \
             --default_kv_lease_ttl=10000 --rpc_thread_num=16 --enable_metric_reporting=true \
             --metrics_port=9003",
        );
        let flags = flags.unwrap();
        let listen = flags.listen();
        assert_eq!(listen.clients.1, 8700);
        assert_eq!(listen.metadata.map(|metadata| metadata.1), Some(8701));
        assert_eq!(listen.metrics.1, 9003);
        assert_eq!(flags.workers(), 16);
        assert_eq!(flags.settings().read_lease, Duration::from_secs(10));
    }

    #[test]
    fn both_spellings_and_both_ways_to_switch_are_the_same() {
        let flags = parse("m -port 1 --noenable_metric_reporting --enable-http-metadata-server");
        let flags = flags.unwrap();
        assert_eq!(flags.port, 1);
        assert!(!flags.enable_metric_reporting && flags.enable_http_metadata_server);
        assert_eq!(parse("m --rpc_port=7").unwrap().port, 7);
        let strategy = parse("m --allocation_strategy=free_ratio_first").unwrap();
        assert_eq!(strategy.settings().strategy, Strategy::FreeRatio);
    }

    #[test]
    fn an_unknown_flag_is_an_error_that_names_the_nearest() {
        let error = parse("m --eviction_high_watermark_ration=0.9").unwrap_err();
        assert!(error.contains("--eviction-high-watermark-ratio"), "{error}");
        let error = parse("m --metric_port=9003").unwrap_err();
        assert!(error.contains("--metrics-port"), "{error}");
    }

    #[test]
    fn what_is_asked_for_and_is_not_here_is_an_error_and_what_asks_for_nothing_is_not() {
        assert!(parse("m --enable_ha=false --memory_allocator=offset --noenable_oplog").is_ok());
        let error = parse("m --enable_ha=true").unwrap_err();
        assert!(error.contains("enable-ha=true") && error.contains("false"), "{error}");
        assert!(parse("m --enable_offload").is_err());
        assert!(parse("m --root_fs_dir /mnt --port 1").is_err());
    }

    #[test]
    fn values_out_of_range_are_errors() {
        for line in [
            "m --eviction_ratio=1.5",
            "m --eviction_high_watermark_ratio=NaN",
            "m --port=65536",
            "m --client_ttl=0",
            "m --default_kv_lease_ttl=-5",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn room_that_would_be_used_again_while_others_may_write_to_it_is_refused() {
        let check = |line: &str| parse(line).unwrap().check();
        assert_eq!(check("m"), Ok(()));
        let line = "m --put_start_discard_timeout_sec=5 --put_start_release_timeout_sec=";
        assert_eq!(check(&format!("{line}15")), Ok(()));
        let error = check(&format!("{line}14")).unwrap_err().to_string();
        assert!(error.contains("--put-start-release-timeout-sec 14"), "{error}");
        assert!(error.ends_with("Set it to 15 at least"), "{error}");
    }
}
