//! The fuzzers' targets on what they found worth keeping, and on that again, damaged.
//!
//! `make fuzz` looks for more.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::PathBuf;

use kvferry_tests::fuzz::{TARGETS, Target};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

/// How many damaged inputs each target gets.
const CASES: u32 = 20_000;

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let directory = directory.join(target.name);
    let entries = fs::read_dir(&directory).unwrap_or_else(|_| panic!("{}", directory.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "{} is no corpus", directory.display());
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// One thing that is done to an input.
#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    /// From some place on, the end of another input.
    Splice(Index, Index, Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let extreme = prop_oneof![any::<u8>(), Just(0), Just(1), Just(0x7f), Just(0x80), Just(0xff)];
    prop_oneof![
        (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Damage::Flip(at, 1 << bit)),
        (any::<Index>(), extreme).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (any::<Index>(), vec(any::<u8>(), 1..9)).prop_map(|(at, new)| Damage::Insert(at, new)),
        (any::<Index>(), 1..9_usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        (any::<Index>(), 1..33_usize).prop_map(|(at, count)| Damage::Repeat(at, count)),
        (any::<Index>(), any::<Index>(), any::<Index>())
            .prop_map(|(at, other, from)| Damage::Splice(at, other, from)),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let end = bytes.len() + 1;
        match self {
            Self::Flip(..) | Self::Set(..) if bytes.is_empty() => {}
            Self::Flip(at, bits) => {
                let at = at.index(bytes.len());
                bytes[at] ^= bits;
            }
            Self::Set(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Self::Insert(at, new) => {
                let at = at.index(end);
                bytes.splice(at..at, new.iter().copied());
            }
            Self::Remove(at, count) => {
                let at = at.index(end);
                bytes.drain(at..(at + count).min(bytes.len()));
            }
            Self::Repeat(at, count) => {
                let at = at.index(end);
                let piece = bytes[at..(at + count).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            Self::Splice(at, other, from) => {
                let other = &corpus[other.index(corpus.len())];
                bytes.truncate(at.index(end));
                bytes.extend_from_slice(&other[from.index(other.len() + 1)..]);
            }
        }
    }
}

fn check(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let corpus = corpus(target);
    for input in &corpus {
        (target.run)(input);
    }
    let mut runner = TestRunner::new(Config { cases: CASES, ..Config::default() });
    let damaged = (any::<Index>(), vec(damage(), 1..6));
    runner
        .run(&damaged, |(input, damages)| {
            let mut bytes = corpus[input.index(corpus.len())].clone();
            for damage in damages {
                damage.apply(&mut bytes, &corpus);
            }
            (target.run)(&bytes);
            Ok(())
        })
        .unwrap();
}

macro_rules! checks {
    ($($target:ident: $name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($target));
            }
        )*

        #[test]
        fn every_target_is_checked_here_and_has_a_fuzzer() {
            let checked = [$(stringify!($target)),*];
            let targets: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(targets, checked);
            let fuzzers = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/fuzz_targets");
            for name in checked {
                assert!(fuzzers.join(name).with_extension("rs").is_file(), "{name}");
            }
        }
    };
}

checks! {
    request: a_request_is_what_it_was_or_an_error,
    sections: a_list_of_spans_adds_up_to_what_it_says_or_is_an_error,
    reply: a_reply_is_what_it_was_or_an_error,
    hello: a_hello_is_what_it_was_or_an_error,
    table_update: a_piece_of_a_table_is_possible_or_an_error,
    ticket: a_ticket_is_possible_or_an_error,
    registration: a_registration_is_understood_or_an_error,
    listing: a_listing_is_understood_or_an_error,
    address: an_address_is_understood_or_an_error,
    pool_request: a_request_to_a_master_is_understood_or_an_error,
    pool_reply: an_answer_of_a_master_is_possible_or_an_error,
    pool_state: a_master_keeps_its_books_whatever_it_is_asked,
    pool_query: a_query_of_a_master_is_understood_or_an_error,
    pool_flags: a_masters_command_line_is_understood_or_an_error,
}
