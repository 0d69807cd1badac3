//! Kinds of failure that users of other engines have reported, each provoked on real processes.
//! Reports are named by repository and number: `vllm#34278` is issue or pull request 34278 of vLLM.
//! In their words a prefill process P computes blocks which a decode process D needs; here a
//! request is a grant, a transfer under it, and a notification.
//!
//! | kind | file | also shown in |
//! |---|---|---|
//! | ids used twice, late, or never known | `identity` | `promises/{fence, ownership, hostile}` |
//! | one side earlier than the other | `order` | `promises/{ending, order}` |
//! | memory given away while it is written | `abort` | `promises/fence` |
//! | many ends at once | `once` | `sim` |
//! | a peer dies | `death` | `promises/{ending, fence}` |
//! | a peer comes back under its name | `restart` | `promises/restart` |
//! | the engine's own process ends | `shutdown` | `promises/nothing_held`, `engine/tests/fork` |
//! | sockets pile up, or are stale | `sockets` | `promises/{nothing_held, failover}` |
//! | addresses and lengths at their edges | `addresses` | `engine/tests/two_engines`, `promises/ownership` |
//! | the two sides lay blocks out differently | `layouts` | |
//! | memory goes and comes back | `wake` | `promises/ownership`, `engine/tests/registry`, `guest/wake` |
//! | garbage and hostility | `hostile` | `promises/hostile`, `proto/tests` |
//! | one bad peer among many | `bad_peer` | `guest/bad_peer` |
//! | everything is full | `pressure` | `promises/{ending, order, hostile}` |
#![allow(clippy::unwrap_used, reason = "tests")]

mod abort;
mod addresses;
mod arena;
mod bad_peer;
mod death;
mod hostile;
mod identity;
mod layouts;
mod once;
mod order;
mod pressure;
mod restart;
mod shutdown;
mod sockets;
mod wake;
