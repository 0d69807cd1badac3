//! A library with libibverbs' interface and no adapter behind it.
//!
//! Queue pairs of one process write and read each other's memory, by keys and within bounds as
//! adapters do. What adapters do seldom it does when told: hold requests back, land them late, refuse
//! a call, lose a port. Only who names its path gets it: nothing looks for it.
//!
//! | module | what stands there |
//! |---|---|
//! | `abi` | the structures, which are the transport's own |
//! | `world` | devices and what was made with them; how requests are carried out |
//! | `verbs` | the functions that libibverbs has |
//! | `registration` | those of them that register memory |
//! | `driver` | the functions that a driver puts into a context |
//! | `control` | the functions that tests have besides: `standin_...` |

#[allow(dead_code, reason = "what the transport uses, and this does not")]
#[path = "../../../transport/src/rdma/verbs/abi.rs"]
mod abi;
mod control;
mod driver;
mod registration;
mod verbs;
mod world;
