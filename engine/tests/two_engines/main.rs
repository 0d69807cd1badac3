//! Two engines in one process, over real sockets: what the public API promises in the good case,
//! whatever carries it.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
#![allow(clippy::duplicate_mod, reason = "the same promises over each transport")]

mod choice;

/// What is to be set beside the transport: nothing.
fn set_up(builder: kvferry_engine::EngineBuilder) -> kvferry_engine::EngineBuilder {
    builder
}

/// A directory of this user's that nobody else can enter.
fn private_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let private = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(private).tempdir().unwrap()
}

#[path = "."]
mod tcp {
    use super::set_up;
    const OVER: kvferry_engine::Transport = kvferry_engine::Transport::Tcp;
    #[path = "promises.rs"]
    mod promises;
}

#[path = "."]
mod local {
    use super::set_up;
    const OVER: kvferry_engine::Transport = kvferry_engine::Transport::Local;
    #[path = "promises.rs"]
    mod promises;
}
