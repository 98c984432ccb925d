// VALUES numbers of each thread become VALUES numbers that all THREADS of a workgroup know: by a tree in workgroup
// memory. Between two calls the kernel has a barrier.

struct Thread {
    index: u32,
}

var<workgroup> partial: array<f32, VALUES * THREADS>;

fn workgroup_max(thread: Thread, own: array<f32, VALUES>) -> array<f32, VALUES> {
    share(thread, own);
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (thread.index < half) {
            for (var v = 0u; v < VALUES; v++) {
                let place = v * THREADS + thread.index;
                partial[place] = max(partial[place], partial[place + half]);
            }
        }
        workgroupBarrier();
    }
    return reduced();
}

fn workgroup_sum(thread: Thread, own: array<f32, VALUES>) -> array<f32, VALUES> {
    share(thread, own);
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (thread.index < half) {
            for (var v = 0u; v < VALUES; v++) {
                let place = v * THREADS + thread.index;
                partial[place] += partial[place + half];
            }
        }
        workgroupBarrier();
    }
    return reduced();
}

fn share(thread: Thread, own: array<f32, VALUES>) {
    for (var v = 0u; v < VALUES; v++) {
        partial[v * THREADS + thread.index] = own[v];
    }
    workgroupBarrier();
}

fn reduced() -> array<f32, VALUES> {
    var all: array<f32, VALUES>;
    for (var v = 0u; v < VALUES; v++) {
        all[v] = partial[v * THREADS];
    }
    return all;
}
