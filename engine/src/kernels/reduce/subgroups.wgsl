// VALUES numbers of each thread become VALUES numbers that all THREADS of a workgroup know: in each subgroup by the
// hardware, then over the subgroups, however many and large they are, in their order through workgroup memory. Between
// two calls the kernel has a barrier.

struct Thread {
    index: u32,
    subgroup: u32,
    num_subgroups: u32,
}

// Room for as many subgroups as there can be.
var<workgroup> partial: array<f32, VALUES * THREADS>;

fn workgroup_max(thread: Thread, own: array<f32, VALUES>) -> array<f32, VALUES> {
    var all: array<f32, VALUES>;
    for (var v = 0u; v < VALUES; v++) {
        all[v] = subgroupMax(own[v]);
    }
    share(thread, all);
    for (var v = 0u; v < VALUES; v++) {
        all[v] = partial[v * THREADS];
        for (var s = 1u; s < thread.num_subgroups; s++) {
            all[v] = max(all[v], partial[v * THREADS + s]);
        }
    }
    return all;
}

fn workgroup_sum(thread: Thread, own: array<f32, VALUES>) -> array<f32, VALUES> {
    var all: array<f32, VALUES>;
    for (var v = 0u; v < VALUES; v++) {
        all[v] = subgroupAdd(own[v]);
    }
    share(thread, all);
    for (var v = 0u; v < VALUES; v++) {
        all[v] = partial[v * THREADS];
        for (var s = 1u; s < thread.num_subgroups; s++) {
            all[v] += partial[v * THREADS + s];
        }
    }
    return all;
}

// All threads of a subgroup have the same.
fn share(thread: Thread, own: array<f32, VALUES>) {
    for (var v = 0u; v < VALUES; v++) {
        partial[v * THREADS + thread.subgroup] = own[v];
    }
    workgroupBarrier();
}
