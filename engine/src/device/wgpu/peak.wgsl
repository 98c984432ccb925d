// What an adapter can do at most. PART is the work of a thread.

@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

fn consume(index: u32, value: vec4<f32>) {
    // Never true, but nobody can know.
    if (value.x + value.y + value.z + value.w == -1.0) {
        out[index & 3u] = value.x;
    }
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups);
    work(index, local);
}
