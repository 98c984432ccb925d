//! What the architectures have in common: a decoder of pre-normalised layers with rotary positions,
//! grouped-query attention, over a window or over everything, and a gated feed-forward network.
//!
//! A [`Decoder`] has the hyperparameters and the buffers of such a model, and a method for each step that its
//! layers take; an architecture's module says which steps those are, in which order. Weights are named as
//! GGUF names them, ops as traces show them.

use std::ops::Range;

use super::builder::ProgramBuilder;
use super::settings::Settings;
use super::source::ModelSource;
use super::{Built, ModelProblem};
use crate::program::{Activation, BufferId, OpKind, RopeStyle, Rotation, Rows, WeightId};

/// A model in the making.
pub(super) struct Decoder<'a> {
    program: ProgramBuilder<'a>,
    pub(super) settings: Settings,
    pub(super) buffers: Buffers,
    /// A product that is normed before it is added, if layers have any.
    projected: Option<BufferId>,
    embedding: WeightId,
    vocabulary: usize,
}

/// The buffers that layers work in.
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    /// The residual stream.
    hidden: BufferId,
    normed: BufferId,
    pub(super) query: BufferId,
    pub(super) key: BufferId,
    pub(super) value: BufferId,
    /// What attention makes of the queries.
    pub(super) attended: BufferId,
    pub(super) gate: BufferId,
    pub(super) up: BufferId,
}

/// How a layer attends.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    /// How positions turn queries and keys.
    pub(super) style: RopeStyle,
    pub(super) rotation: Rotation,
    /// Multiplies the products of queries and keys.
    pub(super) scale: f32,
    /// Positions that a token sees; `None`: all.
    pub(super) window: Option<usize>,
}

impl<'a> Decoder<'a> {
    /// Reads the hyperparameters and begins with the embedding.
    pub(super) fn new(
        source: &'a dyn ModelSource,
        architecture: &'static str,
        vocabulary: usize,
    ) -> Result<Decoder<'a>, ModelProblem> {
        Decoder::scaled(source, architecture, vocabulary, |_| 1.0)
    }

    /// The same with an embedding that is multiplied by what `scale` says.
    pub(super) fn scaled(
        source: &'a dyn ModelSource,
        architecture: &'static str,
        vocabulary: usize,
        scale: impl FnOnce(&Settings) -> f32,
    ) -> Result<Decoder<'a>, ModelProblem> {
        let settings = Settings::read(source, architecture)?;
        let mut program = ProgramBuilder::new(source, architecture);
        let Settings { heads, kv_heads, head_size, value_head_size, .. } = settings;
        let mut buffer = |name, width| program.buffer(name, Rows::Tokens, width);
        let buffers = Buffers {
            hidden: buffer("hidden", settings.width),
            normed: buffer("normed", settings.width),
            query: buffer("query", heads * head_size),
            key: buffer("key", kv_heads * head_size),
            value: buffer("value", kv_heads * value_head_size),
            attended: buffer("attended", heads * value_head_size),
            gate: buffer("gate", settings.feed_forward),
            up: buffer("up", settings.feed_forward),
        };
        let embedding = program.matrix("token_embd.weight", vocabulary, settings.width);
        let scale = scale(&settings);
        program.op("embed", OpKind::Embed { table: embedding, out: buffers.hidden, scale });
        Ok(Decoder { program, settings, buffers, projected: None, embedding, vocabulary })
    }

    /// Whether the file has a tensor.
    pub(super) fn has(&self, tensor: &str) -> bool {
        self.program.has(tensor)
    }

    /// A tensor of factors for the rotation's frequencies.
    pub(super) fn rope_factors(&mut self, tensor: &str) -> WeightId {
        self.program.vector(tensor, self.settings.rotation.rotary / 2)
    }

    /// The usual attention: as the settings say, in all layers alike.
    pub(super) fn attention(&self, style: RopeStyle) -> Attention {
        let Settings { head_size, rotation, window, .. } = self.settings;
        let scale = 1.0 / (head_size as f32).sqrt();
        Attention { style, rotation, scale, window }
    }

    fn projected(&mut self) -> BufferId {
        let width = self.settings.width;
        *self.projected.get_or_insert_with(|| self.program.buffer("projected", Rows::Tokens, width))
    }

    /// A layer to add ops to.
    pub(super) fn layer(&mut self, index: usize) -> Layer<'_, 'a> {
        Layer { decoder: self, index }
    }

    /// Ends with the norm and the output matrix, over the rows whose logits are wanted: that matrix is the
    /// largest of all. Without one of its own the output uses the embedding's.
    pub(super) fn finish(self) -> Built {
        let Decoder { mut program, settings, buffers, embedding, vocabulary, .. } = self;
        let Settings { width, epsilon, .. } = settings;
        let last_hidden = program.buffer("last_hidden", Rows::Logits, width);
        let last_normed = program.buffer("last_normed", Rows::Logits, width);
        let logits = program.buffer("logits", Rows::Logits, vocabulary);
        program.op("gather_rows", OpKind::GatherRows { input: buffers.hidden, out: last_hidden });
        let weight = program.vector("output_norm.weight", width);
        program.op("output_norm", OpKind::RmsNorm { input: last_hidden, weight, out: last_normed, epsilon });
        const OUTPUT: &str = "output.weight";
        let weight = if program.has(OUTPUT) { program.matrix(OUTPUT, vocabulary, width) } else { embedding };
        program.op("logits", OpKind::MatMul { input: last_normed, weight, out: logits, accumulate: false });
        program.finish(logits, &settings)
    }
}

/// Adds one layer's ops. Every method takes the name of its op and, without `blk.N.` and `.weight`, of its
/// tensor.
pub(super) struct Layer<'d, 'a> {
    decoder: &'d mut Decoder<'a>,
    index: usize,
}

impl Layer<'_, '_> {
    fn op(&mut self, name: &str, kind: OpKind) {
        self.decoder.program.op(format!("layer.{}.{name}", self.index), kind);
    }

    fn tensor(&self, name: &str, what: &str) -> String {
        format!("blk.{}.{name}.{what}", self.index)
    }

    /// Norms the residual stream for what follows.
    pub(super) fn norm(&mut self, op: &str, tensor: &str) {
        let Settings { width, epsilon, .. } = self.decoder.settings;
        let Buffers { hidden, normed, .. } = self.decoder.buffers;
        let weight = self.decoder.program.vector(&self.tensor(tensor, "weight"), width);
        self.op(op, OpKind::RmsNorm { input: hidden, weight, out: normed, epsilon });
    }

    /// A product of the normed residual stream.
    pub(super) fn project(&mut self, op: &str, tensor: &str, out: BufferId) {
        let rows = self.decoder.program.width(out);
        self.project_rows(op, tensor, 0..rows, rows, out);
    }

    /// A product with some rows of a matrix of `of` rows.
    pub(super) fn project_rows(
        &mut self,
        op: &str,
        tensor: &str,
        rows: Range<usize>,
        of: usize,
        out: BufferId,
    ) {
        let (input, width) = (self.decoder.buffers.normed, self.decoder.settings.width);
        let weight = self.decoder.program.matrix_rows(&self.tensor(tensor, "weight"), rows, of, width);
        self.op(op, OpKind::MatMul { input, weight, out, accumulate: false });
    }

    /// Adds a bias to a buffer.
    pub(super) fn bias(&mut self, op: &str, tensor: &str, buffer: BufferId) {
        let width = self.decoder.program.width(buffer);
        let bias = self.decoder.program.vector(&self.tensor(tensor, "bias"), width);
        self.op(op, OpKind::AddBias { buffer, bias });
    }

    /// Norms each head of queries or keys, in place.
    pub(super) fn head_norm(&mut self, op: &str, tensor: &str, buffer: BufferId) {
        let Settings { head_size, epsilon, .. } = self.decoder.settings;
        let weight = self.decoder.program.vector(&self.tensor(tensor, "weight"), head_size);
        self.op(op, OpKind::RmsNorm { input: buffer, weight, out: buffer, epsilon });
    }

    /// Turns queries and keys, remembers keys and values, and attends.
    pub(super) fn attention(&mut self, attention: Attention) {
        let Settings { heads, kv_heads, head_size, .. } = self.decoder.settings;
        let Buffers { query, key, value, attended, .. } = self.decoder.buffers;
        let Attention { style, rotation, scale, window } = attention;
        let layer = self.index;
        for (op, buffer, num_heads) in [("query_rope", query, heads), ("key_rope", key, kv_heads)] {
            self.op(op, OpKind::Rope { buffer, num_heads, head_size, rotation, style });
        }
        self.op("store_kv", OpKind::StoreKv { key, value, layer });
        let num_heads = heads;
        self.op("attention", OpKind::Attention { query, out: attended, layer, num_heads, scale, window });
    }

    /// `silu(gate) · up`, into `gate`.
    pub(super) fn silu_mul(&mut self) {
        let Buffers { gate, up, .. } = self.decoder.buffers;
        self.op("silu_mul", OpKind::GateMul { activation: Activation::Silu, gate, up, out: gate });
    }

    /// `gelu(gate) · up`, into `gate`.
    pub(super) fn gelu_mul(&mut self) {
        let Buffers { gate, up, .. } = self.decoder.buffers;
        self.op("gelu_mul", OpKind::GateMul { activation: Activation::Gelu, gate, up, out: gate });
    }

    /// A product that is normed before it is added to the residual stream. `name` begins the names of the norm
    /// and of the addition, and is that of the norm's tensor.
    pub(super) fn normed_residual(&mut self, op: &str, tensor: &str, input: BufferId, name: &str) {
        let Settings { width, epsilon, .. } = self.decoder.settings;
        let hidden = self.decoder.buffers.hidden;
        let out = self.decoder.projected();
        let columns = self.decoder.program.width(input);
        let weight = self.decoder.program.matrix(&self.tensor(tensor, "weight"), width, columns);
        self.op(op, OpKind::MatMul { input, weight, out, accumulate: false });
        let weight = self.decoder.program.vector(&self.tensor(name, "weight"), width);
        self.op(name, OpKind::RmsNorm { input: out, weight, out, epsilon });
        self.op(&format!("{name}_residual"), OpKind::Add { input: out, out: hidden });
    }

    /// A product that is added to the residual stream.
    pub(super) fn residual(&mut self, op: &str, tensor: &str, input: BufferId) {
        let (hidden, columns) = (self.decoder.buffers.hidden, self.decoder.program.width(input));
        let width = self.decoder.settings.width;
        let weight = self.decoder.program.matrix(&self.tensor(tensor, "weight"), width, columns);
        self.op(op, OpKind::MatMul { input, weight, out: hidden, accumulate: true });
    }
}
