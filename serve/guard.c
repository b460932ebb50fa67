/* SPDX-License-Identifier: Apache-2.0
 *
 * guard.c - who may ask: the key, the Host that was called (a web page that makes its own name resolve to this machine must not get in),
 * the origins that may read answers.
 */
#include "config.h"
#include "internal.h"
#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

bool guard_same(const char *a, const char *b)
{
    /* Every byte of what was given is looked at; how long that takes tells its own length only. */
    size_t la = strlen(a), lb = strlen(b);
    unsigned char different = la != lb;
    for (size_t i = 0; i < la; i++)
        different |= (unsigned char)(a[i] ^ (lb ? b[i % lb] : 1));
    return different == 0;
}

bool guard_key(const struct serve *s, struct MHD_Connection *c)
{
    const char *bearer, *key;
    if (s->o.api_key == NULL)
        return true;
    bearer = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    key = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "x-api-key");
    if (bearer != NULL && strncasecmp(bearer, "Bearer ", 7) == 0 && guard_same(bearer + 7 + strspn(bearer + 7, " "), s->o.api_key))
        return true;
    return key != NULL && guard_same(key, s->o.api_key);
}

static bool is_address(const char *host)
{
    struct in6_addr a;
    return inet_pton(AF_INET, host, &a) == 1 || inet_pton(AF_INET6, host, &a) == 1;
}

static bool listed(const char *const *list, const char *name)
{
    for (; list != NULL && *list != NULL; list++)
        if (strcasecmp(*list, name) == 0)
            return true;
    return false;
}

/* "[::1]:80" -> "::1", "localhost:80" -> "localhost" */
static bool strip_port(const char *host, char out[256])
{
    bool bracket = host[0] == '[';
    size_t n = bracket ? strcspn(++host, "]") : strcspn(host, ":");
    if (n == 0 || n > 255)
        return false;
    memcpy(out, host, n);
    out[n] = 0;
    return true;
}

bool guard_host(const struct serve *s, struct MHD_Connection *c)
{
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    char name[256];
    if (host == NULL)
        return true; /* HTTP/1.0: no browser */
    if (!strip_port(host, name))
        return false;
    if (strcasecmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0 || strcmp(name, "::1") == 0)
        return true;
    if (strcasecmp(name, s->o.host) == 0 || listed(s->o.allowed_hosts, name))
        return true;
    return s->any_address && is_address(name);
}

const char *guard_origin(const struct serve *s, struct MHD_Connection *c)
{
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    if (origin == NULL || s->o.cors_origins == NULL)
        return NULL;
    if (listed(s->o.cors_origins, "*"))
        return "*";
    return listed(s->o.cors_origins, origin) ? origin : NULL;
}
