/* SPDX-License-Identifier: Apache-2.0
 *
 * elf.c - the magic block as it stands in the file, so that a plugin can be refused before any of its code runs.  Every offset
 * comes from the file and is checked against its size.
 */
#include "config.h"
#include "registry_internal.h"
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECTION      ".ifx_plugin"
#define MAX_SECTIONS 65536u

#if defined(__x86_64__)
#define HOST_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define HOST_MACHINE EM_AARCH64
#elif defined(__riscv)
#define HOST_MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define HOST_MACHINE EM_PPC64
#elif defined(__s390x__)
#define HOST_MACHINE EM_S390
#else
#define HOST_MACHINE EM_NONE
#endif

struct file {
    int fd;
    uint64_t bytes;
};

static int32_t read_at(const struct file *f, uint64_t offset, void *out, uint64_t n, const char *what)
{
    uint64_t end;
    char *p = out;
    if (!base_add_u64(offset, n, &end) || end > f->bytes)
        return base_error(IFX_EFORMAT, "truncated or damaged: %s would end past the file's %llu bytes", what,
                          (unsigned long long)f->bytes);
    while (n > 0) {
        ssize_t r = pread(f->fd, p, n, (off_t)offset);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return base_error(IFX_EIO, "cannot read: %s", strerror(errno));
        if (r == 0)
            return base_error(IFX_EFORMAT, "truncated while it was read");
        p += r;
        n -= (uint64_t)r;
        offset += (uint64_t)r;
    }
    return IFX_OK;
}

static int32_t read_header(const struct file *f, Elf64_Ehdr *h)
{
    unsigned char ident[EI_NIDENT] = {0};
    uint64_t n = f->bytes < sizeof ident ? f->bytes : sizeof ident;
    if (n == 0)
        return base_error(IFX_EFORMAT, "not a plugin: the file is empty");
    int32_t status = read_at(f, 0, ident, n, "the ELF header");
    if (status != IFX_OK)
        return status;
    if (n < SELFMAG || memcmp(ident, ELFMAG, SELFMAG) != 0)
        return base_error(IFX_EFORMAT, "not a plugin: no ELF file (a plugin is a shared object made by a linker)");
    if (ident[EI_CLASS] == ELFCLASS32)
        return base_error(IFX_EFORMAT, "a 32-bit ELF file; this program is 64-bit: build the plugin for 64 bits");
    if (ident[EI_CLASS] != ELFCLASS64)
        return base_error(IFX_EFORMAT, "damaged ELF header: class %u", ident[EI_CLASS]);
    if (ident[EI_DATA] != (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB))
        return base_error(IFX_EFORMAT, "an ELF file of the other byte order: build the plugin for this machine");
    status = read_at(f, 0, h, sizeof *h, "the ELF header");
    if (status != IFX_OK)
        return status;
    if (h->e_machine != HOST_MACHINE)
        return base_error(IFX_EFORMAT, "built for another CPU architecture: ELF machine %u, this program is %u",
                          h->e_machine, (unsigned)HOST_MACHINE);
    if (h->e_type != ET_DYN)
        return base_error(IFX_EFORMAT, "ELF type %u, a plugin is a shared object (%u): link it with -shared",
                          h->e_type, (unsigned)ET_DYN);
    return IFX_OK;
}

/* The section headers and the index of the one with their names. */
static int32_t read_sections(const struct file *f, const Elf64_Ehdr *h, Elf64_Shdr **out, uint64_t *count,
                             uint64_t *names)
{
    uint64_t bytes;
    *out = NULL;
    *count = h->e_shnum;
    *names = h->e_shstrndx;
    if (h->e_shoff == 0)
        return base_error(IFX_EFORMAT, "not a plugin: no section %s (the section headers were removed)", SECTION);
    if (h->e_shentsize != sizeof(Elf64_Shdr))
        return base_error(IFX_EFORMAT, "damaged ELF header: section headers of %u bytes", h->e_shentsize);
    if (*count == 0 || *names == SHN_XINDEX) { /* the real numbers are in section 0 */
        Elf64_Shdr first;
        int32_t status = read_at(f, h->e_shoff, &first, sizeof first, "the section headers");
        if (status != IFX_OK)
            return status;
        if (*count == 0)
            *count = first.sh_size;
        if (*names == SHN_XINDEX)
            *names = first.sh_link;
    }
    if (*count == 0 || *count > MAX_SECTIONS || *names >= *count)
        return base_error(IFX_EFORMAT, "damaged ELF header: %llu sections, names in section %llu",
                          (unsigned long long)*count, (unsigned long long)*names);
    bytes = *count * sizeof(Elf64_Shdr);
    if (bytes > f->bytes)
        return base_error(IFX_EFORMAT, "truncated or damaged: the section headers would end past the file's %llu bytes",
                          (unsigned long long)f->bytes);
    *out = base_alloc(bytes, 64);
    if (*out == NULL)
        return IFX_ENOMEM;
    return read_at(f, h->e_shoff, *out, bytes, "the section headers");
}

/* Whether the section's name is SECTION; a name that lies outside of the table is none. */
static int32_t has_name(const struct file *f, const Elf64_Shdr *names, const Elf64_Shdr *s, bool *same)
{
    char name[sizeof SECTION];
    uint64_t at;
    *same = false;
    if (s->sh_name >= names->sh_size || names->sh_size - s->sh_name < sizeof name)
        return IFX_OK;
    if (!base_add_u64(names->sh_offset, s->sh_name, &at))
        return base_error(IFX_EFORMAT, "damaged: the section names are outside of the file");
    int32_t status = read_at(f, at, name, sizeof name, "the section names");
    *same = status == IFX_OK && memcmp(name, SECTION, sizeof name) == 0;
    return status;
}

static int32_t read_block(const struct file *f, const Elf64_Shdr *s, struct ifx_magic *magic)
{
    const uint64_t head = offsetof(struct ifx_magic, block_size) + sizeof magic->block_size;
    memset(magic, 0, sizeof *magic);
    if (s->sh_type == SHT_NOBITS || s->sh_size < head)
        return base_error(IFX_EFORMAT, "section %s holds %llu bytes, the magic block has %zu", SECTION,
                          (unsigned long long)(s->sh_type == SHT_NOBITS ? 0 : s->sh_size), sizeof *magic);
    int32_t status = read_at(f, s->sh_offset, magic, head, "section " SECTION);
    if (status != IFX_OK)
        return status;
    if (memcmp(magic->magic, "INFERNIX", 8) != 0)
        return base_error(IFX_EFORMAT, "not a plugin: section %s does not begin with INFERNIX", SECTION);
    /* A size that is out of range is told by the judgement, with both values. */
    if (magic->block_size < sizeof *magic || s->sh_size < sizeof *magic)
        return IFX_OK;
    return read_at(f, s->sh_offset, magic, sizeof *magic, "section " SECTION);
}

static int32_t find_block(const struct file *f, struct ifx_magic *magic)
{
    Elf64_Ehdr h;
    Elf64_Shdr *sections = NULL;
    uint64_t count, names;
    bool found = false;
    int32_t status = read_header(f, &h);
    if (status == IFX_OK)
        status = read_sections(f, &h, &sections, &count, &names);
    for (uint64_t i = 1; status == IFX_OK && !found && i < count; i++) {
        status = has_name(f, &sections[names], &sections[i], &found);
        if (found)
            status = read_block(f, &sections[i], magic);
    }
    if (status == IFX_OK && !found)
        status = base_error(IFX_EFORMAT, "not a plugin: a shared object without section %s (made by the IFX_*_PLUGIN macros)",
                            SECTION);
    base_free(sections);
    return status;
}

int32_t registry_read_magic(const char *path, struct ifx_magic *magic)
{
    struct file f;
    struct stat st;
    /* O_NONBLOCK: a FIFO named x.so must not hang the program. */
    f.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f.fd < 0) {
        int error = errno;
        return base_error(error == ENOENT || error == ENOTDIR ? IFX_ENOTFOUND : IFX_EIO, "cannot open: %s",
                          strerror(error));
    }
    int32_t status;
    if (fstat(f.fd, &st) != 0) {
        status = base_error(IFX_EIO, "cannot stat: %s", strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = base_error(IFX_EINVAL, "not a plugin: %s", S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    } else {
        f.bytes = (uint64_t)st.st_size;
        status = find_block(&f, magic);
    }
    close(f.fd);
    return status;
}
