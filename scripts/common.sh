# shellcheck shell=sh disable=SC2034,SC2154
# What ./quickstart, ./check and scripts/ share; read with `.`, in the repository's root, by a shell
# in which `set -eu` is on. The caller sets `logs`, the folder for the steps' logs.

# die SENTENCE: the one way in which these scripts fail.
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# own_folder DIR: stop if it has files of someone else's. A script's own folder contains logs/.
own_folder() {
    [ ! -e "$1" ] || [ -d "$1/logs" ] || [ -z "$(ls -A "$1")" ] ||
        die "$1 isn't empty, and none of this script's runs made it: give --out another folder"
}

# show_progress NAME LOG: every second rewrite a line of the terminal: NAME, ninja's newest [n/m] in LOG,
# and the time. It ends with the shell that started it, which Ctrl-C may end at any time.
show_progress() {
    progress_began=$(date +%s)
    trap '' INT
    while sleep "${progress_period:-1}" && kill -0 $$ 2>/dev/null; do
        progress_at=$(tail -c 4000 "$2" 2>/dev/null | grep -aoE '^\[[0-9]+/[0-9]+\]' | tail -n 1)
        printf '\r%s%s, %d s\033[K' "$1" "${progress_at:+ $progress_at}" $(($(date +%s) - progress_began)) >&2
    done
}

# watched NAME COMMAND...: run it with its output in $logs/NAME.log. If standard error is a terminal, it
# shows progress, with $progress_label for the name if it is set.
watched() {
    watched_name=$1 watcher='' watched_code=0
    shift
    : >"$logs/$watched_name.log"
    if [ -t 2 ]; then
        show_progress "${progress_label:-$watched_name}" "$logs/$watched_name.log" &
        watcher=$!
    fi
    "$@" >"$logs/$watched_name.log" 2>&1 </dev/null || watched_code=$?
    if [ -n "$watcher" ]; then
        kill "$watcher" 2>/dev/null || :
        wait "$watcher" 2>/dev/null || :
        printf '\r\033[K' >&2
    fi
    return $watched_code
}

# step NAME COMMAND...: run it with its output in $logs/NAME.log; if it fails, print a message and the
# end of the log, and exit.
step() {
    step_name=$1
    ! watched "$@" || return 0
    printf '\nThe end of %s:\n' "$logs/$step_name.log" >&2
    tail -n 25 "$logs/$step_name.log" >&2
    printf '\n' >&2
    die "the step '$step_name' failed; all of its output is in $logs/$step_name.log"
}

# have PACKAGE: is what we want of it there, from Debian or from elsewhere?
have() {
    case $1 in
    cmake) command -v cmake ;;
    ninja-build) command -v ninja ;;
    gcc) command -v cc ;;
    libc6-dev) echo '#include <stdio.h>' | cc -E - ;;
    pkg-config) command -v pkg-config ;;
    libjansson-dev) pkg-config --exists jansson ;;
    libxxhash-dev) pkg-config --exists libxxhash ;;
    zlib1g-dev) pkg-config --exists zlib ;;
    libmd-dev) pkg-config --exists libmd ;;
    libcmocka-dev) pkg-config --exists cmocka ;;
    g++) command -v c++ ;;
    valgrind) command -v valgrind ;;
    python3) command -v python3 ;;
    python3-numpy) python3 -c 'import numpy' || /usr/bin/python3 -c 'import numpy' ;;
    clang-format) clang-format --version | grep -q 'version 14\.' ;;
    onednn) PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep -Eq 'libdnnl\.so\.[23]' ;;
    gcovr) command -v gcovr ;;
    iproute2) command -v ip ;;
    procps) command -v pgrep ;;
    bsdutils) command -v script ;;
    man-db) command -v man ;;
    mandoc) command -v mandoc ;;
    zsh) command -v zsh ;;
    fish) command -v fish ;;
    doxygen) command -v doxygen ;;
    libsentencepiece-dev) echo '#include <sentencepiece_trainer.h>' | c++ -x c++ -E - ;;
    libzip-dev) pkg-config --exists libzip ;;
    libcurl4-openssl-dev) pkg-config --exists libcurl ;;
    libopenmpi-dev) mpicc --showme:version | grep -q 'Open MPI' ;;
    libhwloc-dev) pkg-config --exists hwloc ;;
    openmpi-bin) mpirun --version | grep -q 'Open MPI' ;;
    libgloo-dev) echo '#include <gloo/config.h>' | c++ -x c++ -E - ;;
    *) dpkg-query -W -f '${Status}' "$1" | grep -q ' installed$' ;;
    esac >/dev/null 2>&1
}

# sudo's question must not disappear under a line that shows progress.
ask_for_password() {
    [ "$(id -u)" -eq 0 ] || [ ! -t 2 ] || [ -n "${CI-}" ] || ! command -v sudo >/dev/null || sudo -v || :
}

# Run apt-get as root. If sudo can't ask for a password (no terminal, or CI), it fails instead of waiting.
apt() {
    if [ "$(id -u)" -eq 0 ]; then
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@"
    elif [ -t 2 ] && [ -z "${CI-}" ]; then
        sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@"
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@"
    fi
}

# The lists of packages are fetched only if they are missing or too old.
install_packages() {
    apt install -y --no-install-recommends "$@" && return 0
    echo 'The installation failed with the current package lists: fetching new ones.'
    apt update && apt install -y --no-install-recommends "$@" && return 0
    echo "These packages couldn't be installed, which needs the network or a mirror (apt-get's reason is above): $*"
    return 1
}

# check_cmake: fail if the cmake in PATH is too old. A missing one is fine, because Debian's is new enough.
check_cmake() {
    command -v cmake >/dev/null || return 0
    least=$(sed -n 's/^cmake_minimum_required(VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
    found=$(cmake --version | sed -n '1s/^cmake version //p')
    [ "$(printf '%s\n' "$least" "$found" | sort -V | head -n 1)" = "$least" ] ||
        die "$(command -v cmake) has version $found, and lockstep needs $least or newer: update it, or remove it from PATH"
}

# need PACKAGE...: install those that are missing. If none is, it calls nothing.
need() {
    check_cmake
    missing=
    for package in "$@"; do
        have "$package" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null ||
        die "these Debian packages (or their files) are missing, and there is no apt-get to install them:$missing"
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
        die "packages are missing and there is no sudo; run this once as root: apt-get update && apt-get install$missing"
    echo "Installing Debian packages:$missing"
    ask_for_password
    # shellcheck disable=SC2086 # a list of names
    step packages install_packages $missing
    for package in $missing; do
        have "$package" || die "the package $package was installed, but its files can't be found"
    done
}

# package_named NAMES VERSION: print the newest package whose name and version match these patterns and
# that apt-get can install; nothing if there is none.
package_named() {
    apt-cache pkgnames 2>/dev/null | grep -Ex "$1" | sort -Vr | while IFS= read -r name; do
        ! LC_ALL=C apt-cache policy "$name" | grep -Eq "^  Candidate: $2" || { printf '%s\n' "$name" && break; }
    done
}

# want WHAT NAMES VERSION SENTENCE: install an optional package (package_named). If there is none, or that fails, print
# SENTENCE.
want() {
    ! have "$1" || return 0
    wanted=$(package_named "$2" "$3")
    if [ -n "$wanted" ]; then
        echo "Installing the Debian package $wanted"
        ask_for_password
        ! watched "$1" install_packages "$wanted" || ! have "$1" || return 0
    fi
    echo "$4"
}

# oneDNN's package is libdnnl2 in Debian 12 and libdnnl3.6 in Debian 13. Call this after need(), which may
# have fetched the package lists.
want_onednn() {
    want onednn 'libdnnl[0-9.]+' '[^(]' \
        "oneDNN (Debian 12: libdnnl2, Debian 13: libdnnl3.6) isn't installed. lockstep works without it, but takes longer."
}

# The build needs these. oneDNN is loaded at run time, and optional.
build_packages='cmake ninja-build gcc libc6-dev pkg-config libjansson-dev libxxhash-dev
    zlib1g-dev libmd-dev'

# cores: how many this process may use.
cores() {
    nproc 2>/dev/null || echo 1
}

# Files of the repository, sorted, one on each line: those that git lists in a checkout, otherwise all
# except hidden and generated ones. The same list on every machine.
source_files() {
    if [ -e .git ] && git ls-files >/dev/null 2>&1; then
        git ls-files | while IFS= read -r file; do [ ! -f "$file" ] || printf '%s\n' "$file"; done
    else
        find . -path './.?*' -prune -o -path './build*' -prune -o -path './out*' -prune -o \
            -path ./data -prune -o -type f -print | sed 's,^\./,,'
    fi | LC_ALL=C sort
}
