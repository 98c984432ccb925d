//! How a kernel is described: its WGSL, what it binds, and how its work is cut into workgroups.
//!
//! Every kernel has one bind group: its own parameters at binding 0, the step's header and data at 1 and 2
//! (`prelude.wgsl`), and its storage buffers from 3 on. Constants are written into the source, so that a
//! pipeline is known by its text.

use std::sync::Arc;

use crate::program::Rows;

/// Common head of every kernel's source.
const PRELUDE: &str = include_str!("prelude.wgsl");

/// How a kernel uses a storage buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// Only reads it.
    Read,
    /// Writes it, and may read it. A buffer may be bound twice in a kernel if both uses are this one.
    Write,
    /// Only reads it, a texture.
    Texels(Texel),
    /// Only writes it, a texture of floats.
    WriteTexels,
}

/// What a texture is an array of. Software rasterisers load from textures with vector instructions, from buffers
/// value by value; so there, what is large is a texture: an array in rows of [`TEXELS_PER_ROW`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Texel {
    /// `vec4<u32>`.
    Words,
    /// `vec4<f32>`.
    Floats,
}

/// Bytes of a texel.
pub(crate) const TEXEL_BYTES: usize = 16;

/// Texels in a row of a texture, as `texel` in `prelude.wgsl` has it.
pub(crate) const TEXELS_PER_ROW: u32 = 4096;

/// A kernel ready to be compiled.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// For labels and messages.
    pub(crate) name: &'static str,
    /// Complete WGSL with an entry point `main`; shared by the kernels of many dispatches.
    pub(crate) source: Arc<str>,
    /// Storage buffers from binding 3 on.
    pub(crate) storage: Vec<Access>,
}

impl Kernel {
    /// Puts the prelude and the constants before the parts of a kernel.
    pub(crate) fn new(
        name: &'static str,
        storage: &[Access],
        constants: &[(&str, usize)],
        parts: &[&str],
    ) -> Kernel {
        let mut source = PRELUDE.to_owned();
        for (constant, value) in constants {
            source.push_str(&format!("const {constant}: u32 = {value}u;\n"));
        }
        for part in parts {
            source.push_str(part);
        }
        Kernel { name, source: source.into(), storage: storage.to_vec() }
    }
}

/// Writes out the parts of a source between lines of `// each NAME` and `// end NAME`: once for each number below
/// that of its name, with the name in capitals replaced. Drivers unroll loops as they like; what must have constant
/// indices to be fast is not left to them.
pub(crate) fn unrolled(source: &str, loops: &[(&str, usize)]) -> String {
    let mut source = source.to_owned();
    for (name, count) in loops {
        let (begin, end, capitals) =
            (format!("// each {name}\n"), format!("// end {name}\n"), name.to_uppercase());
        let (mut written, mut rest) = (String::with_capacity(source.len() * 2), source.as_str());
        while let Some((before, (body, after))) =
            rest.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?)))
        {
            written.push_str(before);
            written.extend((0..*count).map(|i| body.replace(&capitals, &format!("{i}u"))));
            rest = after;
        }
        written.push_str(rest);
        source = written;
    }
    source
}

/// How the work is spread over threads. A software rasteriser runs a workgroup on one core with the threads
/// as vector lanes, and pays for each lane of a load; a GPU wants many threads and adjacent loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// Many outputs for each thread, small workgroups.
    Software {
        /// Subgroups are exactly 8 threads, so lanes can share what they load.
        shuffle: bool,
    },
    /// Many threads for each output.
    Hardware {
        /// Subgroups, of any size, can reduce what their threads have.
        subgroups: bool,
    },
}

impl Mapping {
    /// Whether it is for a software rasteriser.
    pub(crate) fn is_software(self) -> bool {
        matches!(self, Mapping::Software { .. })
    }

    /// Whether kernels may use subgroup operations.
    pub(crate) fn has_subgroups(self) -> bool {
        match self {
            Mapping::Software { shuffle: subgroups } | Mapping::Hardware { subgroups } => subgroups,
        }
    }
}

/// How many workgroups a dispatch needs, depending on the rows of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// One thread an element.
    Elements {
        /// Elements in a row.
        per_row: u64,
        /// Threads in a workgroup.
        workgroup: u64,
    },
    /// Whole workgroups.
    Groups {
        /// Workgroups for one group of rows.
        per_rows: u64,
        /// Rows in such a group.
        rows: u64,
    },
}

impl Work {
    /// Workgroups for this many rows.
    pub(crate) fn workgroups(self, rows: u64) -> u64 {
        match self {
            Work::Elements { per_row, workgroup } => (rows * per_row).div_ceil(workgroup),
            Work::Groups { per_rows, rows: group } => rows.div_ceil(group) * per_rows,
        }
    }
}

/// One way to run an op, used from `min_rows` rows on.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    /// Fewest rows it is meant for.
    pub(crate) min_rows: u64,
    /// The kernel.
    pub(crate) kernel: Kernel,
    /// Its workgroups.
    pub(crate) work: Work,
}

impl Variant {
    /// The only way to run an op.
    pub(crate) fn only(kernel: Kernel, work: Work) -> Vec<Variant> {
        vec![Variant { min_rows: 0, kernel, work }]
    }
}

/// Threads in a workgroup of the kernels that do one thing per element.
pub(crate) const ELEMENTS: usize = 64;

/// Values between the starts of two rows of an activation buffer: whole blocks of weights and whole
/// `vec4`s. What lies between the width and the stride is zero from the start and stays zero.
pub(crate) fn stride(width: usize) -> usize {
    width.next_multiple_of(32)
}

/// How many values of a run of this length are read at once.
pub(crate) fn chunk(length: usize) -> usize {
    if length.is_multiple_of(4) { 4 } else { 1 }
}

/// The WGSL type of so many.
pub(crate) fn chunk_type(length: usize) -> &'static str {
    if chunk(length) == 4 { "vec4<f32>" } else { "f32" }
}

/// How an activation is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// As a buffer that is only read.
    Buffer,
    /// As a buffer that may be bound as an output too.
    SharedBuffer,
    /// As a texture, a row of texels for each row.
    Texels,
}

impl Place {
    /// How it is bound to be read.
    pub(crate) fn read(self) -> Access {
        match self {
            Place::Buffer => Access::Read,
            Place::SharedBuffer => Access::Write,
            Place::Texels => Access::Texels(Texel::Floats),
        }
    }

    /// How it is bound to be written.
    pub(crate) fn written(self) -> Access {
        if self == Place::Texels { Access::WriteTexels } else { Access::Write }
    }
}

/// WGSL that declares an input in chunks of this type and reads one: `name_at`. In texels a chunk is a texel.
pub(crate) fn input_source(name: &str, binding: usize, place: Place, chunk: &str) -> String {
    let source = match place {
        Place::Texels => include_str!("input_texels.wgsl"),
        Place::Buffer | Place::SharedBuffer => include_str!("input_buffer.wgsl"),
    };
    let access = if place == Place::SharedBuffer { "read_write" } else { "read" };
    source
        .replace("INPUT_BINDING", &binding.to_string())
        .replace("INPUT_NAME", name)
        .replace("INPUT_ACCESS", access)
        .replace("INPUT_CHUNK", chunk)
}

/// WGSL that declares an output in chunks of this type and writes one: `put_name`. In texels a chunk is a texel.
pub(crate) fn output_source(name: &str, binding: usize, place: Place, chunk: &str) -> String {
    let source = match place {
        Place::Texels => include_str!("output_texels.wgsl"),
        Place::Buffer | Place::SharedBuffer => include_str!("output_buffer.wgsl"),
    };
    source
        .replace("OUTPUT_BINDING", &binding.to_string())
        .replace("OUTPUT_NAME", name)
        .replace("OUTPUT_CHUNK", chunk)
}

/// The WGSL type of a texel of floats, and of four values of a buffer.
pub(crate) const FOUR: &str = "vec4<f32>";

/// 1 for a buffer with one row per wanted row of logits.
pub(crate) fn logits_flag(rows: Rows) -> u32 {
    u32::from(rows == Rows::Logits)
}

/// Cuts a number of workgroups into two dimensions of at most `allowed`; `None` if it takes more.
pub(crate) fn fold(workgroups: u64, allowed: u32) -> Option<(u32, u32)> {
    let y = workgroups.div_ceil(u64::from(allowed)).max(1);
    let x = workgroups.div_ceil(y);
    (y <= u64::from(allowed)).then_some((x as u32, y as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrolled_parts_are_written_out_once_for_each_number() {
        let source = "a\n// each k\nuse(K);\n// end k\nb\n";
        assert_eq!(unrolled(source, &[("k", 2)]), "a\nuse(0u);\nuse(1u);\nb\n");
        assert_eq!(unrolled(source, &[("k", 0)]), "a\nb\n");
    }

    #[test]
    fn folding_covers_every_workgroup_and_wastes_less_than_one_row() {
        for allowed in [1u32, 2, 7, 65_535] {
            let allowed_wide = u64::from(allowed);
            for workgroups in [0, 1, allowed_wide - 1, allowed_wide, allowed_wide + 1, 3 * allowed_wide + 2] {
                let Some((x, y)) = fold(workgroups, allowed) else {
                    assert!(workgroups > allowed_wide * allowed_wide, "{workgroups} on {allowed}");
                    continue;
                };
                let total = u64::from(x) * u64::from(y);
                assert!(x <= allowed && y <= allowed, "{workgroups} on {allowed}: {x} × {y}");
                assert!(total >= workgroups && total < workgroups + u64::from(y.max(1)));
            }
        }
        assert_eq!(fold(u64::from(u32::MAX) * u64::from(u32::MAX), 65_535), None);
    }
}
