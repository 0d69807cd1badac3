//! One piece of work, done once, for callgrind to count its instructions: `.ci/instructions` runs it.
//! Times depend on the neighbours of the machine; instructions do not.
#![forbid(unsafe_code)]

mod cases;
mod fetch;
mod resolve;

use std::hint::black_box;
use std::process::ExitCode;

use cases::DESCRIPTORS;
use fetch::Blocks;

/// Each piece of work by its name, and how many descriptors it is of.
const WORK: [(&str, u32); 9] = [
    ("plan-apart", DESCRIPTORS),
    ("plan-scattered", DESCRIPTORS),
    ("plan-strided", DESCRIPTORS),
    ("encode", DESCRIPTORS),
    ("decode", DESCRIPTORS),
    ("resolve", DESCRIPTORS),
    ("fetch-apart", fetch::BLOCKS),
    ("fetch-gathered", fetch::BLOCKS),
    ("fetch-merged", fetch::BLOCKS),
];

/// Callgrind counts what happens in here.
#[inline(never)]
fn counted<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}

#[expect(clippy::print_stdout, reason = "what it prints is read by a script")]
fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let planned = |pairs: Vec<_>| {
        counted(|| cases::plan(black_box(&pairs)));
    };
    let fetched = |blocks| {
        let mut ends = fetch::Ends::connect();
        let slices = ends.slices(blocks);
        let last = slices.last().map_or((0, 0), |slice| slice.last(&ends));
        let chains = counted(|| ends.fetch(black_box(slices)));
        assert!(chains > 0);
        ends.assert_fetched(last);
    };
    match name.as_str() {
        "plan-apart" => planned(cases::apart()),
        "plan-scattered" => planned(cases::scattered()),
        "plan-strided" => planned(cases::strided()),
        "encode" => {
            let (descriptors, mut out) = (cases::descriptors(), Vec::new());
            cases::encode_all(&descriptors[..1000], &mut out);
            counted(|| cases::encode_all(black_box(&descriptors), &mut out));
        }
        "decode" => {
            let frames = cases::frames(&cases::descriptors());
            let inside = counted(|| cases::decode_all(black_box(&frames)));
            assert_eq!(inside, Ok(DESCRIPTORS.into()));
        }
        "resolve" => {
            let engines = resolve::Engines::start();
            let request = engines.request();
            let refused = counted(|| black_box(request).submit());
            engines.expect_last_refused(refused.err());
        }
        "fetch-apart" => fetched(Blocks::Apart),
        "fetch-gathered" => fetched(Blocks::Gathered),
        "fetch-merged" => fetched(Blocks::Merged),
        // Cargo runs every benchmark, this one for nothing: it counts under callgrind only.
        _ => WORK.iter().for_each(|(name, descriptors)| println!("{name} {descriptors}")),
    }
    ExitCode::SUCCESS
}
