# SPDX-License-Identifier: Apache-2.0
# Makes the program that prints size and offsets of every struct of the public headers.  The headers are C without
# preprocessor tricks inside a struct, so a member is what stands before a ";": a function pointer (*name)(...), or names
# between commas.

function strip(s) { gsub(/[ \t]+/, " ", s); sub(/^ /, "", s); sub(/ $/, "", s); return s }

function member(text,    n, parts, i, name) {
    text = strip(text)
    if (text == "") return
    if (match(text, /\(\*[a-z_0-9]+\)/)) {
        emit(substr(text, RSTART + 2, RLENGTH - 3))
        return
    }
    gsub(/\[[^]]*\]/, "", text)
    n = split(text, parts, ",")
    for (i = 1; i <= n; i++) {
        name = parts[i]
        sub(/^.*[ *]/, "", name)
        emit(name)
    }
}

# Members of an array of anonymous structs wait for its name.
function emit(name) {
    if (nested) inner[++n_inner] = name
    else print "    OFFSET(struct " current ", " name ");"
}

function close_nested(name,    i) {
    nested = 0
    emit(name)
    for (i = 1; i <= n_inner; i++) emit(name "[0]." inner[i])
    n_inner = 0
}

BEGIN {
    print "#include <stddef.h>"
    print "#include <stdio.h>"
    for (i = 1; i < ARGC; i++) {
        h = ARGV[i]
        sub(/^.*\//, "", h)
        print "#include <infernix/" h ">"
    }
    print "#define SIZE(s) printf(#s \" %zu\\n\", sizeof(s))"
    print "#define OFFSET(s, m) printf(#s \".\" #m \" %zu %zu\\n\", offsetof(s, m), sizeof(((s *)0)->m))"
    print "int main(void)\n{"
}

{
    line = $0
    if (in_comment) {
        if (!sub(/^.*\*\//, "", line)) next
        in_comment = 0
    }
    gsub(/\/\*([^*]|\*[^\/])*\*\//, " ", line)
    if (sub(/\/\*.*$/, "", line)) in_comment = 1
    if (line ~ /^#/) next
    if (line ~ /^struct [a-z_0-9]+ \{/) {
        current = line
        sub(/^struct /, "", current)
        sub(/ .*$/, "", current)
        text = ""
        print "    SIZE(struct " current ");"
        next
    }
    if (current == "") next
    if (line ~ /^\};/) { current = ""; next }
    if (line ~ /^ +struct \{/) { nested = 1; next }
    if (nested && line ~ /^ +\} [a-z_0-9]+\[/) {
        sub(/^ +\} /, "", line)
        sub(/\[.*$/, "", line)
        close_nested(line)
        next
    }
    text = text " " line
    while ((at = index(text, ";")) > 0) {
        # attributes of a printf-like member stand before its ";": the name is found all the same
        member(substr(text, 1, at - 1))
        text = substr(text, at + 1)
    }
}

END { print "    return 0;\n}" }
