//! The forward pass as data: a list of ops over named buffers and weights.
//!
//! An architecture module (`model::llama`) builds a [`Program`] once; every device runs the same list. Each
//! op states what it costs for a given batch ([`Program::cost`]), which is all that the FLOP and bandwidth
//! counters and the detailed traces know about the model.
//!
//! Activations are `f32`, row-major, one row per token of the batch ([`Rows::Tokens`]) or per row whose
//! logits are wanted ([`Rows::Logits`]). Weights are row-major too: `rows` output features of `columns`
//! input features each. The keys and values of past tokens live in the paged KV cache, one pair of arrays
//! per layer, `[slot][kv_head][head_size]` and `[slot][kv_head][value_head_size]`; a slot is
//! `block · block_size + offset`. Layers with and without a window share the cache's memory as
//! [`crate::cache_layout`] says.
//!
//! Invariant: ids index into the program that made them; buffers named by an op have the widths the op
//! asks for ([`Program::check`]).

use crate::cache_layout::CacheLayout;
use crate::tensor_type::TensorType;

mod rotation;

pub use rotation::{RopeScaling, Rotation, ShortFactors, Yarn};

/// Index of an activation buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub usize);

/// Index of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub usize);

/// What a buffer has one row for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// Every token of the batch.
    Tokens,
    /// Every entry of the batch's `logits_rows`.
    Logits,
}

/// An activation buffer: `rows × width` values of `f32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// For people: `hidden`, `query`, `logits` …
    pub name: &'static str,
    /// Number of rows.
    pub rows: Rows,
    /// Values per row.
    pub width: usize,
}

/// A weight matrix (a vector is a matrix of one row).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Name of the tensor in the model file.
    pub name: String,
    /// Storage format.
    pub format: TensorType,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub columns: usize,
}

impl Weight {
    /// Stored bytes.
    pub fn bytes(&self) -> usize {
        self.rows * self.format.row_bytes(self.columns).expect("checked when the weight was declared")
    }
}

/// Which values of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Neighbours (2i, 2i+1): `llama` GGUF files, whose q and k weights are permuted for it.
    Pairs,
    /// Halves (i, i + rotary/2): the original layout of qwen2, qwen3, gemma3.
    Halves,
}

/// What a gate lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// The Gaussian error linear unit by its approximation with tanh, `x · (1 + tanh(u)) / 2`, which is
    /// `x · sigmoid(2u)`, with `u = √(2/π) · (x + 0.044715 x³)`.
    Gelu,
}

/// One step of the forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// Place in the program, as traces show it: `layer.3.attention`, `embed`, `logits`.
    pub name: String,
    /// What it computes.
    pub kind: OpKind,
}

/// The ops that exist. Each has a folder in `kernels` with its reference implementation.
#[derive(Clone, Debug, PartialEq)]
pub enum OpKind {
    /// `out[t] = table[token[t]] · scale`.
    Embed {
        /// `vocabulary × width`.
        table: WeightId,
        /// Width of the table.
        out: BufferId,
        /// 1 in most models.
        scale: f32,
    },
    /// `out[r] = input[r] / sqrt(mean(input[r]²) + epsilon) · weight`. A weight narrower than the row
    /// norms each run of its width on its own: the heads of a query, say.
    RmsNorm {
        /// Any buffer.
        input: BufferId,
        /// `1 × width`, or a width that divides it.
        weight: WeightId,
        /// As wide as `input`.
        out: BufferId,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// `out[r][n] = Σ_k input[r][k] · weight[n][k]`, added to what is in `out` if `accumulate`.
    MatMul {
        /// Width `weight.columns`.
        input: BufferId,
        /// The matrix.
        weight: WeightId,
        /// Width `weight.rows`.
        out: BufferId,
        /// Residual connection: `out +=` instead of `out =`.
        accumulate: bool,
    },
    /// `buffer[r] += bias`.
    AddBias {
        /// Any buffer.
        buffer: BufferId,
        /// `1 × width`.
        bias: WeightId,
    },
    /// Rotates the first values of each head in place by the token's position.
    Rope {
        /// Width `num_heads · head_size`.
        buffer: BufferId,
        /// Heads in a row.
        num_heads: usize,
        /// Values per head.
        head_size: usize,
        /// How many values rotate, at most `head_size`, and how far.
        rotation: Rotation,
        /// Which values rotate together.
        style: RopeStyle,
    },
    /// Writes the batch's keys and values to their slots of the layer's cache.
    StoreKv {
        /// Width `num_kv_heads · head_size`.
        key: BufferId,
        /// Width `num_kv_heads · value_head_size`.
        value: BufferId,
        /// Cache layer.
        layer: usize,
    },
    /// Causal attention of each token over its sequence's cache, the token's own entry included: a token
    /// at position p sees positions 0..=p, or the last `window` of them. Query head h reads KV head
    /// `h / (num_heads / num_kv_heads)`.
    Attention {
        /// Width `num_heads · head_size`.
        query: BufferId,
        /// Width `num_heads · value_head_size`; may be `query` where that is the same.
        out: BufferId,
        /// Cache layer.
        layer: usize,
        /// Query heads.
        num_heads: usize,
        /// Multiplies the dot products, usually `1 / sqrt(head_size)`.
        scale: f32,
        /// Positions that a token sees, its own included; at least 1. `None`: all.
        window: Option<usize>,
    },
    /// `out = activation(gate) · up`, value by value; `out` may be `gate`.
    GateMul {
        /// What the gate goes through.
        activation: Activation,
        /// Any width.
        gate: BufferId,
        /// Same width.
        up: BufferId,
        /// Same width.
        out: BufferId,
    },
    /// `out += input`, value by value.
    Add {
        /// Any width.
        input: BufferId,
        /// Same width; another buffer.
        out: BufferId,
    },
    /// `out[i] = input[logits_rows[i]]`: from one row per token to one row per wanted logits row.
    GatherRows {
        /// Rows: tokens.
        input: BufferId,
        /// Rows: logits; same width.
        out: BufferId,
    },
}

/// The forward pass of one model.
#[derive(Clone, Debug)]
pub struct Program {
    /// Activation buffers.
    pub buffers: Vec<Buffer>,
    /// Weights, in file order or not.
    pub weights: Vec<Weight>,
    /// Ops in the order of execution.
    pub ops: Vec<Op>,
    /// Where the logits end up: rows of [`Rows::Logits`], width = vocabulary.
    pub logits: BufferId,
    /// Layers that have a KV cache.
    pub num_layers: usize,
    /// KV heads of each layer.
    pub num_kv_heads: usize,
    /// Values per head of queries and keys.
    pub head_size: usize,
    /// Values per head of values, and of what attention makes of them.
    pub value_head_size: usize,
}

/// What an op costs on the batch it was asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations (a multiply-add is two).
    pub flops: u64,
    /// Bytes read: weights as stored, activations and cache as `f32`.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.flops += other.flops;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}

/// What a cost depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchShape {
    /// Tokens in the batch.
    pub tokens: u64,
    /// Rows whose logits are wanted.
    pub logits_rows: u64,
    /// Σ over tokens of the positions each attends to.
    pub attended: u64,
    /// Σ over sequences of their context length: what attention must read at least once.
    pub context: u64,
    /// The same two for layers that attend to a window.
    pub window_attended: u64,
    /// See `window_attended`.
    pub window_context: u64,
}

/// [`Program::total_cost`] for any batch without going through the ops: what they state is a constant for the
/// weights plus a multiple of each of the batch's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostModel {
    fixed: Cost,
    token: Cost,
    logits_row: Cost,
    attended: Cost,
    context: Cost,
    window_attended: Cost,
    window_context: Cost,
}

impl CostModel {
    /// Learns the program's multiples from batches that differ in one number.
    pub fn new(program: &Program) -> CostModel {
        let fixed = program.total_cost(BatchShape::default());
        let alone = |batch| {
            let cost = program.total_cost(batch);
            Cost {
                flops: cost.flops - fixed.flops,
                bytes_read: cost.bytes_read - fixed.bytes_read,
                bytes_written: cost.bytes_written - fixed.bytes_written,
            }
        };
        CostModel {
            fixed,
            token: alone(BatchShape { tokens: 1, ..BatchShape::default() }),
            logits_row: alone(BatchShape { logits_rows: 1, ..BatchShape::default() }),
            attended: alone(BatchShape { attended: 1, ..BatchShape::default() }),
            context: alone(BatchShape { context: 1, ..BatchShape::default() }),
            window_attended: alone(BatchShape { window_attended: 1, ..BatchShape::default() }),
            window_context: alone(BatchShape { window_context: 1, ..BatchShape::default() }),
        }
    }

    /// Cost of the whole forward pass for a batch.
    pub fn cost(&self, batch: BatchShape) -> Cost {
        let mut total = self.fixed;
        for (number, each) in [
            (batch.tokens, self.token),
            (batch.logits_rows, self.logits_row),
            (batch.attended, self.attended),
            (batch.context, self.context),
            (batch.window_attended, self.window_attended),
            (batch.window_context, self.window_context),
        ] {
            total += Cost {
                flops: number * each.flops,
                bytes_read: number * each.bytes_read,
                bytes_written: number * each.bytes_written,
            };
        }
        total
    }
}

const F32: u64 = 4;

impl Program {
    /// Values one token adds to a layer's key cache.
    pub fn key_width(&self) -> usize {
        self.num_kv_heads * self.head_size
    }

    /// Values one token adds to a layer's value cache.
    pub fn value_width(&self) -> usize {
        self.num_kv_heads * self.value_head_size
    }

    /// Values one token adds to a layer's cache.
    fn slot_width(&self) -> usize {
        self.key_width() + self.value_width()
    }

    /// Values per logits row.
    pub fn vocabulary(&self) -> usize {
        self.buffers[self.logits.0].width
    }

    /// Bytes the weights take as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|weight| weight.bytes() as u64).sum()
    }

    /// Bytes of one slot of the KV pool: keys and values of a token in one group of layers.
    pub fn kv_bytes_per_slot(&self) -> u64 {
        F32 * (CacheLayout::of(self).num_memories * self.slot_width()) as u64
    }

    /// Chooses among a model's rotations those for sequences of at most `max_model_len` tokens.
    pub fn fit_context(&mut self, max_model_len: usize) {
        for op in &mut self.ops {
            if let OpKind::Rope { rotation, .. } = &mut op.kind
                && let Some(short) = rotation.short.take()
                && max_model_len <= short.max_len
            {
                rotation.factors = Some(short.factors);
            }
        }
    }

    /// The window of those layers that have one.
    pub fn window(&self) -> Option<usize> {
        self.ops.iter().find_map(|op| match op.kind {
            OpKind::Attention { window, .. } => window,
            _ => None,
        })
    }

    /// Bytes the activation buffers take for a batch of `tokens` tokens and `logits_rows` rows.
    pub fn activation_bytes(&self, tokens: usize, logits_rows: usize) -> u64 {
        self.buffers
            .iter()
            .map(|buffer| {
                let rows = if buffer.rows == Rows::Tokens { tokens } else { logits_rows };
                F32 * (rows * buffer.width) as u64
            })
            .sum()
    }

    /// Cost of one op for a batch.
    pub fn cost(&self, op: &Op, batch: BatchShape) -> Cost {
        let rows = |id: BufferId| match self.buffers[id.0].rows {
            Rows::Tokens => batch.tokens,
            Rows::Logits => batch.logits_rows,
        };
        let width = |id: BufferId| self.buffers[id.0].width as u64;
        let bytes = |id: BufferId| F32 * rows(id) * width(id);
        match op.kind {
            OpKind::Embed { table, out, .. } => {
                let weight = &self.weights[table.0];
                let row = (weight.bytes() / weight.rows) as u64;
                Cost { flops: 0, bytes_read: batch.tokens * (row + F32), bytes_written: bytes(out) }
            }
            OpKind::RmsNorm { input, weight, out, .. } => Cost {
                flops: 4 * rows(input) * width(input),
                bytes_read: bytes(input) + self.weights[weight.0].bytes() as u64,
                bytes_written: bytes(out),
            },
            OpKind::AddBias { buffer, bias } => Cost {
                flops: rows(buffer) * width(buffer),
                bytes_read: bytes(buffer) + self.weights[bias.0].bytes() as u64,
                bytes_written: bytes(buffer),
            },
            OpKind::MatMul { input, weight, out, accumulate } => Cost {
                flops: 2 * rows(input) * width(input) * width(out),
                bytes_read: self.weights[weight.0].bytes() as u64
                    + bytes(input)
                    + if accumulate { bytes(out) } else { 0 },
                bytes_written: bytes(out),
            },
            OpKind::Rope { num_heads, rotation, .. } => {
                let values = batch.tokens * (num_heads * rotation.rotary) as u64;
                Cost { flops: 3 * values, bytes_read: F32 * values, bytes_written: F32 * values }
            }
            OpKind::StoreKv { key, value, .. } => {
                let moved = bytes(key) + bytes(value);
                Cost { flops: 0, bytes_read: moved, bytes_written: moved }
            }
            OpKind::Attention { query, out, num_heads, window, .. } => {
                let (attended, context) = match window {
                    None => (batch.attended, batch.context),
                    Some(_) => (batch.window_attended, batch.window_context),
                };
                Cost {
                    // Dot products and the weighted sum, each a multiply-add per value.
                    flops: 2 * attended * (num_heads * (self.head_size + self.value_head_size)) as u64,
                    bytes_read: bytes(query) + F32 * context * self.slot_width() as u64,
                    bytes_written: bytes(out),
                }
            }
            OpKind::GateMul { gate, up, out, .. } => Cost {
                flops: 4 * rows(gate) * width(gate),
                bytes_read: bytes(gate) + bytes(up),
                bytes_written: bytes(out),
            },
            OpKind::Add { input, out } => Cost {
                flops: rows(out) * width(out),
                bytes_read: bytes(input) + bytes(out),
                bytes_written: bytes(out),
            },
            OpKind::GatherRows { out, .. } => {
                Cost { flops: 0, bytes_read: bytes(out), bytes_written: bytes(out) }
            }
        }
    }

    /// Cost of the whole forward pass for a batch.
    pub fn total_cost(&self, batch: BatchShape) -> Cost {
        let mut total = Cost::default();
        for op in &self.ops {
            total += self.cost(op, batch);
        }
        total
    }

    /// Asserts the invariant in the module's head.
    ///
    /// # Panics
    /// On an op whose buffers or weights do not fit together; the message names it.
    pub fn check(&self) {
        for op in &self.ops {
            self.check_op(op);
        }
        assert_eq!(self.buffers[self.logits.0].rows, Rows::Logits, "logits have one row per wanted row");
    }

    fn check_op(&self, op: &Op) {
        let name = &op.name;
        let buffer = |id: BufferId| &self.buffers[id.0];
        let weight = |id: WeightId| &self.weights[id.0];
        let same = |a: BufferId, b: BufferId| {
            assert_eq!(buffer(a).width, buffer(b).width, "{name}: widths");
            assert_eq!(buffer(a).rows, buffer(b).rows, "{name}: rows");
        };
        match op.kind {
            OpKind::Embed { table, out, .. } => {
                assert_eq!(weight(table).columns, buffer(out).width, "{name}: width of the table");
                assert_eq!(buffer(out).rows, Rows::Tokens, "{name}: one row per token");
            }
            OpKind::RmsNorm { input, weight: id, out, .. } => {
                same(input, out);
                let (width, columns) = (buffer(input).width, weight(id).columns);
                assert_eq!(weight(id).rows, 1, "{name}: weight");
                assert!(width.is_multiple_of(columns), "{name}: {columns} factors for rows of {width}");
            }
            OpKind::AddBias { buffer: id, bias } => {
                assert_eq!((weight(bias).rows, weight(bias).columns), (1, buffer(id).width), "{name}: bias");
            }
            OpKind::MatMul { input, weight: id, out, .. } => {
                assert_eq!(buffer(input).rows, buffer(out).rows, "{name}: rows");
                assert_eq!(weight(id).columns, buffer(input).width, "{name}: input width");
                assert_eq!(weight(id).rows, buffer(out).width, "{name}: output width");
                assert_ne!(input, out, "{name}: input and output must differ");
            }
            OpKind::Rope { buffer: id, num_heads, head_size, rotation, .. } => {
                let Rotation { rotary, factors, short, .. } = rotation;
                for factors in [factors, short.map(|short| short.factors)].into_iter().flatten().map(weight) {
                    assert_eq!((factors.rows, factors.columns), (1, rotary / 2), "{name}: factors");
                }
                assert_eq!(buffer(id).width, num_heads * head_size, "{name}: width");
                assert!(rotary <= head_size && rotary.is_multiple_of(2), "{name}: rotary {rotary}");
            }
            OpKind::StoreKv { key, value, layer } => {
                assert_eq!(buffer(key).rows, buffer(value).rows, "{name}: rows");
                assert_eq!(buffer(key).width, self.key_width(), "{name}: width of keys");
                assert_eq!(buffer(value).width, self.value_width(), "{name}: width of values");
                assert!(layer < self.num_layers, "{name}: layer {layer}");
            }
            OpKind::Attention { query, out, layer, num_heads, window, .. } => {
                assert_eq!(buffer(query).rows, buffer(out).rows, "{name}: rows");
                assert_ne!(window, Some(0), "{name}: a token sees itself");
                assert!(window.is_none() || window == self.window(), "{name}: one window a program");
                assert_eq!(buffer(query).width, num_heads * self.head_size, "{name}: width of queries");
                assert_eq!(buffer(out).width, num_heads * self.value_head_size, "{name}: output width");
                assert!(num_heads.is_multiple_of(self.num_kv_heads), "{name}: heads");
                assert!(layer < self.num_layers, "{name}: layer {layer}");
            }
            OpKind::GateMul { gate, up, out, .. } => {
                same(gate, up);
                same(gate, out);
            }
            OpKind::Add { input, out } => {
                same(input, out);
                assert_ne!(input, out, "{name}: input and output must differ");
            }
            OpKind::GatherRows { input, out } => {
                assert_eq!(buffer(input).width, buffer(out).width, "{name}: widths");
                assert_eq!(
                    (buffer(input).rows, buffer(out).rows),
                    (Rows::Tokens, Rows::Logits),
                    "{name}: rows"
                );
            }
        }
    }
}
