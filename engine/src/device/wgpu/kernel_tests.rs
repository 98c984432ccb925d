//! That every kernel's source is WGSL that every adapter takes: mappings that no test machine has are parsed here, and
//! all are translated for Metal and DirectX 12.

use naga::back::{hlsl, msl};

use super::shader::{Kernel, Mapping, Place};
use crate::kernels::attention::reference::AttentionShape;
use crate::kernels::{
    add, add_bias, attention, embed, gate_mul, gather_rows, matmul, rms_norm, rope, store_kv, top_k,
};
use crate::program::Activation;
use crate::tensor_type::TensorType;

const SHUFFLE: Mapping = Mapping::Software { shuffle: true };

/// Every kernel in every form that exists.
fn every_kernel() -> Vec<Kernel> {
    let software = [true, false].map(|shuffle| Mapping::Software { shuffle });
    let hardware = [true, false].map(|subgroups| Mapping::Hardware { subgroups });
    let mut variants = vec![
        rope::variants(3, 8),
        store_kv::variants([33, 33], false),
        store_kv::variants([32, 33], false),
        store_kv::variants([33, 64], false),
        store_kv::variants([32, 16], true),
        store_kv::rope_variants(12, [32, 32], false),
        store_kv::rope_variants(12, [32, 33], false),
        store_kv::rope_variants(12, [32, 16], true),
        store_kv::rope_texel_variants(8, [32, 16]),
        rms_norm::variants(SHUFFLE, 32, 3, [Place::SharedBuffer, Place::Texels]),
        rms_norm::variants(SHUFFLE, 32, 3, [Place::Texels; 2]),
        rms_norm::variants(SHUFFLE, 32, 3, [Place::Texels, Place::SharedBuffer]),
        embed::variants(TensorType::Q4_1, 64, SHUFFLE, Place::Texels),
        add::variants(32, Place::Texels),
        gather_rows::variants(32, [Place::Texels; 2]),
        gather_rows::variants(32, [Place::Texels, Place::Buffer]),
        gate_mul::variants(Activation::Silu, 33),
        gate_mul::variants(Activation::Gelu, 33),
        add::variants(33, Place::SharedBuffer),
        gather_rows::variants(33, [Place::Buffer; 2]),
        add_bias::variants(33),
    ];
    for kept in [1, top_k::MOST] {
        // The first stage reads logits, the second pairs.
        variants.extend(top_k::Stage::series(2 * top_k::CHUNK, kept).into_iter().map(top_k::Stage::variants));
    }
    for mapping in software.into_iter().chain(hardware) {
        variants
            .extend([32, 33].map(|width| rms_norm::variants(mapping, width, 3, [Place::SharedBuffer; 2])));
        for format in TensorType::ALL {
            variants.push(embed::variants(format, 64, mapping, Place::Buffer));
            let shape = matmul::Shape {
                format,
                features: 65,
                outputs: 1,
                gated: None,
                accumulate: true,
                normed: false,
                aligned: 1,
                input: if mapping == SHUFFLE { Place::Texels } else { Place::Buffer },
                output: Place::Buffer,
            };
            variants.push(matmul::variants(shape, mapping));
            if format == TensorType::Q4_1 {
                let (silu, gelu) = (Some(Activation::Silu), Some(Activation::Gelu));
                for (outputs, gated, aligned) in
                    [(2, None, 4), (3, None, 1), (3, None, 4), (1, None, 4), (1, silu, 1), (1, gelu, 4)]
                {
                    let shape = matmul::Shape { outputs, gated, accumulate: false, aligned, ..shape };
                    variants.push(matmul::variants(shape, mapping));
                    if mapping.is_software() {
                        variants.push(matmul::variants(matmul::Shape { normed: true, ..shape }, mapping));
                    }
                    variants.push(matmul::variants(matmul::Shape { input: Place::Buffer, ..shape }, mapping));
                    if mapping == SHUFFLE && aligned == 4 {
                        for accumulate in [false, outputs == 1 && gated.is_none()] {
                            let shape = matmul::Shape { output: Place::Texels, accumulate, ..shape };
                            variants.push(matmul::variants(shape, mapping));
                        }
                    }
                }
            }
        }
        for (num_heads, num_kv_heads, head_size, value_head_size) in [
            (9, 3, 64, 64),
            (1, 1, 1, 1),
            (8, 1, 257, 257),
            (5, 1, 6, 6),
            (4, 2, 64, 32),
            (4, 2, 7, 4),
            (4, 2, 4, 7),
        ] {
            let shape = AttentionShape {
                num_heads,
                num_kv_heads,
                head_size,
                value_head_size,
                block_size: 16,
                scale: 1.0,
                window: None,
                cache_group: 0,
            };
            variants.push(attention::variants(shape, mapping, [Place::SharedBuffer; 2]));
            if attention::cache_in_texels(mapping, head_size, value_head_size) {
                for [query, out] in [[true, false], [false, true], [true, true]] {
                    let place = |in_texels| if in_texels { Place::Texels } else { Place::SharedBuffer };
                    variants.push(attention::variants(shape, mapping, [place(query), place(out)]));
                }
            }
            if !mapping.is_software() {
                variants.extend(attention::split_variants(shape, mapping));
            }
        }
    }
    variants.into_iter().flatten().map(|variant| variant.kernel).collect()
}

#[test]
fn every_kernel_in_every_form_is_valid_wgsl_and_can_be_translated() {
    for kernel in every_kernel() {
        let module = naga::front::wgsl::parse_str(&kernel.source)
            .unwrap_or_else(|error| panic!("{}: {}", kernel.name, error.emit_to_string(&kernel.source)));
        use naga::valid::Capabilities;
        let capabilities = Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        let flags = naga::valid::ValidationFlags::all();
        let mut validator = naga::valid::Validator::new(flags, capabilities);
        validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
        validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
        let info = validator
            .validate(&module)
            .unwrap_or_else(|error| panic!("{}: {}", kernel.name, error.emit_to_string(&kernel.source)));
        let hlsl = translate(&module, &info).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        // As members of a struct they would be left without a meaning, and without an error.
        let counts_subgroups = kernel.source.contains("@builtin(num_subgroups)");
        assert_eq!(counts_subgroups, hlsl.contains("WaveGetLaneCount()"), "{}: subgroups", kernel.name);
        let bound = module.global_variables.iter().filter(|(_, variable)| variable.binding.is_some());
        assert_eq!(bound.count(), 3 + kernel.storage.len(), "{}: bindings", kernel.name);
    }
}

/// Translates for Metal and DirectX 12, for the oldest versions there that have subgroups. Returns the latter.
fn translate(module: &naga::Module, info: &naga::valid::ModuleInfo) -> Result<String, String> {
    let options = msl::Options { lang_version: (2, 1), ..Default::default() };
    msl::write_string(module, info, &options, &Default::default()).map_err(|error| error.to_string())?;
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_0,
        // Where the number of workgroups comes from.
        special_constants_binding: Some(hlsl::BindTarget::default()),
        ..Default::default()
    };
    let (mut source, pipeline) = (String::new(), hlsl::PipelineOptions::default());
    let mut writer = hlsl::Writer::new(&mut source, &options, &pipeline);
    writer.write(module, info, None).map_err(|error| error.to_string())?;
    Ok(source)
}
