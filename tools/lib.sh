# shellcheck shell=bash
# Shared by tools/packstore and tools/test. `setup base` makes $root/.venv and installs packstore into it; `setup test`
# adds the test extra. Both do it once, and again when what they install from has changed: pyproject.toml, the constraints,
# a C source, the build. Needs $root, the repository.
#
# Environment variables:
#   PACKSTORE_PYTHON              the Python to make .venv with, instead of the first suitable one in PATH
#   PACKSTORE_PIP_ARGS            further arguments for `pip install`, separated by blanks: an index to ask, for example
#   PACKSTORE_NO_SYSTEM_PACKAGES  when not empty, no Debian packages are installed
#
# Files in .venv, all written here:
#   packstore-made        the repository's path: we made this .venv, so we may empty it
#   packstore-installing  an installation is under way, or was killed
#   packstore-base, packstore-test  what it was installed from; a difference means to install again
#   packstore.log         what pip said

venv=${root:?}/.venv
log=$venv/packstore.log

say() { printf 'packstore: %s\n' "$*" >&2; }

die() {
    say "$@"
    exit 1
}

# All that an installation depends on; the path, because a .venv cannot be moved.
current_stamp() (
    shopt -s nullglob
    echo "$root"
    cat -- "$root"/{pyproject.toml,tools/constraints.txt,tools/build_backend.py} "$root"/packstore/images/engine/{,*/}*.{[ch],def}
)

is_current() {
    [[ -x $venv/bin/python && ! -e $venv/packstore-installing ]] &&
        [[ $(cat -- "$venv/packstore-$1" 2>/dev/null) == "$(current_stamp)" ]]
}

# --- Debian packages ---------------------------------------------------------------------------------------------------

# Whether packages may be installed; sets $as_root to the words before a command. Never asks for a password.
may_install() {
    as_root=(env)
    [[ -z ${PACKSTORE_NO_SYSTEM_PACKAGES-} ]] || return 1
    command -v apt-get >/dev/null && command -v timeout >/dev/null || return 1
    [[ $(id -u) != 0 ]] || return 0
    as_root=(sudo -n env)
    sudo -n true 2>/dev/null </dev/null
}

# apt-get, bounded in time and without questions. 9>&-: a daemon that a package starts must not inherit our lock.
apt() {
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l timeout --kill-after=10 180 \
        apt-get -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 \
        -o DPkg::Lock::Timeout=60 "$@" </dev/null >>"$apt_log" 2>&1 9>&-
}

# Installs Debian packages, after fetching the package lists if need be. Sets $why if it fails.
apt_install() {
    local status=0 install=(install -y --no-install-recommends "$@")
    apt_log=$(mktemp)
    apt "${install[@]}" || { apt update && apt "${install[@]}"; } || status=$?
    why="apt-get failed: $(grep -E '^[EW]:' "$apt_log" | tail -n 1 || true)"
    rm -f -- "$apt_log"
    return "$status"
}

# --- Python ------------------------------------------------------------------------------------------------------------

check_version='import platform, sys; print(platform.python_version()); sys.exit(sys.version_info < (3, 11))'
can_make_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null </dev/null; }

# Sets $python to the first Python >= 3.11 in PATH that can make a virtual environment, else to the first >= 3.11.
find_python() {
    local names=(python3 python3.1{3,2,1,4} python) path version seen=''
    [[ -z ${PACKSTORE_PYTHON-} ]] || names=("$PACKSTORE_PYTHON")
    python=
    while IFS= read -r path; do
        # The Python of an activated .venv cannot make that anew.
        [[ $path != "$venv"/* ]] || continue
        if version=$("$path" -c "$check_version" 2>/dev/null </dev/null); then
            python=${python:-$path}
            ! can_make_venv "$path" || { python=$path && break; }
        fi
        # A shim of pyenv or asdf may refuse to run, and is no Python then.
        seen+=${version:+"$path is $version, "}
    done < <(type -aP -- "${names[@]}")
    [[ -n $python ]] ||
        die "Python 3.11 or newer is needed and none was found (${seen:-no Python that runs, }looked for ${names[*]})." \
            "Install one, or name one with PACKSTORE_PYTHON."
}

# Debian and Ubuntu ship Python without ensurepip, and so without virtual environments.
ensure_venv_module() {
    local package why
    can_make_venv "$python" && return
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])' </dev/null)
    if may_install; then
        say "$python cannot make virtual environments; installing the Debian package $package ..."
        apt_install "$package" || say "$why"
        can_make_venv "$python" && return
    fi
    die "$python cannot make virtual environments: its modules venv and ensurepip are missing." \
        "On Debian or Ubuntu run this as root, and then packstore again: apt-get install $package"
}

# --- .venv -------------------------------------------------------------------------------------------------------------

# Locks what descriptor 9 stands for, for as long as somebody has it open: this shell, or a pip that outlives it.
lock() { "$python" -c "import fcntl; fcntl.flock(9, fcntl.LOCK_EX $1)" 2>/dev/null </dev/null; }

# Runs a command in the repository, its output in the log; in the background, so that a signal ends it at once.
logged() {
    (cd -- "$root" && exec "$@") </dev/null >>"$log" 2>&1 &
    child=$!
    wait "$child"
}

stop() {
    kill "$child" 2>/dev/null || true
    say 'interrupted; the next run starts the installation again'
    trap - "$1"
    kill -s "$1" $$
}

# Makes $venv unless a working one is there; $fresh says whether it did. Empties what is there only if we made that.
make_venv() {
    local ours why=''
    fresh=no
    ours=$(cat -- "$venv/packstore-made" 2>/dev/null) || ours=
    if [[ -n $ours && $ours != "$root" ]]; then
        [[ ! $ours/.venv -ef $venv ]] ||
            die "$venv is a link to the .venv that $ours uses: remove the link and run this again."
        why="it was made in $ours"
    elif [[ -n $ours && -e $venv/packstore-installing ]]; then
        why='the last installation did not finish'
    elif [[ -d $venv && -n $(ls -A -- "$venv") ]]; then
        "$venv/bin/python" -m pip --version >/dev/null 2>&1 </dev/null &&
            "$venv/bin/python" -c "$check_version" >/dev/null </dev/null && return
        why='it does not run Python 3.11 or newer with pip'
        [[ -n $ours ]] || die "$venv cannot be used: $why. packstore did not make it, so it does not delete it:" \
            "move it away and run this again."
    fi
    [[ -z $why ]] || say "making .venv anew: $why"
    ensure_venv_module
    say "first use: installing packstore into $venv; this takes a few minutes (progress: $log)"
    fresh=yes
    mkdir -p -- "$venv"
    # A kill at any moment leaves the marks, or nothing.
    printf '%s' "$root" >"$venv/packstore-made"
    : >"$venv/packstore-installing"
    find "$venv/" -mindepth 1 -maxdepth 1 ! -name packstore-made ! -name packstore-installing -exec rm -rf -- {} +
    logged "$python" -m venv "$venv" || die "making $venv failed; what was said is in $log"
}

pip_install() {
    mkdir -p -- "$venv/tmp"
    # TMPDIR: what a killed pip leaves there goes with the .venv. --use-pep517: how newer versions build by themselves.
    # --no-compile: Python compiles the few modules that it imports, not all of them.
    # shellcheck disable=SC2086 # several arguments
    logged env TMPDIR="$venv/tmp" "$venv/bin/python" -m pip install --no-input --no-compile --use-pep517 \
        ${PACKSTORE_PIP_ARGS-} -c tools/constraints.txt -e "$1" || return
    rm -rf -- "$venv/tmp"
}

# Makes sure that .venv holds packstore as the repository has it. Takes a few milliseconds, silently, when it does.
setup() {
    local began=$SECONDS fresh child='' signal what=.
    is_current "$1" && return
    find_python
    exec 9<"$root"
    lock '| fcntl.LOCK_NB' || { say 'another run is installing into .venv; waiting for it ...' && lock '' || true; }
    # Who waited finds the work done.
    if ! is_current "$1"; then
        # shellcheck disable=SC2064 # the signal's name, now
        for signal in INT TERM HUP; do trap "stop $signal" "$signal"; done
        make_venv
        [[ $1 == base ]] || what=".[$1]"
        [[ $fresh == yes ]] || say "bringing .venv up to date (progress: $log)"
        : >"$log"
        : >"$venv/packstore-installing"
        if ! pip_install "$what"; then
            # An older .venv is as it was: pip decides and fetches before it changes anything.
            [[ $fresh == yes ]] || rm -f -- "$venv/packstore-installing"
            tail -n 5 -- "$log" >&2
            die "pip could not install packstore; all that it said is in $log." \
                "Without the tested versions of tools/constraints.txt it may work: pip install '$root'"
        fi
        for what in base "$1"; do current_stamp >"$venv/packstore-$what"; done
        rm -f -- "$venv/packstore-installing"
        trap - INT TERM HUP
        say "ready after $((SECONDS - began)) s"
    fi
    exec 9<&-
}
