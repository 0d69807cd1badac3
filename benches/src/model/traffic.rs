//! Sizes and numbers of I/Os.

use super::architecture::{Architecture, Attention};
use crate::cli::{ModelArgs, PagePattern};

/// How a model is divided among devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// Ranks of tensor parallelism.
    pub(super) tp: u32,
    /// Stages of the pipeline.
    pub(super) pp: u32,
}

/// What is moved, for one rank of tensor parallelism and all stages of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    /// A token's keys and values in all layers.
    pub(super) token_bytes: u64,
    pub(super) total_bytes: u64,
    pub(super) io_bytes: u64,
    pub(super) ios: u64,
}

/// A division that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SplitError {
    #[error(
        "{kv_heads} KV heads cannot be divided among --tp {tp}: set one that divides them, or a \
         multiple of them, where ranks share a head"
    )]
    Heads { kv_heads: u32, tp: u32 },
    #[error("{layers} layers are fewer than --pp {pp} stages: set fewer")]
    Stages { layers: u32, pp: u32 },
    #[error("that is more than can be counted: set a shorter --isl or fewer --requests")]
    Overflow,
}

impl Traffic {
    /// Of so many requests of so many tokens.
    pub(super) fn of(
        model: &Architecture,
        split: Split,
        args: &ModelArgs,
    ) -> Result<Self, SplitError> {
        let amount = Amount {
            tokens: u64::from(args.isl).saturating_mul(args.requests.into()),
            page_tokens: args.page.into(),
            element_bytes: args.dtype.bytes(),
        };
        Self::compute(model, split, args.pattern, amount)
    }

    fn compute(
        model: &Architecture,
        split: Split,
        pattern: PagePattern,
        amount: Amount,
    ) -> Result<Self, SplitError> {
        let Amount { tokens, page_tokens, element_bytes } = amount;
        let Split { tp, pp } = split;
        let layers = model.layers;
        if pp > layers {
            return Err(SplitError::Stages { layers, pp });
        }
        let product = |factors: &[u64]| {
            let product = factors.iter().try_fold(1_u64, |all, factor| all.checked_mul(*factor));
            product.ok_or(SplitError::Overflow)
        };
        let layer_bytes = product(&[model.elements(tp)?, element_bytes])?;
        let token_bytes = product(&[layer_bytes, layers.into()])?;
        let io_layers = match pattern {
            PagePattern::Block => layers.div_ceil(pp),
            PagePattern::Layer => 1,
        };
        let io_bytes = product(&[layer_bytes, io_layers.into(), page_tokens])?;
        let total_bytes = product(&[token_bytes, tokens])?;
        Ok(Self { token_bytes, total_bytes, io_bytes, ios: total_bytes.div_ceil(io_bytes) })
    }
}

/// How many tokens, in which pages, and how large a number is.
#[derive(Clone, Copy, Debug)]
struct Amount {
    tokens: u64,
    page_tokens: u64,
    element_bytes: u64,
}

impl Architecture {
    /// Numbers that a layer keeps of a token on a rank. What is latent is on every rank whole;
    /// heads are divided, and where there are more ranks than heads, ranks share one.
    fn elements(&self, tp: u32) -> Result<u64, SplitError> {
        match self.attention {
            Attention::Mla { rope, latent } => Ok(u64::from(rope) + u64::from(latent)),
            Attention::Gqa { kv_heads, head_dim } => {
                if !kv_heads.is_multiple_of(tp) && !tp.is_multiple_of(kv_heads) {
                    return Err(SplitError::Heads { kv_heads, tp });
                }
                let heads = u64::from((kv_heads / tp).max(1));
                let keys_and_values = 2 * heads;
                keys_and_values.checked_mul(head_dim.into()).ok_or(SplitError::Overflow)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PagePattern::{Block, Layer};
    use super::*;

    /// Bytes an I/O, and I/Os.
    fn ios(
        model: &str,
        pattern: PagePattern,
        (tp, pp): (u32, u32),
        page_tokens: u64,
        requests: u64,
    ) -> (u64, u64) {
        let model = Architecture::find(model).unwrap();
        let amount = Amount { tokens: 10_000 * requests, page_tokens, element_bytes: 1 };
        let traffic = Traffic::compute(&model, Split { tp, pp }, pattern, amount).unwrap();
        (traffic.io_bytes, traffic.ios)
    }

    #[test]
    fn deepseek_r1_is_moved_in_the_ios_that_nixl_counts() {
        // In fp8, of 10,000 tokens, as the README of NIXL's kvbench has them.
        let ios =
            |pattern, pp, page, requests| ios("deepseek-r1", pattern, (1, pp), page, requests);
        assert_eq!(ios(Block, 8, 512, 10), (2_359_296, 1_490));
        assert_eq!(ios(Block, 16, 256, 10), (589_824, 5_958));
        assert_eq!(ios(Layer, 16, 256, 10), (147_456, 23_829));
        assert_eq!(ios(Block, 32, 256, 100), (294_912, 119_141));
    }

    #[test]
    fn heads_are_divided_among_ranks_and_what_is_latent_is_not() {
        // 2 x 8 heads x 128 x 80 layers x 256 tokens, and an eighth of it.
        assert_eq!(ios("llama3.1-70b", Block, (1, 1), 256, 1).0, 41_943_040);
        assert_eq!(ios("llama3.1-70b", Block, (8, 1), 256, 1).0, 5_242_880);
        // A token of it in fp8, as the tests of NIXL's kvbench have it.
        for (pp, bytes) in [(2, 10_240), (4, 5_120), (8, 2_560), (16, 1_280)] {
            assert_eq!(ios("llama3.1-70b", Block, (8, pp), 1, 1).0, bytes);
        }
        assert_eq!(ios("llama3.1-70b", Layer, (8, 4), 1, 1).0, 256);
        // Sixteen ranks share eight heads.
        assert_eq!(ios("llama3.1-70b", Block, (16, 1), 256, 1).0, 5_242_880);
        let alone = ios("deepseek-r1", Layer, (1, 1), 256, 1);
        assert_eq!(ios("deepseek-r1", Layer, (8, 1), 256, 1), alone);
    }

    #[test]
    fn divisions_that_cannot_be_are_refused() {
        let model = Architecture::find("llama3.1-8b").unwrap();
        let compute = |tp, pp, tokens| {
            let amount = Amount { tokens, page_tokens: 16, element_bytes: 2 };
            Traffic::compute(&model, Split { tp, pp }, Block, amount)
        };
        assert_eq!(compute(3, 1, 1), Err(SplitError::Heads { kv_heads: 8, tp: 3 }));
        assert_eq!(compute(1, 33, 1), Err(SplitError::Stages { layers: 32, pp: 33 }));
        assert_eq!(compute(1, 1, u64::MAX), Err(SplitError::Overflow));
    }
}
