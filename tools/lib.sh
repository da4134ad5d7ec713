# shellcheck shell=bash
# What tools/packstore and tools/test share: `setup base|test`, which makes $root/.venv and installs packstore into it,
# once, and again whenever pyproject.toml, tools/constraints.txt or what is compiled has changed, or there is a compiler
# where there was none. Needs $root, the repository.
#
# Environment variables:
#   PACKSTORE_PYTHON              the Python to make .venv with, instead of the first suitable one in PATH
#   PACKSTORE_PIP_ARGS            further arguments for `pip install`, separated by blanks: an index to ask, for example
#   PACKSTORE_NO_SYSTEM_PACKAGES  when not empty, Debian's packages are left alone
#
# Bash 3.2 is enough (macOS has no newer one), and so no associative arrays, no mapfile, no flock(1), no sha256sum.
#
# Files in .venv, all written here:
#   packstore-made         this .venv is ours, made for the repository whose path it holds: we may empty it
#   packstore-installing   an installation is under way, or was killed
#   packstore-EXTRA.stamp  what EXTRA (base, test) was installed from; a difference means to install again

unset CDPATH
venv=${root:?}/.venv
system_ready=no
child=

say() { printf 'packstore: %s\n' "$*" >&2; }

die() {
    say "$@"
    exit 1
}

# Sets $text to the content of a file. Neither `cat` nor `$(<file)`: every run comes by here, and those cost a process.
slurp() {
    text=
    IFS= read -r -d '' text <"$1" || true
}

# Sets $stamp: all that an installation depends on, as it is. The path is in it because a .venv cannot be moved.
current_stamp() {
    stamp=$root$'\n'
    slurp "$root/pyproject.toml"
    stamp+=$text
    slurp "$root/tools/constraints.txt"
    stamp+=$text
    # The installation compiles it, if there is something to do it with.
    slurp "$root/packstore/images/seekable/_native.c"
    stamp+=$text
    if has_compiler; then stamp+=compiled; fi
}

has_compiler() { command -v gcc >/dev/null || command -v cc >/dev/null; }

is_current() {
    [[ -x $venv/bin/python && -f $venv/packstore-$1.stamp && ! -e $venv/packstore-installing ]] || return 1
    current_stamp
    slurp "$venv/packstore-$1.stamp"
    [[ $text == "$stamp" ]]
}

# --- the system's packages ---------------------------------------------------------------------------------------------

is_installed() {
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# Whether packages may be installed; sets $as_root, the words to put before a command. Never asks for a password.
may_install() {
    as_root=()
    [[ -z ${PACKSTORE_NO_SYSTEM_PACKAGES-} ]] || return 1
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null && command -v timeout >/dev/null || return 1
    [[ $(id -u) != 0 ]] || return 0
    as_root=(sudo -n)
    sudo -n true 2>/dev/null </dev/null
}

# apt-get, bounded in time and without a question. Its output goes to $apt_log.
apt() {
    # 9>&-: nothing that a package starts may inherit our lock.
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l timeout --kill-after=10 180 \
        apt-get -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 \
        -o DPkg::Lock::Timeout=60 "$@" </dev/null >>"$apt_log" 2>&1 9>&-
}

# Installs Debian packages. A fresh container has no package lists, so a first failure fetches them. Sets $why if it fails.
apt_install() {
    local status=0
    apt_log=$(mktemp)
    apt install -y --no-install-recommends "$@" ||
        { apt update && apt install -y --no-install-recommends "$@"; } || status=$?
    why="apt-get failed: $(grep -E '^[EW]:' "$apt_log" | tail -n 1 || true)"
    rm -f -- "$apt_log"
    return "$status"
}

# Installs the system's TurboJPEG and jpegtran if it may, and says so if not. Never fails: packstore works without.
# Sets $system_ready to yes when both are there.
system_packages() {
    local missing=() why='it takes Debian or Ubuntu, and root or sudo without a password, to do it from here'
    # Ubuntu calls the library libturbojpeg.
    is_installed libturbojpeg0 || is_installed libturbojpeg || missing+=(libturbojpeg0)
    is_installed libjpeg-turbo-progs || missing+=(libjpeg-turbo-progs)
    if [[ ${#missing[@]} == 0 ]]; then
        system_ready=yes
        return
    fi
    if may_install; then
        say "installing the Debian packages ${missing[*]} ..."
        if apt_install "${missing[@]}" ||
            { [[ ${missing[0]} == libturbojpeg0 ]] && apt_install libturbojpeg "${missing[@]:1}"; }; then
            # shellcheck disable=SC2034 # tools/test reads it
            system_ready=yes
            return
        fi
    elif [[ -n ${PACKSTORE_NO_SYSTEM_PACKAGES-} ]]; then
        why='PACKSTORE_NO_SYSTEM_PACKAGES is set'
    fi
    say "the Debian packages ${missing[*]} were not installed ($why)." \
        "packstore works without them, through simplejpeg and Pillow."
}

# --- Python ------------------------------------------------------------------------------------------------------------

# Sets $python to the first Python >= 3.11, preferring one that can make a virtual environment.
find_python() {
    local names=(python3 python3.13 python3.12 python3.11 python3.14 python) name path version without_venv='' seen=''
    [[ -z ${PACKSTORE_PYTHON-} ]] || names=("$PACKSTORE_PYTHON")
    for name in "${names[@]}"; do
        while IFS= read -r path; do
            # In an activated .venv its own Python comes first, but that cannot make itself anew.
            [[ $path != "$venv"/* ]] || continue
            # A shim of pyenv or asdf may be in PATH and yet refuse to run: that is as good as none.
            version=$("$path" -c 'import platform; print(platform.python_version())' 2>/dev/null </dev/null) || continue
            seen+="${seen:+, }$path is $version"
            "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' </dev/null || continue
            if "$path" -c 'import ensurepip, venv' 2>/dev/null </dev/null; then
                python=$path
                return
            fi
            without_venv=${without_venv:-$path}
        done < <(type -aP -- "$name")
    done
    [[ -n $without_venv ]] ||
        die "Python 3.11 or newer is needed and none was found (${seen:-no Python that runs}; looked for ${names[*]})." \
            "Install one, or name one with PACKSTORE_PYTHON."
    python=$without_venv
}

# Debian and Ubuntu ship Python without ensurepip, and so without virtual environments.
ensure_venv_module() {
    local package why
    "$python" -c 'import ensurepip, venv' 2>/dev/null </dev/null && return
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])' </dev/null)
    if may_install; then
        say "$python cannot make virtual environments; installing the Debian package $package ..."
        apt_install "$package" || say "$why"
        "$python" -c 'import ensurepip, venv' 2>/dev/null </dev/null && return
    fi
    die "$python cannot make virtual environments: its modules venv and ensurepip are missing." \
        "On Debian or Ubuntu run this as root, and then packstore again: apt-get install $package"
}

# --- .venv -------------------------------------------------------------------------------------------------------------

# Holds an exclusive lock on the repository's directory until this process ends or runs something else by `exec`
# (`release`). The lock belongs to descriptor 9, which a killed run's pip still has: nobody interferes with that either.
acquire() {
    exec 9<"$root"
    "$python" -c '
import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("packstore: another run is installing into .venv; waiting for it ...", file=sys.stderr, flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
except OSError as error:
    print(f"packstore: going on without a lock ({error})", file=sys.stderr)
' </dev/null
}

release() { exec 9<&-; }

# Runs a command, its output on stderr, so that a signal to this script ends it at once with all that it started:
# in the background, for bash would else wait for it; in its own process group (set -m), for pip and venv have children.
interruptible() {
    local status=0
    set -m
    "$@" </dev/null >&2 &
    child=$!
    set +m
    wait "$child" || status=$?
    child=
    return "$status"
}

stop() {
    trap - INT TERM HUP
    if [[ -n $child ]]; then
        kill -s TERM -- "-$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    [[ ! -t 2 ]] || printf '\033[?25h' >&2 # pip hides the cursor while it is busy
    say 'interrupted; the next run starts the installation again'
    kill -s "$1" $$
}

# Makes $venv unless a working one is there; $fresh says whether it did. Empties what is there only if we made that.
make_venv() {
    local ours='' why=''
    fresh=no
    if [[ -f $venv/packstore-made ]]; then
        slurp "$venv/packstore-made"
        ours=$text
    fi
    if [[ -e $venv/packstore-installing ]]; then
        why='the last installation did not finish'
    elif [[ -n $ours && $ours != "$root" ]]; then
        why="it was made in $ours"
    elif [[ -d $venv ]] && [[ -n $(ls -A -- "$venv") ]]; then
        "$venv/bin/python" -m pip --version >/dev/null 2>&1 </dev/null &&
            "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' </dev/null && return
        why='it does not run Python 3.11 or newer with pip'
    fi
    if [[ -n $why ]]; then
        [[ -n $ours ]] || die "$venv cannot be used: $why. packstore did not make it, so it does not delete it:" \
            "move it away and run this again."
        say "making .venv anew: $why"
    fi
    ensure_venv_module
    say "first use: making $venv with $("$python" --version) and installing packstore into it." \
        "This takes a few minutes the first time."
    fresh=yes
    mkdir -p -- "$venv"
    # The marks go first when all is deleted and come first when it is made: a kill at any moment leaves them or nothing.
    printf '%s' "$root" >"$venv/packstore-made"
    : >"$venv/packstore-installing"
    find "$venv/" -mindepth 1 -maxdepth 1 ! -name packstore-made ! -name packstore-installing -exec rm -rf -- {} +
    interruptible "$python" -m venv "$venv" || die "making $venv failed (see above)"
    # Everything that pip on its own would fetch for a GPU is wasted where there is none.
    if [[ $(uname -s) == Linux && -z ${PACKSTORE_PIP_ARGS-} && ! -e /dev/nvidiactl && ! -e /dev/dxg ]]; then
        say "no NVIDIA GPU here: should pip start to fetch gigabytes of CUDA packages, stop it (Ctrl-C) and run this" \
            "again with PACKSTORE_PIP_ARGS='--extra-index-url URL', with the URL that PyTorch's installation page gives" \
            "for its CPU builds."
    fi
}

pip_install() {
    local what=. args=()
    [[ $1 == base ]] || what=".[$1]"
    # Its progress is for people; a log needs its errors only.
    [[ -t 2 ]] || args+=(--quiet)
    local extra=()
    read -r -a extra <<<"${PACKSTORE_PIP_ARGS-}" || true
    cd -- "$root" || return
    mkdir -p -- "$venv/tmp" || return
    # TMPDIR: pip unpacks there, and what a killed pip leaves goes with the .venv. --use-pep517: the pip of Debian 12
    # would else build the packages that have no wheel (PyTurboJPEG, jpeg4py) in a way that it warns of.
    TMPDIR=$venv/tmp PIP_DISABLE_PIP_VERSION_CHECK=1 interruptible "$venv/bin/python" -m pip install \
        --no-input --use-pep517 ${args[@]+"${args[@]}"} ${extra[@]+"${extra[@]}"} -c tools/constraints.txt -e "$what" || return
    rm -rf -- "$venv/tmp"
}

# Makes sure that .venv holds packstore as pyproject.toml and tools/constraints.txt have it; `setup test` with the test
# extra. Silent, and a few milliseconds, when it does already.
setup() {
    is_current "$1" && return
    local began=$SECONDS cwd=$PWD status=0
    find_python
    acquire
    # Who waited finds the work done.
    if ! is_current "$1"; then
        trap 'stop INT' INT
        trap 'stop TERM' TERM
        trap 'stop HUP' HUP
        make_venv
        if [[ ! -e $venv/packstore-system.stamp ]]; then
            system_packages
            : >"$venv/packstore-system.stamp"
        fi
        say "installing packstore ($1) with pip ..."
        : >"$venv/packstore-installing"
        pip_install "$1" || status=$?
        # After a failure the mark stays on a new .venv, whatever is in it; an older one is as it was, for pip decides
        # and fetches before it changes anything.
        [[ $status != 0 && $fresh == yes ]] || rm -f -- "$venv/packstore-installing"
        [[ $status == 0 ]] || die "pip could not install packstore (see above). Without the tested versions of" \
            "tools/constraints.txt it may work: pip install '$root'"
        current_stamp
        [[ $1 == base ]] || printf '%s' "$stamp" >"$venv/packstore-base.stamp"
        printf '%s' "$stamp" >"$venv/packstore-$1.stamp"
        trap - INT TERM HUP
        say "ready after $((SECONDS - began)) s"
        cd -- "$cwd" || die "cannot go back to $cwd"
    fi
    release
}
