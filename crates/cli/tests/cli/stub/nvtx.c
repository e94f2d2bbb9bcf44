// A profiler of NVTX 3 ranges, which asks for what NVIDIA's tools ask for and writes each range, with a space for each one
// around it, to the file that RANGES_LOG names. With REFUSES it takes no program.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { CALLBACKS = 1, VERSION_INFO = 3, CORE = 1, CORE2 = 5, RANGE_PUSH_A = 9, RANGE_POP = 11 };

typedef void (*function)(void);
typedef struct {
    size_t struct_size;
    int (*get_table)(unsigned module, function*** table, unsigned* n_entries);
} callbacks;
typedef struct {
    size_t struct_size;
    uint32_t version, reserved;
    void (*set_injection_version)(uint32_t);
} version_info;

static FILE* out;
static _Thread_local int depth;

static int push(const char* name) {
    fprintf(out, "%*s%s\n", depth, "", name);
    return depth++;
}

static int pop(void) {
    if (depth == 0) fprintf(out, "ends too often\n");
    return --depth;
}

int InitializeInjectionNvtx2(const void* (*get_export)(uint32_t)) {
#ifdef REFUSES
    return 0;
#endif
    out = fopen(getenv("RANGES_LOG"), "w");
    if (!out) return 0;
    setlinebuf(out);
    const version_info* version = get_export(VERSION_INFO);
    if (!version || version->struct_size < sizeof *version || version->version != 3) return 0;
    version->set_injection_version(3);
    const callbacks* tables = get_export(CALLBACKS);
    if (!tables || tables->struct_size < sizeof *tables || get_export(99)) return 0;
    function** table = 0;
    unsigned n = 0;
    // As nvtxTypes.h has them.
    const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
    for (unsigned module = 1; module <= 6; module++) {
        if (!tables->get_table(module, &table, &n) || !table || n != sizes[module]) return 0;
        if (table[0] || table[n]) return 0;
        for (unsigned i = 1; i < n; i++)
            if (*table[i]) return 0;
    }
    if (tables->get_table(0, &table, &n) || tables->get_table(7, &table, &n)) return 0;
    if (!tables->get_table(CORE2, &table, &n) || n <= 15) return 0;
    if (!tables->get_table(CORE, &table, &n) || n <= RANGE_POP) return 0;
    *table[RANGE_PUSH_A] = (function)push;
    *table[RANGE_POP] = (function)pop;
    return 1;
}
