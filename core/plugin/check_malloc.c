/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the calls of a loaded plugin to malloc and its kin: the slots of its dynamic relocations that hold their addresses are turned to
 * counting forms.  Lives in the process of one check; what other libraries allocate for the plugin is not seen.
 */
#include "config.h"
#include "check_util.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define RELOC_SLOT R_X86_64_JUMP_SLOT
#define RELOC_DATA R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define RELOC_SLOT R_AARCH64_JUMP_SLOT
#define RELOC_DATA R_AARCH64_GLOB_DAT
#endif

/* The wrappers are called with malloc's own arguments: there is no other place for the count. */
static atomic_uint calls;

unsigned check_malloc_calls(void)
{
    return atomic_load(&calls);
}

#ifdef RELOC_SLOT
static void *count_malloc(size_t n)
{
    atomic_fetch_add(&calls, 1);
    return malloc(n);
}

static void *count_calloc(size_t n, size_t size)
{
    atomic_fetch_add(&calls, 1);
    return calloc(n, size);
}

static void *count_realloc(void *p, size_t n)
{
    atomic_fetch_add(&calls, 1);
    return realloc(p, n);
}

static void *count_aligned_alloc(size_t align, size_t n)
{
    atomic_fetch_add(&calls, 1);
    return aligned_alloc(align, n);
}

static int count_posix_memalign(void **p, size_t align, size_t n)
{
    atomic_fetch_add(&calls, 1);
    return posix_memalign(p, align, n);
}

static void *count_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    atomic_fetch_add(&calls, 1);
    return mmap(at, n, protection, flags, fd, offset);
}

/* C++: operator new and new[], which may be freed by delete of the C library's allocator. */
static const struct {
    const char *name;
    void (*fn)(void);
} counted[] = {
    {"malloc", (void (*)(void))count_malloc},
    {"calloc", (void (*)(void))count_calloc},
    {"realloc", (void (*)(void))count_realloc},
    {"aligned_alloc", (void (*)(void))count_aligned_alloc},
    {"memalign", (void (*)(void))count_aligned_alloc},
    {"posix_memalign", (void (*)(void))count_posix_memalign},
    {"mmap", (void (*)(void))count_mmap},
    {"mmap64", (void (*)(void))count_mmap},
#if !defined(__SANITIZE_ADDRESS__)
    {"_Znwm", (void (*)(void))count_malloc},
    {"_Znam", (void (*)(void))count_malloc},
#endif
};

static void turn_slot(uintptr_t slot, void (*fn)(void))
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = slot / page * page, end = slot + sizeof fn;
    /* The loader made it read-only; it may as well have been writable before, and stays so in this process. */
    if (mprotect((void *)first, end - first, PROT_READ | PROT_WRITE) == 0)
        memcpy((void *)slot, &fn, sizeof fn);
}

static void turn_table(const struct link_map *map, const ElfW(Rela) *rela, uint64_t bytes, const ElfW(Sym) *symbols, const char *names)
{
    for (uint64_t i = 0; rela != NULL && i < bytes / sizeof *rela; i++) {
        const uint32_t type = (uint32_t)ELF64_R_TYPE(rela[i].r_info);
        const char *name = names + symbols[ELF64_R_SYM(rela[i].r_info)].st_name;
        for (size_t k = 0; (type == RELOC_SLOT || type == RELOC_DATA) && k < sizeof counted / sizeof counted[0]; k++)
            if (strcmp(name, counted[k].name) == 0)
                turn_slot(map->l_addr + rela[i].r_offset, counted[k].fn);
    }
}

void check_malloc_watch(void *so)
{
    struct link_map *map = NULL;
    const ElfW(Rela) *plt = NULL, *rela = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    uint64_t plt_bytes = 0, rela_bytes = 0;
    if (dlinfo(so, RTLD_DI_LINKMAP, &map) != 0)
        return;
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++)
        switch (d->d_tag) {
        case DT_JMPREL:
            plt = (const void *)d->d_un.d_ptr;
            break;
        case DT_PLTRELSZ:
            plt_bytes = d->d_un.d_val;
            break;
        case DT_RELA:
            rela = (const void *)d->d_un.d_ptr;
            break;
        case DT_RELASZ:
            rela_bytes = d->d_un.d_val;
            break;
        case DT_SYMTAB:
            symbols = (const void *)d->d_un.d_ptr;
            break;
        case DT_STRTAB:
            names = (const void *)d->d_un.d_ptr;
            break;
        default:
            break;
        }
    if (symbols == NULL || names == NULL)
        return;
    turn_table(map, plt, plt_bytes, symbols, names);
    turn_table(map, rela, rela_bytes, symbols, names);
}
#else
void check_malloc_watch(void *so)
{
    (void)so;
}
#endif
