//! From the engine's errors to exceptions: `kvferry/_errors.py` has the classes.

use kvferry_engine::bootstrap::ClientError;
use kvferry_engine::{Error, TransferError};
use pyo3::prelude::*;

/// The class for an error.
fn class_of(error: &Error) -> &'static str {
    match error {
        Error::Memory(_)
        | Error::PartialOverlap { .. }
        | Error::AccessConflict { .. }
        | Error::OtherMemory { .. }
        | Error::PartOfRegion { .. }
        | Error::NotRegistered { .. }
        | Error::Unregistered { .. }
        | Error::BadLayout { .. }
        | Error::NameTaken { .. }
        | Error::NameTooLong { .. } => "RegistrationError",
        Error::NoSuchLayout { .. } | Error::NotShared { .. } => "NotSharedError",
        Error::NotGranted { .. } | Error::OutsideGrant { .. } | Error::Ticket(_) => {
            "NotGrantedError"
        }
        Error::OutOfBounds { .. }
        | Error::NoSuchBlock { .. }
        | Error::CountMismatch { .. }
        | Error::LengthMismatch { .. }
        | Error::NotificationTooLong { .. } => "RequestError",
        Error::StaleHandle { .. } | Error::PeerRestarted { .. } => "PeerRestartedError",
        Error::Unreachable { .. }
        | Error::Version { .. }
        | Error::NoTransport { .. }
        | Error::NotLocal { .. }
        | Error::NotRdma { .. }
        | Error::RdmaFailed { .. }
        | Error::RdmaOnly { .. }
        | Error::LaneRefused { .. } => "UnreachableError",
        Error::Address { .. }
        | Error::Bind { .. }
        | Error::Setting { .. }
        | Error::UnknownTransport { .. }
        | Error::Rdma(_)
        | Error::RunDirectory(_) => "SettingError",
        Error::Deadline { .. } => "DeadlineError",
        Error::Cancelled => "CancelledError",
        Error::Refused { .. } | Error::SourceReleased { .. } => "RefusedError",
        Error::ChecksumMismatch { .. } => "ChecksumError",
        Error::MemoryFault | Error::RegionWithdrawn => "MemoryGoneError",
        Error::Shutdown => "ShutdownError",
        Error::Backpressure { .. } => "BackpressureError",
        Error::Protocol { .. } => "ProtocolError",
        _ => "Error",
    }
}

fn exception(py: Python<'_>, class: &str, message: String, cause: &Error) -> PyResult<PyErr> {
    let class = py.import("kvferry._errors")?.getattr(class)?;
    let exception = class.call1((message,))?;
    exception.setattr("retryable", cause.is_retryable())?;
    exception.setattr("backpressure", cause.is_backpressure())?;
    Ok(PyErr::from_value(exception))
}

/// An exception for what a bootstrap server did not do.
pub(crate) fn raise_client(py: Python<'_>, error: &ClientError) -> PyErr {
    let exception = || -> PyResult<PyErr> {
        let class = py.import("kvferry._errors")?.getattr("BootstrapError")?;
        let exception = class.call1((error.to_string(),))?;
        exception.setattr("retryable", error.is_retryable())?;
        Ok(PyErr::from_value(exception))
    };
    exception().unwrap_or_else(|broken| broken)
}

/// The exception for what a pool did not do.
pub(crate) fn store_error(py: Python<'_>, error: &kvferry_store::Error) -> PyResult<PyErr> {
    let class = py.import("kvferry._errors")?.getattr("StoreError")?;
    let exception = class.call1((error.to_string(),))?;
    exception.setattr("retryable", error.is_retryable())?;
    exception.setattr("backpressure", error.is_backpressure())?;
    exception.setattr("mooncake_code", error.mooncake_code())?;
    Ok(PyErr::from_value(exception))
}

/// The same, or what went wrong with making it.
pub(crate) fn raise_store(py: Python<'_>, error: &kvferry_store::Error) -> PyErr {
    store_error(py, error).unwrap_or_else(|broken| broken)
}

/// An exception for an error.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, class_of(error), error.to_string(), error).unwrap_or_else(|broken| broken)
}

/// An exception for a transfer's error: of the cause's class, with what is known of the peer's memory.
pub(crate) fn raise_transfer(py: Python<'_>, error: &TransferError) -> PyErr {
    let exception = || -> PyResult<PyErr> {
        let exception = exception(py, class_of(&error.cause), error.to_string(), &error.cause)?;
        let value = exception.value(py);
        value.setattr("transfer", error.transfer.map(|id| id.0))?;
        value.setattr("peer", error.peer.to_string())?;
        value.setattr("remote", error.remote.to_string())?;
        Ok(exception)
    };
    exception().unwrap_or_else(|broken| broken)
}
