//! The server beside an engine.

use kvferry_tests::bootstrap::server::Embedded;

kvferry_tests::bootstrap_cases!(Embedded::start);
