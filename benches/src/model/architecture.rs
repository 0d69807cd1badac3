//! Models that are known, and files that describe others.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

/// What of a model's architecture decides the size of its KV cache.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Architecture {
    pub(super) name: String,
    pub(super) layers: u32,
    pub(super) attention: Attention,
}

/// What a layer keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Attention {
    /// Multi-head latent attention: one vector for keys and values together, and the part of the
    /// key that carries the position, the same for all heads (DeepSeek-V2, 2024).
    Mla { rope: u32, latent: u32 },
    /// Grouped-query attention: a key and a value for each group of heads.
    Gqa { kv_heads: u32, head_dim: u32 },
}

/// As the models' configurations on the model hub say.
const KNOWN: [(&str, u32, Attention); 7] = [
    ("deepseek-r1", 61, Attention::Mla { rope: 64, latent: 512 }),
    ("llama3.1-8b", 32, Attention::Gqa { kv_heads: 8, head_dim: 128 }),
    ("llama3.1-70b", 80, Attention::Gqa { kv_heads: 8, head_dim: 128 }),
    ("gpt-oss-120b", 36, Attention::Gqa { kv_heads: 8, head_dim: 64 }),
    ("gpt-oss-20b", 24, Attention::Gqa { kv_heads: 8, head_dim: 64 }),
    ("qwen3-8b", 36, Attention::Gqa { kv_heads: 8, head_dim: 128 }),
    ("qwen3-235b", 94, Attention::Gqa { kv_heads: 4, head_dim: 128 }),
];

impl Architecture {
    /// The model of this name, or the one that this file describes.
    pub(super) fn find(name: &str) -> anyhow::Result<Self> {
        if let Some((name, layers, attention)) = KNOWN.iter().find(|(known, ..)| *known == name) {
            return Ok(Self { name: (*name).into(), layers: *layers, attention: *attention });
        }
        let path = Path::new(name);
        if path.extension().is_none() {
            let known: Vec<&str> = KNOWN.iter().map(|(known, ..)| *known).collect();
            bail!(
                "there is no model `{name}`: it is one of {}, or a file NAME.toml or NAME.json",
                known.join(", ")
            );
        }
        Self::read(path).with_context(|| format!("reading the model of {}", path.display()))
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path)?;
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let model: Self =
            if is_json { serde_json::from_str(&text)? } else { toml::from_str(&text)? };
        let parts = match model.attention {
            Attention::Mla { rope, latent } => [rope, latent],
            Attention::Gqa { kv_heads, head_dim } => [kv_heads, head_dim],
        };
        if model.layers == 0 || parts.contains(&0) {
            bail!("{model} keeps nothing: every number must be at least 1");
        }
        Ok(model)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = self.layers;
        match self.attention {
            Attention::Mla { rope, latent } => {
                write!(f, "{layers} layers, latent attention (rope {rope}, latent {latent})")
            }
            Attention::Gqa { kv_heads, head_dim } => {
                write!(f, "{layers} layers, {kv_heads} KV heads of {head_dim}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(name: &str, text: &str) -> anyhow::Result<Architecture> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        Architecture::find(path.to_str().unwrap())
    }

    #[test]
    fn every_known_model_is_found_by_its_name() {
        for (name, layers, attention) in KNOWN {
            let expected = Architecture { name: name.into(), layers, attention };
            assert_eq!(Architecture::find(name).unwrap(), expected);
        }
        let error = Architecture::find("llama4").unwrap_err().to_string();
        assert!(error.contains("`llama4`") && error.contains("qwen3-235b"), "{error}");
    }

    #[test]
    fn other_models_are_described_in_toml_or_json() {
        let toml = "name = 'm'\nlayers = 2\n[attention]\nkind = 'mla'\nrope = 3\nlatent = 4\n";
        let json = r#"{"name":"m","layers":2,"attention":{"kind":"mla","rope":3,"latent":4}}"#;
        let model = described("m.toml", toml).unwrap();
        assert_eq!(model.attention, Attention::Mla { rope: 3, latent: 4 });
        assert_eq!(described("m.json", json).unwrap(), model);
    }

    #[test]
    fn a_description_that_cannot_be_is_refused_by_name() {
        for (text, words) in [
            ("name = 'm'\nlayers = 2\n", "attention"),
            ("name = 'm'\nlayers = 0\n[attention]\nkind='mla'\nrope=3\nlatent=4\n", "at least 1"),
            ("name = 'm'\nlayers = 1\n[attention]\nkind='mha'\n", "mha"),
            ("name='m'\nlayers=1\nheads=3\n[attention]\nkind='mla'\nrope=3\nlatent=4\n", "heads"),
        ] {
            let error = format!("{:#}", described("m.toml", text).unwrap_err());
            assert!(error.contains("m.toml") && error.contains(words), "{error}");
        }
        let error = format!("{:#}", Architecture::find("/nowhere/m.toml").unwrap_err());
        assert!(error.contains("/nowhere/m.toml"), "{error}");
    }
}
