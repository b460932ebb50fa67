/* SPDX-License-Identifier: Apache-2.0
 *
 * container.c - reader of .infernix files: header, index, sections.  Nothing of the file is believed before it was
 * checked; contents are checked by CRC when a section is first used.
 */
#include "config.h"
#include "artifact_internal.h"
#include "container.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <zlib.h>

typedef unsigned long long ull;

bool art_is_container(const void *data, uint64_t bytes)
{
    return bytes >= 8 && memcmp(data, CONTAINER_MAGIC, 8) == 0;
}

uint32_t art_crc(const uint8_t *p, uint64_t bytes)
{
    return (uint32_t)crc32_z(crc32_z(0, NULL, 0), p, bytes);
}

static int32_t newer_version(const struct artifact *a, uint32_t version)
{
    char writer[HEADER_WRITER_BYTES + 1];
    memcpy(writer, a->container->map + HEADER_WRITER, HEADER_WRITER_BYTES);
    writer[HEADER_WRITER_BYTES] = 0;
    for (char *p = writer; *p; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7e)
            *p = '?';
    return base_error(IFX_EUNSUPPORTED, "%s: is a .infernix file of version %u, this program (infernix %s) reads version "
                      "%u: it needs %s or newer, or convert the checkpoint again with this one", a->path, version,
                      PACKAGE_VERSION, CONTAINER_VERSION, *writer ? writer : "a newer infernix");
}

static int32_t check_header(struct artifact *a)
{
    const struct art_container *c = a->container;
    if (c->bytes < CONTAINER_PAGE)
        return base_error(IFX_EFORMAT, "%s: cut short: %llu bytes, the header page alone takes %u", a->path, (ull)c->bytes,
                          CONTAINER_PAGE);
    uint32_t version = (uint32_t)container_get(c->map + HEADER_VERSION, 4);
    if (version > CONTAINER_VERSION)
        return newer_version(a, version);
    if (version == 0 || container_get(c->map + HEADER_CRC, 4) != art_crc(c->map, HEADER_CRC))
        return base_error(IFX_EFORMAT, "%s: byte offset 0: the header is damaged (its CRC-32 is wrong)", a->path);
    for (uint32_t i = CONTAINER_HEADER; i < CONTAINER_PAGE; i++)
        if (c->map[i] != 0)
            return base_error(IFX_EFORMAT, "%s: byte offset %u: the header page is damaged (must be zero)", a->path, i);
    uint64_t bytes = container_get(c->map + HEADER_FILE_BYTES, 8);
    if (bytes != c->bytes)
        return base_error(IFX_EFORMAT, "%s: %s: %llu bytes, the header says %llu", a->path,
                          bytes > c->bytes ? "cut short" : "has bytes after its end", (ull)c->bytes, (ull)bytes);
    return IFX_OK;
}

/* The output is bounded by what the header declares, and that by what zlib can reach, before memory is taken. */
static int32_t inflate_index(struct artifact *a, char **text, uint64_t *text_bytes)
{
    const struct art_container *c = a->container;
    uint64_t at = container_get(c->map + HEADER_INDEX_OFFSET, 8), stored = container_get(c->map + HEADER_INDEX_STORED, 8);
    uint64_t declared = container_get(c->map + HEADER_INDEX_BYTES, 8), end;
    if (at < CONTAINER_PAGE || at % CONTAINER_PAGE != 0 || !base_add_u64(at, stored, &end) || end != c->bytes ||
        stored > CONTAINER_INDEX_MAX)
        return base_error(IFX_EFORMAT, "%s: the index (byte offset %llu, %llu bytes) must be the end of the file", a->path,
                          (ull)at, (ull)stored);
    if (declared > CONTAINER_INDEX_MAX || declared > stored * 1040 + 64)
        return base_error(IFX_EFORMAT, "%s: byte offset %u: an index of %llu bytes out of %llu is not possible (256 MiB "
                          "is the most)", a->path, HEADER_INDEX_BYTES, (ull)declared, (ull)stored);
    if (container_get(c->map + HEADER_INDEX_CRC, 4) != art_crc(c->map + at, stored))
        return base_error(IFX_EFORMAT, "%s: byte offset %llu: the index is damaged (its CRC-32 is wrong)", a->path,
                          (ull)at);
    z_stream z = {.next_in = (z_const Bytef *)(uintptr_t)(c->map + at), .avail_in = (uInt)stored};
    char *out = base_alloc(declared + 1, 64);
    if (out == NULL)
        return IFX_ENOMEM;
    z.next_out = (Bytef *)out;
    z.avail_out = (uInt)declared + 1; /* one more than declared: a longer stream shows */
    int rc = inflateInit(&z);
    if (rc == Z_OK) {
        rc = inflate(&z, Z_FINISH);
        inflateEnd(&z);
    }
    if (rc != Z_STREAM_END || z.total_out != declared || z.avail_in != 0) {
        base_free(out);
        return base_error(IFX_EFORMAT, "%s: byte offset %llu: the index does not inflate to the %llu bytes declared",
                          a->path, (ull)at, (ull)declared);
    }
    *text = out;
    *text_bytes = declared;
    return IFX_OK;
}

static bool get_u64(const json_t *o, const char *key, uint64_t *out)
{
    return art_json_u64(json_object_get(o, key), false, out);
}

static int32_t read_sections(struct artifact *a)
{
    struct art_container *c = a->container;
    const json_t *list = json_object_get(c->index, "sections");
    uint64_t end = CONTAINER_PAGE, index_at = container_get(c->map + HEADER_INDEX_OFFSET, 8);
    if (!json_is_array(list))
        return base_error(IFX_EFORMAT, "%s: index: \"sections\" is missing", a->path);
    c->sections = base_calloc(json_array_size(list), sizeof *c->sections);
    if (c->sections == NULL)
        return IFX_ENOMEM;
    for (c->n_sections = 0; c->n_sections < json_array_size(list); c->n_sections++) {
        struct art_section *s = &c->sections[c->n_sections];
        const json_t *v = json_array_get(list, c->n_sections);
        uint64_t crc, next;
        if (!get_u64(v, "offset", &s->offset) || !get_u64(v, "bytes", &s->bytes) || !get_u64(v, "crc32", &crc) ||
            crc > UINT32_MAX)
            return base_error(IFX_EFORMAT, "%s: index: section %llu: offset, bytes or crc32 is missing or odd", a->path,
                              (ull)c->n_sections);
        s->crc = (uint32_t)crc;
        if (s->offset % CONTAINER_PAGE != 0 || s->bytes % CONTAINER_PAGE != 0 ||
            !base_add_u64(s->offset, s->bytes, &next) || next > index_at)
            return base_error(IFX_EFORMAT, "%s: index: section %llu (byte offset %llu, %llu bytes) is not aligned to %u "
                              "or ends past the sections' end %llu", a->path, (ull)c->n_sections, (ull)s->offset,
                              (ull)s->bytes, CONTAINER_PAGE, (ull)index_at);
        if (s->offset != end)
            return base_error(IFX_EFORMAT, "%s: index: section %llu at byte offset %llu %s (expected %llu)", a->path,
                              (ull)c->n_sections, (ull)s->offset,
                              s->offset < end ? "overlaps the one before it" : "leaves a gap before it", (ull)end);
        end = next;
    }
    if (end != index_at)
        return base_error(IFX_EFORMAT, "%s: index: %llu bytes at byte offset %llu belong to no section", a->path,
                          (ull)(index_at - end), (ull)end);
    return IFX_OK;
}

/* Section number and range of an asset or tensor, checked: inside the section, aligned. */
static int32_t read_range(struct artifact *a, const char *name, const json_t *v, const char *offset_key,
                          const char *bytes_key, uint64_t *section, uint64_t *offset, uint64_t *bytes)
{
    const struct art_container *c = a->container;
    uint64_t end;
    if (!get_u64(v, "section", section) || !get_u64(v, offset_key, offset) || !get_u64(v, bytes_key, bytes) ||
        *section >= c->n_sections || *section > INT32_MAX)
        return base_error(IFX_EFORMAT, "%s: index: %s: section, %s or %s is missing or odd", a->path, name, offset_key,
                          bytes_key);
    if (*offset % CONTAINER_ALIGN != 0 || !base_add_u64(*offset, *bytes, &end) || end > c->sections[*section].bytes)
        return base_error(IFX_EFORMAT, "%s: index: %s: %llu bytes at offset %llu of section %llu (byte offset %llu of the "
                          "file, %llu bytes): misaligned or past its end", a->path, name, (ull)*bytes, (ull)*offset,
                          (ull)*section, (ull)c->sections[*section].offset, (ull)c->sections[*section].bytes);
    return IFX_OK;
}

static int32_t read_assets(struct artifact *a)
{
    const json_t *all = json_object_get(a->container->index, "assets");
    for (uint32_t i = 0; i < ART_ASSETS; i++) {
        struct art_asset *asset = &a->assets[i];
        const json_t *v = json_object_get(all, asset->name);
        uint64_t section, offset, bytes;
        if (v == NULL)
            continue;
        int32_t status = read_range(a, asset->name, v, "offset", "bytes", &section, &offset, &bytes);
        if (status == IFX_OK)
            status = art_section_verify(a, (int32_t)section);
        if (status != IFX_OK)
            return status;
        asset->owned = base_alloc(bytes + 1, 64);
        if (asset->owned == NULL)
            return IFX_ENOMEM;
        memcpy(asset->owned, a->container->map + a->container->sections[section].offset + offset, bytes);
        asset->owned[bytes] = 0;
        asset->data = asset->owned;
        asset->bytes = bytes;
    }
    if (a->assets[0].data == NULL)
        return base_error(IFX_EFORMAT, "%s: index: config.json is not among the assets", a->path);
    return IFX_OK;
}

static int32_t read_shape(struct artifact *a, struct art_tensor *t, const json_t *v)
{
    const json_t *shape = json_object_get(v, "shape");
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    uint64_t count, want, scales = 0;
    if (dtype == NULL || (t->pub.dtype = art_dtype_parse(dtype)) == 0)
        return base_error(IFX_EFORMAT, "%s: index: tensor %s: dtype %.40s is unknown", a->path, t->pub.stored_name,
                          dtype ? dtype : "(none)");
    t->pub.dtype_text = dtype;
    if (!json_is_array(shape) || json_array_size(shape) > IFX_MAX_DIMS)
        return base_error(IFX_EFORMAT, "%s: index: tensor %s: \"shape\" is missing or too long", a->path,
                          t->pub.stored_name);
    t->pub.n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t d = 0; d < ARTIFACT_MAX_DIMS; d++) {
        t->pub.dims[d] = 1;
        if (d < t->pub.n_dims && !art_json_u64(json_array_get(shape, d), false, &t->pub.dims[d]))
            return base_error(IFX_EFORMAT, "%s: index: tensor %s: shape[%u] is no count", a->path, t->pub.stored_name, d);
    }
    bool good = art_count(t->pub.dims, t->pub.n_dims, &count);
    if (t->pub.dtype == IFX_W8G32) {
        uint64_t groups = t->pub.dims[1] / 32 + (t->pub.dims[1] % 32 != 0);
        good = good && t->pub.n_dims == 2 && base_mul_u64(t->pub.dims[0], groups, &want) &&
               base_mul_u64(want, 2, &scales) && base_mul_u64(want, 32, &want) && scales == t->scale_bytes;
    } else {
        good = good && base_mul_u64(count, art_dtype_bytes(t->pub.dtype), &want);
    }
    if (!good || want != t->pub.bytes)
        return base_error(IFX_EFORMAT, "%s: index: tensor %s: its shape and type do not fit its %llu bytes", a->path,
                          t->pub.stored_name, (ull)t->pub.bytes);
    return IFX_OK;
}

static int32_t read_tensor(struct artifact *a, struct art_tensor *t, const char *name, const json_t *v)
{
    const struct art_container *c = a->container;
    uint64_t section, offset, bytes;
    t->pub.stored_name = name;
    t->pub.logical_name = name;
    t->pub.file = a->path;
    int32_t status = read_range(a, name, v, "offset", "bytes", &section, &offset, &bytes);
    if (status != IFX_OK)
        return status;
    t->pub.bytes = bytes;
    t->pub.offset = c->sections[section].offset + offset;
    t->data = c->map + t->pub.offset;
    t->section = (int32_t)section;
    if (json_object_get(v, "scale_offset") != NULL) {
        status = read_range(a, name, v, "scale_offset", "scale_bytes", &section, &offset, &t->scale_bytes);
        if (status != IFX_OK)
            return status;
        t->pub.scale_bytes = t->scale_bytes;
        t->scales = c->map + c->sections[section].offset + offset;
    }
    return read_shape(a, t, v);
}

static int by_offset(const void *pa, const void *pb)
{
    const struct art_tensor *a = pa, *b = pb;
    if (a->pub.offset != b->pub.offset)
        return a->pub.offset < b->pub.offset ? -1 : 1;
    return (a->pub.bytes > b->pub.bytes) - (a->pub.bytes < b->pub.bytes);
}

static int32_t read_tensors(struct artifact *a)
{
    const char *name;
    json_t *v, *all = json_object_get(a->container->index, "tensors");
    if (!json_is_object(all))
        return base_error(IFX_EFORMAT, "%s: index: \"tensors\" is missing", a->path);
    a->tensors = base_calloc(json_object_size(all), sizeof *a->tensors);
    if (a->tensors == NULL)
        return IFX_ENOMEM;
    json_object_foreach(all, name, v) {
        int32_t status = read_tensor(a, &a->tensors[a->n_tensors++], name, v);
        if (status != IFX_OK)
            return status;
    }
    qsort(a->tensors, a->n_tensors, sizeof *a->tensors, by_offset);
    for (uint64_t i = 1; i < a->n_tensors; i++) {
        const struct artifact_entry *x = &a->tensors[i - 1].pub, *y = &a->tensors[i].pub;
        if (y->offset < x->offset + x->bytes)
            return base_error(IFX_EFORMAT, "%s: index: tensor %s at byte offset %llu overlaps %s", a->path,
                              y->stored_name, (ull)y->offset, x->stored_name);
    }
    return IFX_OK;
}

static bool plain_format(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    return n > 0 && n < 64 && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

static int32_t read_expert_layer(struct artifact *a, uint64_t i, const json_t *v)
{
    struct art_container *c = a->container;
    struct art_expert_section *e = &c->experts[i];
    const char *prefix = json_string_value(json_object_get(v, "prefix"));
    const char *format = json_string_value(json_object_get(v, "format"));
    uint64_t section, layer, total;
    if (prefix == NULL || strlen(prefix) >= 120 || !plain_format(format) || !get_u64(v, "section", &section) ||
        section >= c->n_sections || !get_u64(v, "layer", &layer) || layer > INT32_MAX ||
        !get_u64(v, "experts", &e->experts) || !get_u64(v, "hidden", &e->hidden) || !get_u64(v, "inter", &e->inter) ||
        !get_u64(v, "record_bytes", &e->record_bytes))
        return base_error(IFX_EFORMAT, "%s: index: experts[%llu]: a field is missing or odd", a->path, (ull)i);
    e->section = (uint32_t)section;
    e->layer = (uint32_t)layer;
    if (e->experts == 0 || e->record_bytes == 0 || e->record_bytes % IFX_RECORD_ALIGN != 0 ||
        !base_mul_u64(e->experts, e->record_bytes, &total) || total != c->sections[section].bytes)
        return base_error(IFX_EFORMAT, "%s: index: experts[%llu]: %llu records of %llu bytes do not fill section %llu of "
                          "%llu bytes", a->path, (ull)i, (ull)e->experts, (ull)e->record_bytes, (ull)section,
                          (ull)c->sections[section].bytes);
    if (e->experts > INT32_MAX || e->hidden == 0 || e->hidden > INT32_MAX || e->inter == 0 || e->inter > INT32_MAX)
        return base_error(IFX_EFORMAT, "%s: index: experts[%llu]: impossible sizes", a->path, (ull)i);
    if (i > 0 && strcmp(format, c->experts[0].format) != 0)
        return base_error(IFX_EUNSUPPORTED, "%s: index: experts[%llu] is \"%s\", the first layer \"%s\": one format for all "
                          "layers is needed", a->path, (ull)i, format, c->experts[0].format);
    e->prefix = base_strdup(prefix);
    e->format = base_strdup(format);
    return e->prefix && e->format ? IFX_OK : IFX_ENOMEM;
}

static int32_t read_experts(struct artifact *a)
{
    struct art_container *c = a->container;
    const json_t *all = json_object_get(c->index, "experts");
    uint8_t *used = NULL;
    int32_t status = IFX_OK;
    if (all != NULL && !json_is_array(all))
        return base_error(IFX_EFORMAT, "%s: index: \"experts\" must be an array", a->path);
    c->experts = base_calloc(json_array_size(all), sizeof *c->experts);
    used = base_calloc(c->n_sections, 1);
    if (c->experts == NULL || used == NULL)
        status = IFX_ENOMEM;
    for (uint64_t i = 0; i < a->n_tensors; i++)
        if (used != NULL)
            used[a->tensors[i].section] = 1;
    while (status == IFX_OK && c->n_experts < json_array_size(all)) {
        uint64_t i = c->n_experts++;
        status = read_expert_layer(a, i, json_array_get(all, i));
        if (status == IFX_OK && used[c->experts[i].section]++)
            status = base_error(IFX_EFORMAT, "%s: index: experts[%llu]: section %u is used twice", a->path, (ull)i,
                                c->experts[i].section);
    }
    base_free(used);
    return status;
}

int32_t art_container_open(struct artifact *a)
{
    struct art_container *c = a->container;
    char *text = NULL;
    uint64_t bytes = 0;
    struct art_faults f = {0};
    pthread_mutex_init(&c->lock, NULL);
    int32_t status = check_header(a);
    if (status == IFX_OK)
        status = inflate_index(a, &text, &bytes);
    if (status == IFX_OK)
        status = art_json_parse(text, bytes, a->path, 0, NULL, &c->index);
    base_free(text);
    if (status == IFX_OK)
        status = read_sections(a);
    if (status == IFX_OK)
        status = read_assets(a);
    if (status == IFX_OK)
        status = read_tensors(a);
    if (status == IFX_OK)
        status = read_experts(a);
    if (status == IFX_OK)
        status = art_index_names(a, &f);
    if (status == IFX_OK)
        status = art_faults_end(&f, IFX_EFORMAT, a->path);
    if (status == IFX_OK)
        status = art_config_open(a, a->assets[0].data, a->assets[0].bytes, "config.json");
    if (status != IFX_OK && strncmp(base_error_text(), a->path, strlen(a->path)) != 0)
        base_error_prefix(status, "%s", a->path);
    return status;
}

void art_container_close(struct art_container *c)
{
    if (c == NULL)
        return;
    for (uint64_t i = 0; i < c->n_experts; i++) {
        base_free(c->experts[i].prefix);
        base_free(c->experts[i].format);
    }
    base_free(c->experts);
    base_free(c->sections);
    json_decref(c->index);
    pthread_mutex_destroy(&c->lock);
    munmap((void *)(uintptr_t)c->map, c->bytes);
    base_free(c);
}

/* ---- contents ---- */
#define SECTION_RIGHT 1u
#define SECTION_WRONG 2u
#define CHUNK         (4u << 20)

static int32_t judge(struct artifact *a, uint64_t section, uint32_t crc)
{
    struct art_section *s = &a->container->sections[section];
    __atomic_store_n(&s->state, crc == s->crc ? SECTION_RIGHT : SECTION_WRONG, __ATOMIC_RELEASE);
    if (crc == s->crc)
        return IFX_OK;
    return base_error(IFX_EFORMAT, "%s: section %llu (%llu bytes at byte offset %llu) is damaged: CRC-32 %08x, the index "
                      "says %08x: copy or convert the file again", a->path, (ull)section, (ull)s->bytes, (ull)s->offset,
                      crc, s->crc);
}

int32_t art_section_verify(struct artifact *a, int32_t section)
{
    if (section < 0 || a->container == NULL || a->container->no_verify)
        return IFX_OK;
    struct art_section *s = &a->container->sections[section];
    if (__atomic_load_n(&s->state, __ATOMIC_ACQUIRE) == SECTION_RIGHT)
        return IFX_OK;
    /* Many threads want the same section at once: one looks, the others wait for its answer. */
    pthread_mutex_lock(&a->container->lock);
    int32_t status = IFX_OK;
    if (__atomic_load_n(&s->state, __ATOMIC_ACQUIRE) != SECTION_RIGHT)
        status = judge(a, (uint64_t)section, art_crc(a->container->map + s->offset, s->bytes));
    pthread_mutex_unlock(&a->container->lock);
    return status;
}

void artifact_set_verify(struct artifact *a, bool verify)
{
    if (a->container != NULL)
        a->container->no_verify = !verify;
}

int32_t art_section_judge(struct artifact *a, uint64_t section, const uint32_t *crcs, uint64_t piece)
{
    const struct art_section *s = &a->container->sections[section];
    uint32_t crc = art_crc(NULL, 0);
    for (uint64_t i = 0; i * piece < s->bytes; i++)
        crc = (uint32_t)crc32_combine(crc, crcs[i], (z_off_t)(s->bytes - i * piece < piece ? s->bytes - i * piece : piece));
    return judge(a, section, crc);
}

struct verifying {
    const uint8_t *data;
    uint64_t bytes;
    uint32_t *crcs;
};

static int32_t verify_chunk(void *ctx, uint64_t task, uint32_t worker)
{
    struct verifying *v = ctx;
    uint64_t at = task * CHUNK, n = v->bytes - at < CHUNK ? v->bytes - at : CHUNK;
    (void)worker;
    v->crcs[task] = art_crc(v->data + at, n);
    return base_cancelled() ? base_error(IFX_ECANCELLED, "cancelled") : IFX_OK;
}

static int32_t verify_parallel(struct artifact *a, struct base_pool *pool, uint64_t section)
{
    const struct art_section *s = &a->container->sections[section];
    uint64_t n = (s->bytes + CHUNK - 1) / CHUNK;
    if (s->state == SECTION_RIGHT)
        return IFX_OK;
    struct verifying v = {.data = a->container->map + s->offset, .bytes = s->bytes,
                          .crcs = base_calloc(n, sizeof *v.crcs)};
    if (v.crcs == NULL)
        return IFX_ENOMEM;
    int32_t status = base_pool_run(pool, n, verify_chunk, &v);
    if (status == IFX_OK)
        status = art_section_judge(a, section, v.crcs, CHUNK);
    base_free(v.crcs);
    return status;
}

int32_t artifact_verify(struct artifact *a, struct base_pool *pool,
                        int32_t (*progress)(void *ctx, uint64_t done, uint64_t total, const char *what), void *ctx)
{
    struct art_container *c = a->container;
    struct art_faults f = {0};
    uint64_t done = 0;
    if (c == NULL)
        return IFX_OK;
    for (uint64_t i = 0; i < c->n_sections; i++) {
        if (c->sections[i].left)
            continue;
        if (progress != NULL && progress(ctx, done, c->bytes, "verifying") != 0)
            return base_error(IFX_ECANCELLED, "%s: cancelled", a->path);
        int32_t status = pool ? verify_parallel(a, pool, i) : art_section_verify(a, (int32_t)i);
        if (status == IFX_EFORMAT)
            art_fault(&f, "%s", base_error_text());
        else if (status != IFX_OK) {
            base_buf_free(&f.text);
            return status;
        }
        done += c->sections[i].bytes;
    }
    return art_faults_end(&f, IFX_EFORMAT, a->path);
}
