//! Building a program over the tensors of a source.
//!
//! An architecture declares buffers, weights and ops in the order of its paper; the builder finds each
//! weight's tensor and checks its shape and format. Problems are collected and reported at the end, so that
//! a message can name all missing and all unexpected tensors at once.

use std::collections::HashSet;
use std::ops::Range;

use super::ModelProblem;
use super::settings::Settings;
use super::source::ModelSource;
use crate::program::{Buffer, BufferId, Op, OpKind, Program, Rows, Weight, WeightId};
use crate::tensor_type::TensorType;

/// A program in the making.
pub(super) struct ProgramBuilder<'a> {
    source: &'a dyn ModelSource,
    architecture: &'static str,
    buffers: Vec<Buffer>,
    weights: Vec<Weight>,
    /// Rows of each weight's tensor that it is made of.
    rows: Vec<Range<usize>>,
    ops: Vec<Op>,
    missing: Vec<String>,
    /// The first tensor of a wrong shape or format.
    problem: Option<ModelProblem>,
}

impl<'a> ProgramBuilder<'a> {
    pub(super) fn new(source: &'a dyn ModelSource, architecture: &'static str) -> ProgramBuilder<'a> {
        ProgramBuilder {
            source,
            architecture,
            buffers: Vec::new(),
            weights: Vec::new(),
            rows: Vec::new(),
            ops: Vec::new(),
            missing: Vec::new(),
            problem: None,
        }
    }

    pub(super) fn buffer(&mut self, name: &'static str, rows: Rows, width: usize) -> BufferId {
        self.buffers.push(Buffer { name, rows, width });
        BufferId(self.buffers.len() - 1)
    }

    /// A matrix of `rows` output features and `columns` input features, in any supported format.
    pub(super) fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> WeightId {
        self.weight(name, &[columns as u64, rows as u64], &TensorType::ALL)
    }

    /// Neighbouring rows of a matrix that has `of` rows, as a matrix of their own.
    pub(super) fn matrix_rows(
        &mut self,
        name: &str,
        rows: Range<usize>,
        of: usize,
        columns: usize,
    ) -> WeightId {
        let id = self.matrix(name, of, columns);
        self.weights[id.0].rows = rows.len();
        self.rows[id.0] = rows;
        id
    }

    /// Width of a buffer.
    pub(super) fn width(&self, buffer: BufferId) -> usize {
        self.buffers[buffer.0].width
    }

    /// Whether the source has a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.source.tensor(name).is_some()
    }

    /// A vector of factors or biases, as a matrix of one row. Files store these in full precision, whatever the
    /// matrices are.
    pub(super) fn vector(&mut self, name: &str, columns: usize) -> WeightId {
        self.weight(name, &[columns as u64], &[TensorType::F32])
    }

    pub(super) fn op(&mut self, name: impl Into<String>, kind: OpKind) {
        self.ops.push(Op { name: name.into(), kind });
    }

    /// Declares a weight. If something is wrong with its tensor the id is still good for building on, and
    /// [`ProgramBuilder::finish`] fails.
    fn weight(&mut self, name: &str, wanted: &[u64], formats: &[TensorType]) -> WeightId {
        let mut declared = Weight {
            name: name.to_owned(),
            format: TensorType::F32,
            rows: wanted.get(1).map_or(1, |rows| *rows as usize),
            columns: wanted[0] as usize,
        };
        match self.source.tensor(name) {
            None => self.missing.push(name.to_owned()),
            Some(tensor) => {
                let format = tensor.format.supported().filter(|format| formats.contains(format));
                let problem = if tensor.dimensions != wanted {
                    Some(ModelProblem::TensorShape {
                        tensor: name.to_owned(),
                        found: tensor.dimensions.to_vec(),
                        wanted: wanted.to_vec(),
                    })
                } else if format.is_none() {
                    Some(ModelProblem::TensorFormat {
                        tensor: name.to_owned(),
                        found: tensor.format.name,
                        supported: formats.iter().map(|format| format.name()).collect::<Vec<_>>().join(", "),
                    })
                } else {
                    None
                };
                self.problem = self.problem.take().or(problem);
                declared.format = format.unwrap_or(declared.format);
            }
        }
        self.rows.push(0..declared.rows);
        self.weights.push(declared);
        WeightId(self.weights.len() - 1)
    }

    /// The program and, for each weight, which rows of its tensor it is made of.
    pub(super) fn finish(
        self,
        logits: BufferId,
        settings: &Settings,
    ) -> Result<(Program, Vec<Range<usize>>), ModelProblem> {
        let used: HashSet<&str> = self.weights.iter().map(|weight| weight.name.as_str()).collect();
        let extra: Vec<String> = self
            .source
            .tensors()
            .into_iter()
            .map(|tensor| tensor.name)
            .filter(|name| !used.contains(name))
            .map(str::to_owned)
            .collect();
        if !self.missing.is_empty() || !extra.is_empty() {
            return Err(ModelProblem::Tensors {
                architecture: self.architecture,
                missing: self.missing,
                extra,
            });
        }
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let program = Program {
            buffers: self.buffers,
            weights: self.weights,
            ops: self.ops,
            logits,
            num_layers: settings.layers,
            num_kv_heads: settings.kv_heads,
            head_size: settings.head_size,
            value_head_size: settings.value_head_size,
        };
        program.check();
        Ok((program, self.rows))
    }
}
