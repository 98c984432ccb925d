//! Llama-shaped models with random weights, for tests and benches that need the shape of a model and not
//! its knowledge.
//!
//! Invariant: the same shape and seed give the same model; its activations stay of the order of one, so
//! tolerances mean something.

use std::borrow::Cow;

use half::{bf16, f16};
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::cache_layout::CacheLayout;
use crate::device::{Batch, BatchSequence, WeightSource};
use crate::program::{
    Activation, Buffer, BufferId, Op, OpKind, Program, RopeStyle, Rotation, Rows, Weight, WeightId,
};
use crate::tensor_type::TensorType;

/// Sizes of a model.
#[derive(Clone, Debug)]
pub struct LlamaShape {
    /// Layers.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the feed-forward block.
    pub ffn_width: usize,
    /// Query heads.
    pub num_heads: usize,
    /// KV heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Values per head of queries and keys.
    pub head_size: usize,
    /// Values per head of values.
    pub value_head_size: usize,
    /// Values of a head that rotate.
    pub rotary: usize,
    /// Which of them rotate together.
    pub style: RopeStyle,
    /// Positions that the even layers see; the odd ones see all, as all do for `None`.
    pub window: Option<usize>,
    /// Rows of the embedding, which is also the output matrix.
    pub vocabulary: usize,
    /// Format of the layers' matrices.
    pub format: TensorType,
    /// Format of the embedding.
    pub embedding_format: TensorType,
}

impl LlamaShape {
    /// The shapes and formats of SmolLM2-135M-Instruct in Q4_1.
    pub const SMOLLM2_135M: LlamaShape = LlamaShape {
        num_layers: 30,
        width: 576,
        ffn_width: 1536,
        num_heads: 9,
        num_kv_heads: 3,
        head_size: 64,
        value_head_size: 64,
        rotary: 64,
        style: RopeStyle::Pairs,
        window: None,
        vocabulary: 49152,
        format: TensorType::Q4_1,
        embedding_format: TensorType::Q8_0,
    };

    /// Two layers of sizes that fit no vector register.
    pub const TINY: LlamaShape = LlamaShape {
        num_layers: 2,
        width: 96,
        ffn_width: 160,
        num_heads: 6,
        num_kv_heads: 2,
        head_size: 16,
        value_head_size: 16,
        rotary: 16,
        style: RopeStyle::Pairs,
        window: None,
        vocabulary: 133,
        format: TensorType::Q4_1,
        embedding_format: TensorType::Q8_0,
    };
}

impl LlamaShape {
    /// The shape with widths and heads added until every row is a whole number of blocks.
    pub fn in_whole_blocks(mut self) -> LlamaShape {
        let block = self.format.block_elements().max(self.embedding_format.block_elements());
        self.width = self.width.next_multiple_of(block);
        self.ffn_width = self.ffn_width.next_multiple_of(block);
        while !(self.num_heads * self.value_head_size).is_multiple_of(block) {
            self.num_heads += self.num_kv_heads;
        }
        self
    }
}

/// A program and its weights.
pub struct SyntheticModel {
    /// The forward pass.
    pub program: Program,
    weights: Vec<Vec<u8>>,
}

impl WeightSource for SyntheticModel {
    fn weight(&self, id: WeightId) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.weights[id.0])
    }
}

impl SyntheticModel {
    /// A model of this shape, its weights drawn from `seed`.
    pub fn new(shape: &LlamaShape, seed: u64) -> SyntheticModel {
        let mut model = Builder { random: ChaCha8Rng::seed_from_u64(seed), weights: vec![], stored: vec![] };
        let (num_heads, num_kv_heads) = (shape.num_heads, shape.num_kv_heads);
        let (head_size, value_head_size) = (shape.head_size, shape.value_head_size);
        let (width, ffn_width) = (shape.width, shape.ffn_width);
        let mut buffers = Vec::new();
        let mut buffer = |name, rows, width| {
            buffers.push(Buffer { name, rows, width });
            BufferId(buffers.len() - 1)
        };
        let hidden = buffer("hidden", Rows::Tokens, width);
        let normed = buffer("normed", Rows::Tokens, width);
        let query = buffer("query", Rows::Tokens, num_heads * head_size);
        let key = buffer("key", Rows::Tokens, num_kv_heads * head_size);
        let value = buffer("value", Rows::Tokens, num_kv_heads * value_head_size);
        let attended = buffer("attended", Rows::Tokens, num_heads * value_head_size);
        let gate = buffer("gate", Rows::Tokens, ffn_width);
        let up = buffer("up", Rows::Tokens, ffn_width);
        let last = buffer("last", Rows::Logits, width);
        let last_normed = buffer("last_normed", Rows::Logits, width);
        let logits = buffer("logits", Rows::Logits, shape.vocabulary);
        let mut ops = Vec::new();
        let mut op = |name: String, kind| ops.push(Op { name, kind });
        let product = |input, weight, out, accumulate| OpKind::MatMul { input, weight, out, accumulate };
        let norm = |input, weight, out| OpKind::RmsNorm { input, weight, out, epsilon: 1e-5 };
        let rope = |buffer, num_heads| OpKind::Rope {
            buffer,
            num_heads,
            head_size,
            rotation: Rotation::plain(shape.rotary, 10_000.0),
            style: shape.style,
        };
        let table = model.matrix("token_embd.weight", shape.embedding_format, shape.vocabulary, width);
        op("embed".to_owned(), OpKind::Embed { table, out: hidden, scale: 1.0 });
        for layer in 0..shape.num_layers {
            let name = |part: &str| format!("layer.{layer}.{part}");
            let mut matrix = |part, rows, columns| model.matrix(&name(part), shape.format, rows, columns);
            let rows = [
                ("q", num_heads * head_size),
                ("k", num_kv_heads * head_size),
                ("v", num_kv_heads * value_head_size),
            ];
            let [q, k, v] = rows.map(|(name, rows)| matrix(name, rows, width));
            let output = matrix("output", width, num_heads * value_head_size);
            let [gate_weight, up_weight] = ["gate", "up"].map(|name| matrix(name, ffn_width, width));
            let down = matrix("down", width, ffn_width);
            let [attention_norm, ffn_norm] =
                ["attention_norm", "ffn_norm"].map(|part| model.norm(&name(part), width));
            op(name("attention_norm"), norm(hidden, attention_norm, normed));
            op(name("q"), product(normed, q, query, false));
            op(name("k"), product(normed, k, key, false));
            op(name("v"), product(normed, v, value, false));
            op(name("rope_q"), rope(query, num_heads));
            op(name("rope_k"), rope(key, num_kv_heads));
            op(name("store_kv"), OpKind::StoreKv { key, value, layer });
            let scale = 1.0 / (head_size as f32).sqrt();
            let window = shape.window.filter(|_| layer.is_multiple_of(2));
            op(
                name("attention"),
                OpKind::Attention { query, out: attended, layer, num_heads, scale, window },
            );
            op(name("output"), product(attended, output, hidden, true));
            op(name("ffn_norm"), norm(hidden, ffn_norm, normed));
            op(name("gate"), product(normed, gate_weight, gate, false));
            op(name("up"), product(normed, up_weight, up, false));
            let activation = Activation::Silu;
            op(name("silu_mul"), OpKind::GateMul { activation, gate, up, out: gate });
            op(name("down"), product(gate, down, hidden, true));
        }
        let output_norm = model.norm("output_norm", width);
        op("gather".to_owned(), OpKind::GatherRows { input: hidden, out: last });
        op("output_norm".to_owned(), norm(last, output_norm, last_normed));
        op("logits".to_owned(), product(last_normed, table, logits, false));
        let program = Program {
            buffers,
            weights: model.weights,
            ops,
            logits,
            num_layers: shape.num_layers,
            num_kv_heads,
            head_size,
            value_head_size,
        };
        program.check();
        SyntheticModel { program, weights: model.stored }
    }

    /// The same weights under another program.
    pub fn with_program(self, program: Program) -> SyntheticModel {
        SyntheticModel { program, ..self }
    }
}

struct Builder {
    random: ChaCha8Rng,
    weights: Vec<Weight>,
    stored: Vec<Vec<u8>>,
}

impl Builder {
    fn matrix(&mut self, name: &str, format: TensorType, rows: usize, columns: usize) -> WeightId {
        let weight = Weight { name: name.to_owned(), format, rows, columns };
        self.stored.push(random_weight(&weight, &mut self.random));
        self.weights.push(weight);
        WeightId(self.weights.len() - 1)
    }

    fn norm(&mut self, name: &str, width: usize) -> WeightId {
        let values = (0..width).flat_map(|_| self.random.random_range(0.5f32..1.5).to_le_bytes()).collect();
        self.stored.push(values);
        self.weights.push(Weight { name: name.to_owned(), format: TensorType::F32, rows: 1, columns: width });
        WeightId(self.weights.len() - 1)
    }
}

/// Stored bytes of a weight with values of mean zero and, times the square root of its columns, deviation
/// near one.
pub fn random_weight(weight: &Weight, random: &mut impl Rng) -> Vec<u8> {
    let mut bytes = vec![0; weight.bytes()];
    random.fill_bytes(&mut bytes);
    let deviation = 1.0 / (weight.columns as f32).sqrt();
    let format = weight.format;
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let spread = deviation * random.random_range(0.5f32..1.5);
        let value = spread * random.random_range(-1.7f32..1.7);
        let half = |value: f32| f16::from_f32(value).to_le_bytes();
        match format {
            TensorType::F32 => block.copy_from_slice(&value.to_le_bytes()),
            TensorType::F16 => block.copy_from_slice(&half(value)),
            TensorType::Bf16 => block.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            // Nibbles have deviation 4.6, bytes 74.
            TensorType::Q4_0 => block[..2].copy_from_slice(&half(spread / 4.6)),
            TensorType::Q4_1 => {
                block[..2].copy_from_slice(&half(spread / 4.6));
                block[2..4].copy_from_slice(&half(-7.5 * spread / 4.6));
            }
            TensorType::Q8_0 => block[..2].copy_from_slice(&half(spread / 74.0)),
            // The others have scales within their quanta.
            _ => {
                let values: Vec<f32> = (0..format.block_elements())
                    .map(|_| spread * random.random_range(-1.7f32..1.7))
                    .collect();
                block.copy_from_slice(&format.quantize(&values));
            }
        }
    }
    bytes
}

/// Sequences that grow batch by batch, their blocks scattered over the pool. No window's blocks are given back.
pub struct SequenceSet {
    block_size: usize,
    /// Groups of layers in the cache.
    groups: usize,
    /// Blocks nobody has yet.
    free: Vec<u32>,
    /// Blocks by group and length of each sequence.
    sequences: Vec<(Vec<Vec<u32>>, usize)>,
}

impl SequenceSet {
    /// `count` empty sequences over a pool of `num_blocks` blocks.
    pub fn new(count: usize, num_blocks: usize, block_size: usize, seed: u64) -> SequenceSet {
        let mut free: Vec<u32> = (0..num_blocks as u32).collect();
        free.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        SequenceSet { block_size, groups: 1, free, sequences: vec![(vec![Vec::new()], 0); count] }
    }

    /// The same for a program whose layers form several groups.
    pub fn for_program(mut self, program: &Program) -> SequenceSet {
        self.groups = CacheLayout::of(program).num_groups();
        self.sequences.iter_mut().for_each(|(blocks, _)| blocks.resize(self.groups, Vec::new()));
        self
    }

    /// A batch that appends tokens to sequences, and wants the logits of each one's last row.
    ///
    /// # Panics
    /// If the pool has too few blocks.
    pub fn batch(&mut self, additions: &[(usize, &[u32])]) -> Batch {
        let mut batch = Batch::default();
        let mut slots = vec![Vec::new(); self.groups];
        for (index, tokens) in additions {
            let (blocks, length) = &mut self.sequences[*index];
            let first_row = batch.tokens.len() as u32;
            for token in *tokens {
                for (blocks, slots) in blocks.iter_mut().zip(&mut slots) {
                    if length.is_multiple_of(self.block_size) {
                        blocks.push(self.free.pop().expect("the pool has a block left"));
                    }
                    let block = blocks[*length / self.block_size] as usize;
                    slots.push((block * self.block_size + *length % self.block_size) as u32);
                }
                batch.tokens.push(*token);
                batch.positions.push(*length as u32);
                *length += 1;
            }
            batch.sequences.push(BatchSequence {
                first_row,
                num_rows: tokens.len() as u32,
                context_len: *length as u32,
                block_table_start: batch.block_tables.len() as u32,
            });
            batch.block_tables.extend(blocks.iter().flatten());
            batch.logits_rows.push(batch.tokens.len() as u32 - 1);
        }
        batch.slots = slots.concat();
        batch
    }
}
