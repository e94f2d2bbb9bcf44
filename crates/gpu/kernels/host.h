// GPU threads as fibres, for tests without a GPU: the same kernel sources run on the CPU, each thread of a block on a
// stack of its own, switched by a few instructions of assembly. Barriers and collectives count who arrives: a barrier
// or a wave operation that not all threads reach is an error with the place, not a hang. Waves run in an order drawn
// from a seed, and memory of a block is full of NaN before it is written.
//
// Included by gpu.h, so each host module carries its own copy; `host_launch` is its entry point.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__x86_64__)
#error "the host driver switches fibres with x86-64 assembly"
#endif

namespace host {

constexpr u32 MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 64 * 1024;
constexpr size_t SHARED_BYTES = 256 * 1024;
constexpr u32 MAX_SHARED = 64;

enum class State : u8 { Ready, AtBarrier, AtWave, Done };

struct Fibre {
    void* sp;
    u32 tid;
    State state;
    // Collectives of the wave so far; its parity says which slots are in use.
    u32 n_collectives;
    // Source line of the collective it waits at.
    u32 site;
};

struct Block {
    u32 n_threads;
    u32 bid[3];
    Fibre fibres[MAX_THREADS];
    u64 slots[2][MAX_THREADS];
    u8* stacks;
    u8* shared;
    size_t shared_used;
    void* arrays[MAX_SHARED];
    u8* dynamic;
    void* scheduler_sp;
    Fibre* running;
    void (*kernel)(const void*);
    const void* params;
    u64 random;
    char* error;
    size_t error_len;
    bool failed;
};

static thread_local Block* block;

// Saves the registers that calls preserve on this stack and takes up the other.
__attribute__((naked, noinline)) static void switch_stack(void** save, void* load) {
    asm("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

// Where a fibre's thread-local pointer must be read anew after each switch: never inlined.
__attribute__((noinline)) static Block& here() { return *block; }

static void pause(State state, u32 site) {
    Block& b = here();
    b.running->state = state;
    b.running->site = site;
    switch_stack(&b.running->sp, b.scheduler_sp);
}

static void fibre_main() {
    {
        Block& b = here();
        b.kernel(b.params);
    }
    pause(State::Done, 0);
    __builtin_trap();
}

static inline u32 next_random(Block& b) {
    // splitmix64
    u64 z = (b.random += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (u32)((z ^ (z >> 31)) >> 32);
}

__attribute__((noinline)) static void* shared(u32 id, size_t bytes) {
    Block& b = here();
    if (!b.arrays[id]) {
        b.arrays[id] = b.shared + b.shared_used;
        b.shared_used += (bytes + 15) & ~(size_t)15;
        if (b.shared_used > SHARED_BYTES || id >= MAX_SHARED) {
            fprintf(stderr, "a block takes more memory than there is\n");
            abort();
        }
    }
    return b.arrays[id];
}

__attribute__((noinline)) static void* dynamic_shared() { return here().dynamic; }

__attribute__((noinline)) static u64 exchange(u64 value, u32 from, u32 site) {
    Fibre& f = *here().running;
    u32 parity = f.n_collectives++ & 1;
    u32 first = f.tid & ~(WARP_SIZE - 1);
    here().slots[parity][f.tid] = value;
    pause(State::AtWave, site);
    return here().slots[parity][first + from % WARP_SIZE];
}

// What all lanes of the wave say, with an error if they differ.
__attribute__((noinline)) static u32 uniform(u32 v) {
    u32 first = (u32)exchange(v, 0, 1);
    Block& b = here();
    if (first != v && !b.failed) {
        b.failed = true;
        snprintf(b.error, b.error_len, "block %u,%u,%u: thread %u has %u where lane 0 has %u in uniform()", b.bid[0], b.bid[1],
                 b.bid[2], b.running->tid, v, first);
    }
    return first;
}

static const char* state_name(State s) {
    return s == State::AtBarrier ? "at the barrier" : s == State::AtWave ? "at a wave operation" : s == State::Done ? "done" : "running";
}

static void fail(Block& b, const Fibre& one, const Fibre& other) {
    b.failed = true;
    snprintf(b.error, b.error_len,
             "block %u,%u,%u: divergent collective: thread %u is %s (line %u), thread %u is %s (line %u)", b.bid[0], b.bid[1],
             b.bid[2], one.tid, state_name(one.state), one.site, other.tid, state_name(other.state), other.site);
}

static void resume(Block& b, Fibre& f) {
    b.running = &f;
    switch_stack(&b.scheduler_sp, f.sp);
}

// Runs the fibres of one wave until all have stopped; releases its collective. True if any ran.
static bool run_wave(Block& b, u32 first) {
    bool ran = false;
    for (;;) {
        u32 start = next_random(b) % WARP_SIZE;
        bool any = false;
        for (u32 i = 0; i < WARP_SIZE; i++) {
            Fibre& f = b.fibres[first + (start + i) % WARP_SIZE];
            if (f.state != State::Ready) continue;
            any = true;
            resume(b, f);
            if (b.failed) return true;
        }
        ran |= any;
        if (!any) return ran;
        const Fibre& lead = b.fibres[first];
        for (u32 i = 1; i < WARP_SIZE; i++) {
            const Fibre& f = b.fibres[first + i];
            if (f.state != lead.state || f.site != lead.site) {
                fail(b, lead, f);
                return true;
            }
        }
        if (lead.state != State::AtWave) return true;
        for (u32 i = 0; i < WARP_SIZE; i++) b.fibres[first + i].state = State::Ready;
        // Another wave may go first.
        if (next_random(b) % 4 == 0) return true;
    }
}

static void run_block(Block& b, size_t dynamic_bytes) {
    memset(b.shared, 0xff, b.shared_used + dynamic_bytes + 16);
    memset(b.arrays, 0, sizeof b.arrays);
    b.dynamic = b.shared;
    b.shared_used = (dynamic_bytes + 15) & ~(size_t)15;
    for (u32 t = 0; t < b.n_threads; t++) {
        u64* top = (u64*)(b.stacks + (t + 1) * STACK_BYTES);
        *--top = 0;
        *--top = (u64)&fibre_main;
        top -= 6;
        b.fibres[t] = Fibre{top, t, State::Ready, 0, 0};
    }
    u32 n_waves = b.n_threads / WARP_SIZE;
    while (!b.failed) {
        u32 start = next_random(b), step = next_random(b) % 2 ? 1 : n_waves - 1;
        bool ran = false;
        for (u32 i = 0; i < n_waves && !b.failed; i++) ran |= run_wave(b, (start % n_waves + i * step) % n_waves * WARP_SIZE);
        if (b.failed || ran) continue;
        // Every wave stands: at the barrier, or at the end.
        const Fibre& lead = b.fibres[0];
        for (u32 t = 1; t < b.n_threads; t++)
            if (b.fibres[t].state != lead.state || b.fibres[t].site != lead.site) {
                fail(b, lead, b.fibres[t]);
                return;
            }
        if (lead.state == State::Done) return;
        for (u32 t = 0; t < b.n_threads; t++) b.fibres[t].state = State::Ready;
    }
}

} // namespace host

DEV u32 tid() { return host::here().running->tid; }
DEV u32 bid_x() { return host::here().bid[0]; }
DEV u32 bid_y() { return host::here().bid[1]; }
DEV u32 bid_z() { return host::here().bid[2]; }
#define barrier() host::pause(host::State::AtBarrier, __LINE__)

// Runs a kernel of this module. 0, or 1 with a text in `error`.
extern "C" __attribute__((visibility("default"))) int host_launch(void (*kernel)(const void*), const u32* grid, u32 n_threads,
                                                                  u32 dynamic_bytes, const void* params, u64 seed, char* error,
                                                                  size_t error_len) {
    using namespace host;
    if (n_threads == 0 || n_threads > MAX_THREADS || n_threads % WARP_SIZE || dynamic_bytes > SHARED_BYTES / 2) {
        snprintf(error, error_len, "a block of %u threads and %u bytes cannot be launched", n_threads, dynamic_bytes);
        return 1;
    }
    static thread_local Block* memory = nullptr;
    if (!memory) {
        memory = (Block*)calloc(1, sizeof(Block));
        memory->stacks = (u8*)malloc(MAX_THREADS * STACK_BYTES);
        memory->shared = (u8*)aligned_alloc(64, SHARED_BYTES);
        memory->shared_used = SHARED_BYTES / 2;
    }
    block = memory;
    Block& b = *block;
    b.n_threads = n_threads;
    b.kernel = kernel;
    b.params = params;
    b.random = seed;
    b.error = error;
    b.error_len = error_len;
    b.failed = false;
    u64 n_blocks = (u64)grid[0] * grid[1] * grid[2];
    u64 start = n_blocks ? next_random(b) % n_blocks : 0;
    for (u64 i = 0; i < n_blocks && !b.failed; i++) {
        u64 at = (start + i) % n_blocks;
        b.bid[0] = at % grid[0];
        b.bid[1] = at / grid[0] % grid[1];
        b.bid[2] = at / grid[0] / grid[1];
        run_block(b, dynamic_bytes);
    }
    return b.failed;
}
