// The end of a row: its values divided by what they were weighed with.

fn write_out(thread: Thread, row: u32, first_head: u32, all: Gathered) {
    let start = row * params.out_stride + first_head * VALUE_LENGTH;
    for (var h = 0u; h < HEADS; h++) {
        // A row that sees nothing is zero. The test is false for a NaN, which stays one.
        let divisor = select(all.total[h], 1.0, all.total[h] == 0.0);
        for (var o = 0u; o < OWNED; o++) {
            let place = thread.index + o * THREADS;
            if (place < VALUE_LENGTH) {
                out[start + h * VALUE_LENGTH + place] = all.sum[o][h] / divisor;
            }
        }
    }
}
